"""The two seams between onhand and what runs a model, and the registry of backends.

A backend is found by the entry point group `onhand.backends`; each entry names an object that meets `Backend`.
The SDK never imports a backend by name.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from onhand.errors import BackendUnavailableError, OptionError
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.types import Event, Message, Progress, ToolOffer

if TYPE_CHECKING:
    from onhand.formats.gguf import GgufFile
    from onhand.formats.package import ModelPackage
    from onhand.formats.spec import DecoderSpec

ENTRY_POINT_GROUP = "onhand.backends"

Logits = npt.NDArray[np.float32]
"""(rows, vocab) float32; valid until the next call of the runtime that gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What a runtime's KV cache holds: conversations (slots), tokens in each, bytes of KV per token and slot.

    slides: whether `evict` works. Where an architecture or a device keeps keys that cannot be moved, windows that are
    full are recomputed or refused.
    """

    slots: int
    tokens: int
    bytes_per_token: int
    slides: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens to append to one slot. rows says for which of them logits are wanted."""

    slot: int
    tokens: Sequence[int]
    rows: Literal["none", "last", "all"] = "last"


Batch = Sequence[Chunk]
"""Chunks of different slots, any number of tokens each, at least one."""

LayerKv = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""Keys and values of one layer, each (kv_heads, tokens, head_size) float32; keys are rotated to their places."""


class DecoderRuntime(Protocol):
    """A loaded decoder: token ids in, logits out. One caller (the scheduler), one thread.

    `forward` appends each chunk to its slot and returns the wanted rows in the order of the batch. A slot never holds
    more than cache.tokens; whoever calls sees to that, and a call that would break it raises ContextOverflowError and
    changes nothing. The logits of a token depend only on the tokens before it in its slot: not on how they were
    cut into chunks, what other slots hold, or what was truncated. `onhand.runtime_checks` has the refusals.
    """

    @property
    def spec(self) -> DecoderSpec:
        """The architecture."""

    @property
    def cache(self) -> CacheShape:
        """The size of the KV cache."""

    def forward(self, batch: Batch) -> Logits:
        """Append tokens; give logits. Raises ContextOverflowError, BackendError."""

    def length(self, slot: int) -> int:
        """How many tokens the slot holds."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the slot's first `length` tokens. Raises OptionError when it holds fewer."""

    def evict(self, slot: int, first: int, count: int) -> None:
        """Take `count` tokens out of a slot, from place `first` on; those behind move up and count as that much nearer.

        Keys and values of what stays are not computed anew: they still know of what was evicted. Keys are rotated to
        their new places, each layer by its own RoPE (after StreamingLLM, Xiao et al. 2024). Raises OptionError. Never
        called where cache.slides is false.
        """

    def copy(self, source: int, target: int, length: int) -> None:
        """Make a slot hold the first `length` tokens of another, and nothing else. Raises OptionError."""

    def export(self, slot: int) -> Iterator[LayerKv]:
        """What the slot holds, layer by layer; good until the runtime does anything else. Raises OptionError."""

    def restore(self, slot: int, layers: Iterable[LayerKv], tokens: int) -> None:
        """Make a slot hold so many tokens as `export` gave them, here or elsewhere, and nothing else.

        When that fails, be it `layers` that raises, the slot holds nothing. Raises OptionError for layers of other
        shapes than the model's, ContextOverflowError.
        """

    def close(self) -> None:
        """Give back memory and threads. Closing twice is allowed."""


@runtime_checkable
class ChatRuntime(Protocol):
    """Messages in, events out: what a decoder becomes through `decoding.TokenChat`; what some systems are natively."""

    def stream(
        self,
        messages: Sequence[Message],
        options: GenerationOptions,
        cancel: threading.Event | None = None,
        tools: ToolOffer | None = None,
    ) -> Generator[Event, None, None]:
        """Stream a reply. Closing the generator cancels it within one step, also while the prompt is being read.

        cancel: set by any thread, ends it as soon, with what it has and the finish_reason "cancelled". tools: what it
        may call; a reply that does has ToolCallEvents and the finish_reason "tool_calls".
        """

    @property
    def context_tokens(self) -> int:
        """The window: the most tokens of a conversation that the model sees at a time."""

    def count(self, messages: Sequence[Message], tools: ToolOffer | None = None) -> int:
        """How many tokens the prompt has that `stream` makes of the messages. Raises TemplateError."""

    def close(self) -> None:
        """Give back memory and threads. Closing twice is allowed."""


@runtime_checkable
class CacheKeeper(Protocol):
    """A ChatRuntime that can write its KV cache of a conversation to a file."""

    def save_cache(self, messages: Sequence[Message], path: Path, tools: ToolOffer | None = None) -> None:
        """Write what is held of a conversation, whole or not at all. Raises CacheFileError, StorageError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a backend finds on this machine without loading a model.

    available: whether it can run here. detail: the hardware found, or what is missing. remedy: what to do about that.
    facts: what `onhand doctor` prints, name to value.
    """

    available: bool
    detail: str
    remedy: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.detail} ({self.remedy})" if self.remedy else self.detail


