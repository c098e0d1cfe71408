"""Every error that onhand raises on purpose.

    OnhandError
    ├── OptionError (ValueError)                      a setting is out of its range
    ├── ModelError
    │   ├── ModelNotFoundError (LookupError)          no model of that name is on this device
    │   ├── ModelFileNotFoundError (FileNotFoundError)  there is no such file
    │   ├── ModelExistsError (FileExistsError)        the name is taken by another model
    │   ├── ModelFormatError (ValueError)             the file is not what it claims to be
    │   │   ├── UnsupportedArchitectureError          a sound file of a model that we cannot run
    │   │   ├── UnsupportedQuantizationError          a sound file with a block type that we cannot read
    │   │   └── UnsafeFormatError                     a pickle or an archive: opening it could run code
    │   └── MemoryPlanError (MemoryError)             the model does not fit the memory that is left
    ├── TemplateError (ValueError)                    the chat template refused, or cannot be used
    │   └── TemplateLimitError                        the chat template took too long or wrote too much
    ├── OfflineError (ConnectionError)                the network was to be used, and onhand is offline
    ├── DownloadError (OSError)                       a model could not be fetched
    │   └── HashMismatchError (ValueError)            what was fetched is not what was asked for
    ├── StorageError (OSError)                        the disk is full, read-only or gone
    │   └── CacheFileError (ValueError)               the cache file of a conversation is of no use
    ├── GenerationError
    │   ├── ChatBusyError (RuntimeError)              a conversation gives one reply at a time
    │   ├── GrammarError (ValueError)                 a grammar cannot be used, or a reply not go on by it
    │   ├── QueueFullError (RuntimeError)             too many replies wait for a slot
    │   ├── ContextOverflowError (ValueError)         the prompt is longer than the context
    │   ├── NumericalError (ArithmeticError)          the model gave logits that are not numbers
    │   └── ReplyValueError (ValueError)              a reply was to have a value and has none
    └── BackendError (RuntimeError)
        └── BackendUnavailableError                   the hardware or its driver is not here

An error is also the builtin that it resembles, carries its data as attributes, and its message is one sentence
that names the value, the limit and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from onhand.types import FinishReason, MemoryPlan


class OnhandError(Exception):
    """The root of the tree. Catching it catches everything that onhand raises on purpose."""


class OptionError(OnhandError, ValueError):
    """A setting is out of its range. Attributes: name, value, allowed."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(f"{name} is {value!r}; it takes {allowed}")


class ModelError(OnhandError):
    """Something about a model."""


class ModelNotFoundError(ModelError, LookupError):
    """No model of that name is on this device. Attributes: name, suggestions."""

    def __init__(self, name: str, remedy: str, suggestions: Sequence[str] = ()) -> None:
        self.name = name
        self.suggestions = tuple(suggestions)
        nearest = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
        super().__init__(f"there is no model named {name!r} on this device{nearest} {remedy}".rstrip())


class ModelFileNotFoundError(ModelError, FileNotFoundError):
    """There is no such file. Attribute: path."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        super().__init__(f"there is no file {self.path.name!r} in {self.path.absolute().parent}")


class ModelExistsError(ModelError, FileExistsError):
    """The name is taken by another model. Attribute: name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"a different model is already named {name!r}: choose another name, or remove that one first")


class ModelFormatError(ModelError, ValueError):
    """The file is not what it claims to be. Attributes: path, problem."""

    def __init__(self, path: Path | str, problem: str) -> None:
        self.path = Path(path)
        self.problem = problem
        super().__init__(f"{self.path.name}: {problem}")


class UnsupportedArchitectureError(ModelFormatError):
    """A sound file of a model that we cannot run. Attributes: architecture, supported."""

    def __init__(self, path: Path | str, architecture: str, supported: Sequence[str], detail: str = "") -> None:
        self.architecture = architecture
        self.supported = tuple(supported)
        why = f" ({detail})" if detail else ""
        super().__init__(
            path, f"architecture {architecture!r} is not supported{why}; supported are {', '.join(supported)}"
        )


class UnsupportedQuantizationError(ModelFormatError):
    """A sound file with a block type that we cannot read. Attributes: tensor, type_name, supported."""

    def __init__(self, path: Path | str, tensor: str, type_name: str, supported: Sequence[str]) -> None:
        self.tensor = tensor
        self.type_name = type_name
        self.supported = tuple(supported)
        super().__init__(
            path,
            f"tensor {tensor!r} is stored as {type_name}, which is not read; readable are {', '.join(supported)}",
        )


class UnsafeFormatError(ModelFormatError):
    """A pickle or an archive: opening it could run code, so it is never opened."""


