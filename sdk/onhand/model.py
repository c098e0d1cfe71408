"""Opens a model of this device and makes conversations with it."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from onhand.backends import Backend, DecoderRuntime, choose_backend
from onhand.chat import Chat
from onhand.decoding.engine import Engine
from onhand.decoding.token_chat import TokenChat
from onhand.decoding.window import Prompt
from onhand.errors import ModelFormatError, OptionError, StorageError, TemplateError
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand.formats.spec import DecoderSpec
from onhand.formats.tokenizer import Tokenizer
from onhand.library import ModelStore, data_folder
from onhand.library import pull as pull_model
from onhand.locks import exclusive
from onhand.memory import give_back
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions, checked_options, checked_text
from onhand.planning import check, plan_memory
from onhand.prompts.encode import PromptEncoder
from onhand.prompts.template import ChatTemplate
from onhand.transcripts import from_plain
from onhand.types import Event, MemoryPlan, Progress


class Model:
    """A loaded model. Made by `open`; a context manager, which closes it.

    backend: the name of the backend that runs it. plan: what it takes of memory, made before it was loaded; None where
    the backend makes none. prompt_policy: how messages are fitted to the model's chat template, for people to read.
    """

    def __init__(
        self,
        package: ModelPackage,
        backend: str,
        runtime: DecoderRuntime,
        tokenizer: Tokenizer,
        cache: CacheOptions,
        draft: DecoderRuntime | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        self.package = package
        self.plan = plan
        self.backend = backend
        self.tokenizer = tokenizer
        self._engine = Engine(runtime, tokenizer, cache, draft=draft)
        encoder, problem = _encoder(tokenizer)
        self._runtime = TokenChat(self._engine, encoder, problem, package.sha256)
        self.prompt_policy = problem if encoder is None else str(encoder.policy)

    @property
    def name(self) -> str:
        """The name under which the model is stored."""
        return self.package.name

    @property
    def spec(self) -> DecoderSpec:
        """The architecture."""
        return self._engine.runtime.spec

    @property
    def context_tokens(self) -> int:
        """The window: the most tokens of a conversation that the model sees at a time."""
        return self._engine.runtime.cache.tokens

    def chat(
        self,
        system: str | None = None,
        options: GenerationOptions | None = None,
        transcript: Sequence[Mapping[str, Any]] = (),
    ) -> Chat:
        """Begin a conversation, or go on with what `Chat.transcript` gave.

        options: for every reply that is not asked with its own. Raises TemplateError for a model that has no chat
        template, or one that cannot be used; OptionError.
        """
        if self._runtime.encoder is None:
            raise TemplateError(self.prompt_policy)
        said = from_plain(transcript)
        return Chat(self._runtime, system, checked_options("options", options, GenerationOptions()), said)

    def complete(
        self, text: str, options: GenerationOptions | None = None, cancel: threading.Event | None = None
    ) -> Generator[Event, None, None]:
        """Continue a text as it stands, with no chat template: what a base model does. Raises as `Chat.stream`.

        cancel: set by any thread, ends the reply within one step, with what it has.
        """
        ids = self.tokenizer.encode(checked_text("text", text))
        if self.tokenizer.add_bos and self.tokenizer.bos_id is not None:
            ids = [self.tokenizer.bos_id, *ids]
        yield from self._engine.stream(Prompt(ids), checked_options("options", options, GenerationOptions()), cancel)

    def acomplete(self, text: str, options: GenerationOptions | None = None) -> AsyncGenerator[Event, None]:
        """`complete` for asyncio; closing the generator, or cancelling who waits for it, cancels the reply."""
        from onhand.asynchronous import bridged

        cancel = threading.Event()
        return bridged(self.complete(text, options, cancel), cancel)

    def load_cache(self, path: str | Path) -> int:
        """Hold again what `Chat.save_cache` wrote, so that the conversation's next turn reads what is new alone.

        Returns how many tokens that spares. Raises CacheFileError, with the reason, for a file that is missing, damaged
        or of another model: nothing is lost, the next turn is read from the beginning.
        """
        return self._runtime.load_cache(Path(path))

    def close(self) -> None:
        """Give back memory and threads. Closing twice is allowed."""
        self._runtime.close()
        give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _encoder(tokenizer: Tokenizer) -> tuple[PromptEncoder | None, str]:
    """The encoder of the model's chat template, or why there is none: then only `complete` works."""
    if not tokenizer.chat_template:
        return None, "it has none: this is a base model; continue text with Model.complete or onhand ask --raw"
    try:
        texts = {token: text for text, token in tokenizer.scaffold_tokens.items()}
        bos, eos = (texts.get(token, "") if token is not None else "" for token in (tokenizer.bos_id, tokenizer.eos_id))
        template = ChatTemplate(tokenizer.chat_template, bos=bos, eos=eos)
        return PromptEncoder(template, tokenizer), ""
    except TemplateError as error:
        return None, error.problem


