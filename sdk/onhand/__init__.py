"""onhand: a private assistant that runs on the device.

    import onhand

    with onhand.open("smollm2-135m") as model:
        chat = model.chat(system="Answer in one sentence.")
        print(chat.ask("What is a KV cache?").text)

This module is the whole public surface, with `onhand.testing` for tests and `onhand.backends` for backends.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from onhand.errors import (
    BackendError,
    BackendUnavailableError,
    CacheFileError,
    ChatBusyError,
    ContextOverflowError,
    DownloadError,
    GenerationError,
    GrammarError,
    HashMismatchError,
    MemoryPlanError,
    ModelError,
    ModelExistsError,
    ModelFileNotFoundError,
    ModelFormatError,
    ModelNotFoundError,
    NumericalError,
    OfflineError,
    OnhandError,
    OptionError,
    QueueFullError,
    ReplyValueError,
    StorageError,
    TemplateError,
    TemplateLimitError,
    UnsafeFormatError,
    UnsupportedArchitectureError,
    UnsupportedQuantizationError,
)
from onhand.grammar import Grammar
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.types import (
    Budget,
    DoneEvent,
    Event,
    EvictedEvent,
    FinishReason,
    MemoryPlan,
    Message,
    PartialEvent,
    PrefillEvent,
    Progress,
    Reply,
    Role,
    TextEvent,
    ThinkingEvent,
    ToolCall,
    ToolCallEvent,
    TypedReply,
    Usage,
)

if TYPE_CHECKING:
    from onhand.chat import Chat
    from onhand.model import Model, open
    from onhand.privacy import NetworkAudit, NetworkUse, audit, offline

_ON_FIRST_USE = {
    "Chat": "onhand.chat",
    "Model": "onhand.model",
    "NetworkAudit": "onhand.privacy",
    "NetworkUse": "onhand.privacy",
    "audit": "onhand.privacy",
    "offline": "onhand.privacy",
    "open": "onhand.model",
}

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "Budget",
    "CacheFileError",
    "CacheOptions",
    "Chat",
    "ChatBusyError",
    "ContextOverflowError",
    "DeviceOptions",
    "DoneEvent",
    "DownloadError",
    "Event",
    "EvictedEvent",
    "FinishReason",
    "GenerationError",
    "GenerationOptions",
    "Grammar",
    "GrammarError",
    "HashMismatchError",
    "MemoryPlan",
    "MemoryPlanError",
    "Message",
    "Model",
    "ModelError",
    "ModelExistsError",
    "ModelFileNotFoundError",
    "ModelFormatError",
    "ModelNotFoundError",
    "NetworkAudit",
    "NetworkUse",
    "NumericalError",
    "OfflineError",
    "OnhandError",
    "OptionError",
    "PartialEvent",
    "PrefillEvent",
    "Progress",
    "QueueFullError",
    "Reply",
    "ReplyValueError",
    "Role",
    "StorageError",
    "TemplateError",
    "TemplateLimitError",
    "TextEvent",
    "ThinkingEvent",
    "ToolCall",
    "ToolCallEvent",
    "TypedReply",
    "UnsafeFormatError",
    "UnsupportedArchitectureError",
    "UnsupportedQuantizationError",
    "Usage",
    "audit",
    "offline",
    "open",
]


def __getattr__(name: str) -> object:
    """What takes long to import, numpy and the tokenizers with it, for which `onhand --help` need not wait."""
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'onhand' has no attribute {name!r}")
    return getattr(import_module(_ON_FIRST_USE[name]), name)


if os.environ.get("ONHAND_OFFLINE", "0") not in ("", "0"):  # here, so that no import of ours comes before it
    import_module("onhand.privacy").offline()
