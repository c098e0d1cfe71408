"""onhand: a private assistant that runs on the device.

    import onhand

    with onhand.open("smollm2-135m") as model:
        chat = model.chat(system="Answer in one sentence.")
        print(chat.ask("What is a KV cache?").text)

This module is the whole public surface, with `onhand.testing` for tests and `onhand.backends` for backends.
"""

from __future__ import annotations

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

_ON_FIRST_USE = {"Chat": "onhand.chat", "Model": "onhand.model", "open": "onhand.model"}

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
    "NumericalError",
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
    "open",
]


def __getattr__(name: str) -> object:
    """Chat, Model and open: they take numpy and the tokenizers, for which `onhand --help` need not wait."""
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'onhand' has no attribute {name!r}")
    return getattr(import_module(_ON_FIRST_USE[name]), name)
