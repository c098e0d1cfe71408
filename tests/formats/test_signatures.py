"""A file that is no GGUF is called what it is, and never opened."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from onhand.errors import UnsafeFormatError
from support.gguf_cases import refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return io.open, (str(self._marker), "w")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("suffix", [".bin", ".pt", ".ckpt", ".safetensors", ".gguf"])
def test_br22_a_pickle_under_any_name_is_refused_and_not_run(tmp_path: Path, protocol: int, suffix: str) -> None:
    marker = tmp_path / "marker"
    for content in (Payload(marker), {"weights": Payload(marker)}, [Payload(marker)]):
        path = tmp_path / f"model{suffix}"
        path.write_bytes(pickle.dumps(content, protocol))

        refused(path, "pickle", "convert it to GGUF first", error=UnsafeFormatError)

    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".pt", ".keras", ".gguf"])
def test_br22_a_zip_is_refused_and_not_extracted(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "in" / f"model{suffix}"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../outside", "")
        archive.writestr("archive/data.pkl", pickle.dumps(Payload(tmp_path / "marker")))

    refused(path, "zip archive", "convert it to GGUF first", error=UnsafeFormatError)

    assert list(tmp_path.iterdir()) == [path.parent]
    assert list(path.parent.iterdir()) == [path]


def test_br22_a_tar_is_refused_and_not_extracted(tmp_path: Path) -> None:
    path = tmp_path / "model.nemo"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))

    refused(path, "tar archive", "convert it to GGUF first", error=UnsafeFormatError)


OTHER_FILES = {
    "empty": (b"", "is empty: fetch it again"),
    "three bytes": (b"GGU", "is not a GGUF file: it begins with b'GGU'"),
    "text": (b"Hello, world", "is not a GGUF file: it begins with b'Hello, w'"),
    "web page": (b"\n<!DOCTYPE html><html>Sign in</html>", "is a web page, for the download went wrong"),
    "error page": (b'<?xml version="1.0"?><Error>AccessDenied</Error>', "is a web page"),
    "server's message": (b'{"error": "rate limited"}', "is JSON, perhaps the message of a download that went wrong"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is a Git LFS pointer"),
    "safetensors": (struct.pack("<Q", 25) + b'{"w":{"dtype":"F32"}}    ', "is a safetensors file: convert it"),
    "old GGML": (b"tjgg\3\0\0\0", "is a GGML file from before GGUF"),
    "zeros": (bytes(4096), "begins with zeros"),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_a_file_of_another_kind_is_called_what_it_is(path: Path, kind: str) -> None:
    content, said = OTHER_FILES[kind]
    path.write_bytes(content)

    refused(path, f"model.gguf: {said}")


@pytest.mark.parametrize(
    "magic", [b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", b"7z\xbc\xaf\x27\x1c", b"\x28\xb5\x2f\xfd", b"\x89HDF\r\n"]
)
def test_other_archives_are_unsafe(path: Path, magic: bytes) -> None:
    path.write_bytes(magic + bytes(64))

    refused(path, "convert it to GGUF first", error=UnsafeFormatError)