def open(
    model: str | Path,
    *,
    draft: str | Path | None = None,
    pull: bool = False,
    device: DeviceOptions | str = "auto",
    cache: CacheOptions | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a model: the name of one in the library, or the path of a GGUF file, which joins the library on the way.

    draft: a smaller model of the same tokenizer, whose guesses the model verifies where that is faster; replies stay
    the same. pull: fetch the model first if it is in the catalogue and not on this device; without it nothing is ever
    fetched. The first load compiles the model for its backend; progress is told. Raises ModelNotFoundError,
    ModelFormatError, MemoryPlanError, OfflineError, DownloadError, StorageError, OptionError, BackendError.
    """
    devices = DeviceOptions(device=device) if isinstance(device, str) else device
    devices = checked_options("device", devices, DeviceOptions())
    caching = checked_options("cache", cache, CacheOptions())
    package = _package(model, pull=pull, progress=progress)
    drafting = None if draft is None else _package(draft, pull=False, progress=progress)
    backend = choose_backend(devices.device)
    plan = _plan(package, drafting, backend, caching)
    if devices.oversize == "refuse":
        check(plan, package.name)
    tokenizer = _prepared(package, backend, progress)
    give_back()
    runtime = backend.load(package, caching, devices)
    try:
        guessing = None if drafting is None else _draft(drafting, tokenizer, backend, devices, progress)
        return Model(package, backend.name, runtime, tokenizer, caching, guessing, plan)
    except BaseException:
        runtime.close()
        raise


def _plan(
    package: ModelPackage, draft: ModelPackage | None, backend: Backend, cache: CacheOptions
) -> MemoryPlan | None:
    drafting = None if draft is None else _plan(draft, None, backend, CacheOptions())
    with GgufFile.open(package.weights) as file:
        beside = 0 if drafting is None else drafting.total_bytes
        return plan_memory(backend, file, read_spec(file), cache, name=package.name, beside=beside)


def _prepared(package: ModelPackage, backend: Backend, progress: Progress | None) -> Tokenizer:
    with _alone(package, progress):
        backend.prepare(package, progress)
        return _tokenizer(package)


def _draft(
    package: ModelPackage, tokenizer: Tokenizer, backend: Backend, devices: DeviceOptions, progress: Progress | None
) -> DecoderRuntime:
    if not _prepared(package, backend, progress).speaks_like(tokenizer):
        raise OptionError("draft", package.name, "a model of the same tokenizer: these two number their tokens apart")
    return backend.load(package, CacheOptions(), devices)


def _package(model: str | Path, *, pull: bool, progress: Progress | None) -> ModelPackage:
    store = ModelStore(data_folder())
    if isinstance(model, Path) or _looks_like_a_path(model):
        return store.add(Path(model), None, progress)
    if pull and model not in {package.name for package in store.list()}:
        return pull_model(model, store, progress)
    return store.get(model)


@contextmanager
def _alone(package: ModelPackage, progress: Progress | None) -> Iterator[None]:
    """Whoever else opens this model waits until its compiled form and its tokenizer are there."""
    if os.access(package.folder, os.W_OK):
        with exclusive(package.folder / ".lock", progress):
            yield
    else:
        yield  # nothing can be compiled there, and nothing needs to wait


def _looks_like_a_path(model: str) -> bool:
    if not isinstance(model, str):
        raise OptionError("model", model, "a model's name, or the path of a GGUF file")
    return model.lower().endswith(".gguf") or "/" in model or os.sep in model


def _tokenizer(package: ModelPackage) -> Tokenizer:
    """The model's tokenizer: the one saved in its folder, or rebuilt from the weights and saved there."""
    saved = package.folder / f"tokenizer-{package.sha256[:16]}.npz"
    if saved.exists():
        try:
            return Tokenizer.load(saved)
        except ModelFormatError:
            pass  # damaged or of another version: it is only a copy of what the weights hold
    with GgufFile.open(package.weights) as file:
        tokenizer = Tokenizer.from_gguf(file)
    with suppress(StorageError):  # a copy that cannot be kept costs the next start some time and nothing else
        tokenizer.save(saved)
    return tokenizer