class MemoryPlanError(ModelError, MemoryError):
    """The model does not fit the memory that is left; nothing of it was loaded. Attribute: plan."""

    def __init__(self, name: str, plan: MemoryPlan) -> None:
        self.plan = plan
        windows = "a window" if plan.slots == 1 else f"{plan.slots} windows"
        parts = (plan.weights_bytes, plan.kv_bytes, plan.overhead_bytes, plan.total_bytes, plan.available_bytes or 0)
        weights, kv, overhead, total, available = (f"{size / 1e6:,.0f} MB" for size in parts)
        super().__init__(
            f"{name} takes {total} of memory with {windows} of {plan.window_tokens} tokens "
            f"(weights {weights}, KV cache {kv}, overhead {overhead}), "
            f'and {plan.limited_by} leaves {available}: {plan.remedy}; oversize="load" loads it all the same '
            "(on the command line: --context, --oversize)"
        )


class TemplateError(OnhandError, ValueError):
    """The chat template refused these messages, or cannot be compiled. Attribute: problem."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"chat template: {problem}")


class TemplateLimitError(TemplateError):
    """The chat template took too long or wrote too much."""


class OfflineError(OnhandError, ConnectionError):
    """The network was to be used, and onhand is offline; nothing was sent. Attributes: host, port; None: not known."""

    def __init__(
        self,
        what: str,
        host: str | None = None,
        port: int | None = None,
        remedy: str = "onhand is offline; to allow it, unset ONHAND_OFFLINE or end onhand.offline()",
    ) -> None:
        self.host = host
        self.port = port
        super().__init__(f"{what}: {remedy}")


class DownloadError(OnhandError, OSError):
    """A model could not be fetched. Nothing half-written stays behind."""


class HashMismatchError(DownloadError, ValueError):
    """What was fetched is not what was asked for. Attributes: what, expected, found (sha256, hex)."""

    def __init__(self, what: str, expected: str, found: str) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        super().__init__(
            f"{what} has sha256 {found}, expected {expected}: altered or cut short, and now deleted; fetch it again"
        )


class StorageError(OnhandError, OSError):
    """The disk is full, read-only or gone. Nothing half-written stays behind."""


CacheFileReason = Literal["missing", "unreadable", "damaged", "version", "model", "window", "busy", "not held"]
"""What is wrong with a cache file: the last two are not the file's fault, "not held" is of one that was to be saved."""


class CacheFileError(StorageError, ValueError):
    """The cache file of a conversation is of no use, or could not be made. Attributes: path, reason.

    The conversation is as it was, and needs no file: its next turn is read from the beginning.
    """

    def __init__(self, path: Path | str, reason: CacheFileReason, problem: str) -> None:
        self.path = Path(path)
        self.reason = reason
        super().__init__(f"{self.path.name}: {problem}; the conversation goes on without it and is read anew")


class GenerationError(OnhandError):
    """A reply could not be generated. The conversation is as it was before the question."""


class ChatBusyError(GenerationError, RuntimeError):
    """A conversation gives one reply at a time, and another thread waits for one."""

    def __init__(self) -> None:
        super().__init__("this conversation is in the middle of a reply: wait for it, cancel it, or fork the chat")


class GrammarError(GenerationError, ValueError):
    """A reply cannot be held to a grammar. Attributes: kind (of grammar), problem."""

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        self.problem = problem
        super().__init__(f"a reply cannot be held to this {kind.replace('_', ' ')}: {problem}")


class QueueFullError(GenerationError, RuntimeError):
    """Too many replies wait for a slot. Attributes: waiting, limit."""

    def __init__(self, waiting: int, limit: int) -> None:
        self.waiting = waiting
        self.limit = limit
        super().__init__(f"{waiting} replies wait already, the limit is {limit}: ask again later, or close some")


class ContextOverflowError(GenerationError, ValueError):
    """The prompt is longer than the context. Attributes: prompt_tokens, context_tokens."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the context holds {context_tokens}, one of them for the reply: "
            "shorten it, begin a new conversation, or, if the model was trained for more, open it with a larger context"
        )


class NumericalError(GenerationError, ArithmeticError):
    """The model gave logits that are not numbers. Attribute: step, the tokens generated before it."""

    def __init__(self, step: int, problem: str) -> None:
        self.step = step
        super().__init__(
            f"the model's output is not usable after {step} tokens: {problem}; no token was made up for it"
        )


class ReplyValueError(GenerationError, ValueError):
    """A reply was to have a value and has none. Attributes: text (of the reply), finish_reason, problem."""

    def __init__(self, text: str, finish_reason: FinishReason, problem: str) -> None:
        self.text = text
        self.finish_reason = finish_reason
        self.problem = problem
        remedy = "; allow it more max_tokens" if finish_reason == "length" else ""
        super().__init__(f"the reply has no such value: {problem}{remedy}")


class BackendError(OnhandError, RuntimeError):
    """A backend failed. Attribute: backend."""

    def __init__(self, backend: str, problem: str) -> None:
        self.backend = backend
        super().__init__(f"backend {backend}: {problem}")


class BackendUnavailableError(BackendError):
    """The hardware or its driver is not here; the message says what is missing and how to get it."""
