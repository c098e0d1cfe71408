from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onhand.errors import (
    ModelExistsError,
    ModelFormatError,
    ModelNotFoundError,
    OptionError,
    StorageError,
    UnsupportedArchitectureError,
)
from onhand.library import ModelStore
from onhand.library.store import NAME_PATTERN, check_name, name_of
from onhand.locks import exclusive
from support.gguf_writer import write_gguf

Made = Callable[..., Path]


def everything_in(folder: Path) -> set[str]:
    """Every path below a folder but the lock, which stays."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock"}


def test_a_store_that_was_never_written_to_is_empty_and_makes_no_folder(store: ModelStore) -> None:
    assert store.list() == ()
    assert not store.folder.exists()


def test_an_added_model_is_listed_and_found(store: ModelStore, gguf: Made) -> None:
    added = store.add(gguf(), "tiny")
    assert store.list() == (added,)
    assert store.get("tiny") == added
    assert added.weights.read_bytes() == gguf().read_bytes()


def test_a_file_stays_where_it_is_and_shares_its_blocks_with_the_store(store: ModelStore, gguf: Made) -> None:
    source = gguf()
    added = store.add(source, "tiny")
    assert source.samefile(added.weights)


def test_a_symlink_is_followed_and_not_stored(store: ModelStore, gguf: Made, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(gguf())
    assert not store.add(link, "tiny").weights.is_symlink()


def test_a_file_that_cannot_be_linked_is_copied(store: ModelStore, gguf: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_disk(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_disk)
    source = gguf()
    added = store.add(source, "tiny")
    assert not source.samefile(added.weights)
    assert added.weights.read_bytes() == source.read_bytes()


def test_the_same_file_twice_is_added_once(store: ModelStore, gguf: Made) -> None:
    first = store.add(gguf("a.gguf"), "tiny")
    before = first.weights.stat()
    assert store.add(gguf("b.gguf"), "tiny") == first
    assert first.weights.stat() == before


def test_another_model_never_replaces_one_of_the_same_name(store: ModelStore, gguf: Made) -> None:
    first = store.add(gguf(), "tiny")
    with pytest.raises(ModelExistsError, match="tiny"):
        store.add(gguf("other.gguf", seed=1), "tiny")
    assert store.get("tiny") == first


def test_a_file_that_is_no_model_writes_nothing(store: ModelStore, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(ModelFormatError):
        store.add(bad, "bad")
    assert not store.folder.exists()


def test_a_model_that_cannot_be_run_writes_nothing(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitectureError, match="mamba"):
        store.add(write_gguf(tmp_path / "mamba.gguf", {"general.architecture": "mamba"}, {}), "mamba")
    assert not store.folder.exists()


def test_progress_ends_at_its_total(store: ModelStore, gguf: Made) -> None:
    told: list[tuple[str, int, int]] = []
    source = gguf()
    store.add(source, "tiny", lambda *what: told.append(what))
    assert told
    assert told[-1][1] == told[-1][2] == source.stat().st_size


def test_an_unknown_name_suggests_the_nearest_of_those_here_and_of_the_catalogue(store: ModelStore, gguf: Made) -> None:
    store.add(gguf(), "tinyllama")
    with pytest.raises(ModelNotFoundError) as caught:
        store.get("tinylama")
    assert caught.value.suggestions == ("tinyllama",)
    assert "onhand list" in str(caught.value)
    with pytest.raises(ModelNotFoundError, match="smollm2-135m"):
        store.get("SmolLM-135M")


def test_a_name_of_the_catalogue_says_what_to_run(store: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError, match="run: onhand pull smollm2-135m"):
        store.get("smollm2-135m")


def test_a_removed_model_leaves_nothing(store: ModelStore, gguf: Made) -> None:
    source = gguf()
    store.add(source, "tiny")
    store.remove("tiny")
    assert store.list() == ()
    assert everything_in(store.folder) == set()
    assert source.exists()


def test_removing_what_is_not_here_is_an_error(store: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError):
        store.remove("nothing")


BAD_NAMES = [
    "", ".", "..", "../x", "/abs", "a/../../x", "a/b", "a\\b", "C:\\x", "x\0y", "x\n", "CON", "con", "nul.gguf", "x.",
    ".hidden", "-x", "Upper", "é", "a" * 65,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_leave_the_folder_or_mean_a_device_is_refused(
    store: ModelStore, gguf: Made, name: str
) -> None:
    with pytest.raises(OptionError):
        store.add(gguf(), name)
    assert not store.folder.exists()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_no_name_reads_or_deletes_outside_of_the_folder(store: ModelStore, gguf: Made, name: str) -> None:
    store.add(gguf(), "tiny")
    outside = store.folder.parent / "x"
    shutil.copytree(store.folder / "tiny", outside)
    with pytest.raises(ModelNotFoundError):
        store.get(name)
    with pytest.raises(ModelNotFoundError):
        store.remove(name)
    assert outside.exists()


@given(st.text())
def test_a_name_made_of_a_file_name_may_always_name_a_model(text: str) -> None:
    name = name_of(Path(f"{text.replace('/', '')}.gguf"))
    assert NAME_PATTERN.fullmatch(name)


def test_a_file_name_becomes_a_name() -> None:
    assert name_of(Path("SmolLM2 Instruct.Q4_1.gguf")) == "smollm2-instruct.q4_1"
    assert name_of(Path("模型.GGUF")) == "model"


def test_what_a_killed_process_left_is_cleared_away(store: ModelStore, gguf: Made) -> None:
    kept = store.add(gguf(), "tiny")
    for leftover in (".part-1234", ".trash-1234"):
        shutil.copytree(store.folder / "tiny", store.folder / leftover)
    assert ModelStore(store.folder.parent).list() == (kept,)
    assert everything_in(store.folder) == {"tiny", "tiny/model.json", "tiny/weights.gguf"}


def test_what_a_living_process_is_making_is_left_alone(store: ModelStore, gguf: Made) -> None:
    store.add(gguf(), "tiny")
    (store.folder / ".part-1234").mkdir()
    with exclusive(store.folder / ".lock"):
        ModelStore(store.folder.parent)
        assert (store.folder / ".part-1234").exists()


def test_a_writer_waits_for_another_and_says_so(store: ModelStore, gguf: Made) -> None:
    store.add(gguf(), "tiny")
    code = f"import fcntl, sys, time\nf = open({str(store.folder / '.lock')!r})\nfcntl.flock(f, fcntl.LOCK_EX)\n"
    code += "print('held', flush=True)\nsys.stdin.readline()"
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"

        def let_go(what: str, _done: int, _total: int) -> None:
            told.append(what)
            if what.startswith("waiting"):
                other.communicate("\n")

        store.remove("tiny", let_go)
    assert told == ["waiting for another onhand"]
    assert store.list() == ()


def test_a_damaged_model_is_not_listed_says_so_and_can_be_removed(store: ModelStore, gguf: Made) -> None:
    (store.add(gguf(), "tiny").folder / "model.json").write_text("{")
    assert store.list() == ()
    assert store.names() == ("tiny",)
    with pytest.raises(ModelFormatError):
        store.get("tiny")
    store.remove("tiny")
    assert store.names() == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_a_storage_error(store: ModelStore, gguf: Made) -> None:
    store.folder.mkdir(parents=True)
    store.folder.chmod(0o500)
    with pytest.raises(StorageError, match="permission"):
        store.add(gguf(), "tiny")


def test_a_folder_that_is_a_file_is_a_storage_error(tmp_path: Path, gguf: Made) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(StorageError):
        ModelStore(tmp_path / "home").add(gguf(), "tiny")


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_disk_that_fills_up_leaves_nothing_half_written(store: ModelStore, gguf: Made) -> None:
    """A limit on the size of a file makes write() fail as a full disk does, with EFBIG for ENOSPC."""
    source = gguf()
    code = f"""
        import pathlib, resource, signal
        from onhand.errors import StorageError
        from onhand.library import ModelStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        def other_disk(*_): raise OSError(18, "Invalid cross-device link")
        pathlib.Path.hardlink_to = other_disk
        store = ModelStore(pathlib.Path({str(store.folder.parent)!r}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            store.add(pathlib.Path({str(source)!r}), "tiny")
        except StorageError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "ulimit" in done.stdout
    assert everything_in(store.folder) == set()


def test_too_little_room_is_told_before_copying_with_both_numbers(
    store: ModelStore, gguf: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_disk(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_disk)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 5_000_000, 5_000_000))
    with pytest.raises(StorageError, match=r"needs 34 MB and 5 MB are free"):
        store.add(gguf(), "tiny")
    assert everything_in(store.folder) == set()


def test_every_name_that_is_shown_as_valid_passes() -> None:
    for name in ("a", "0", "smollm2-135m", "x_1.gguf", "a" * 64, "console"):
        assert check_name(name) == name