@runtime_checkable
class Backend(Protocol):
    """One way to run a decoder on this machine."""

    @property
    def name(self) -> str:
        """The name that `device=` takes."""

    def probe(self) -> Probe:
        """Look at the machine. Never raises, loads no model, takes milliseconds."""

    def prepare(self, package: ModelPackage, progress: Progress | None = None) -> None:
        """Compile the package's weights into its folder, unless that was done and nothing has changed since."""

    def load(self, package: ModelPackage, cache: CacheOptions, device: DeviceOptions) -> DecoderRuntime:
        """Load a prepared package. Raises BackendError, ModelFormatError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What a loaded model takes of memory that the system cannot take back, in bytes.

    weights: as the backend holds them. kv: of every slot at the full window. overhead: all else, at its most while
    replies are generated. mapped: of files that are mapped besides, which take memory only where nobody else needs it.
    """

    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int
    mapped_bytes: int = 0


@runtime_checkable
class MemoryPlanner(Protocol):
    """What a backend may be too: one that knows before it loads a model what memory it will take.

    Models of a backend that is none are loaded without a plan, and never refused.
    """

    def memory_needs(
        self, file: GgufFile, spec: DecoderSpec, *, window_tokens: int, slots: int, kv_bits: int
    ) -> MemoryNeeds:
        """What the model will take with such a cache, within a tenth; grows with the window. Reads the header alone."""


# What an import raises: of a package that is missing, or made for another Python or numpy; of a library that cannot be
# opened; of a driver that is not there; of code with a slip in it. A backend is other people's code, and one that is
# broken must not take the others along.
_IMPORT_FAILURES = (
    ImportError,
    OSError,
    RuntimeError,
    AttributeError,
    NameError,
    SyntaxError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
)


class UnusableBackend:
    """Stands in for a backend that is installed and cannot be imported: its probe says why, and what to do."""

    def __init__(self, entry: EntryPoint, problem: str) -> None:
        self.name = entry.name
        package = entry.dist.name if entry.dist is not None else entry.value
        remedy = f"run: pip install --force-reinstall {package}, or: pip uninstall {package}"
        if package == "onhand":  # an extra of it brings what the backend needs
            remedy = f'run: pip install "onhand[{entry.name}]"'
        self._probe = Probe(available=False, detail=f"it cannot be imported: {problem}", remedy=remedy)

    def probe(self) -> Probe:
        """Why it cannot be used."""
        return self._probe

    def prepare(self, package: ModelPackage, progress: Progress | None = None) -> NoReturn:
        """Raise BackendUnavailableError."""
        raise BackendUnavailableError(self.name, str(self._probe))

    def load(self, package: ModelPackage, cache: CacheOptions, device: DeviceOptions) -> NoReturn:
        """Raise BackendUnavailableError."""
        raise BackendUnavailableError(self.name, str(self._probe))


def available_backends() -> dict[str, Backend]:
    """Every installed backend by name, in the order in which they are tried: others first, the CPU last.

    One that cannot be imported is among them, and its probe says why.
    """
    found: dict[str, Backend] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        backend = _imported(entry)
        if isinstance(backend, UnusableBackend):
            found.setdefault(entry.name, backend)
        else:
            found[entry.name] = backend
    return dict(sorted(found.items(), key=lambda item: (item[0] == "cpu", item[0])))


def _imported(entry: EntryPoint) -> Backend:
    try:
        backend = entry.load()
    except _IMPORT_FAILURES as error:
        return UnusableBackend(entry, f"{type(error).__name__}: {' '.join(str(error).split())}")
    if isinstance(backend, type) or not isinstance(backend, Backend):
        return UnusableBackend(entry, f"{entry.value} is no backend but a {type(backend).__name__}")
    return backend


def choose_backend(device: str) -> Backend:
    """The backend of that name, or for "auto" the first that is available here.

    Raises OptionError for a name that no backend has, BackendUnavailableError when it cannot run here.
    """
    backends = available_backends()
    if device != "auto" and device not in backends:
        raise OptionError("device", device, f"auto or one of {', '.join(backends) or 'none: no backend is installed'}")
    tried = backends if device == "auto" else {device: backends[device]}
    reasons = []
    for name, backend in tried.items():
        probe = backend.probe()
        if probe.available:
            return backend
        reasons.append(str(probe) if name == device else f"{name}: {probe}")
    why = "; ".join(reasons) or 'no backend is installed: pip install "onhand[cpu]"'
    raise BackendUnavailableError(device, why)
