"""onhand: a private assistant that runs on the device.

    import onhand

    with onhand.open("smollm2-135m") as model:
        chat = model.chat(system="Answer in one sentence.")
        print(chat.ask("What is a KV cache?").text)

This module is the whole public surface, with `onhand.testing` for tests and `onhand.backends` for backends.
"""

from onhand.chat import Chat
from onhand.errors import (
    BackendError,
    BackendUnavailableError,
    BusyError,
    ContextOverflowError,
    DownloadError,
    GenerationError,
    HashMismatchError,
    ModelError,
    ModelExistsError,
    ModelFormatError,
    ModelNotFoundError,
    NumericalError,
    OnhandError,
    OptionError,
    StorageError,
    TemplateError,
    TemplateLimitError,
    UnsafeFormatError,
    UnsupportedArchitectureError,
    UnsupportedQuantizationError,
)
from onhand.model import Model, open
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.types import DoneEvent, Event, FinishReason, Message, PrefillEvent, Progress, Reply, Role, TextEvent, Usage

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "BusyError",
    "CacheOptions",
    "Chat",
    "ContextOverflowError",
    "DeviceOptions",
    "DoneEvent",
    "DownloadError",
    "Event",
    "FinishReason",
    "GenerationError",
    "GenerationOptions",
    "HashMismatchError",
    "Message",
    "Model",
    "ModelError",
    "ModelExistsError",
    "ModelFormatError",
    "ModelNotFoundError",
    "NumericalError",
    "OnhandError",
    "OptionError",
    "PrefillEvent",
    "Progress",
    "Reply",
    "Role",
    "StorageError",
    "TemplateError",
    "TemplateLimitError",
    "TextEvent",
    "UnsafeFormatError",
    "UnsupportedArchitectureError",
    "UnsupportedQuantizationError",
    "Usage",
    "open",
]
