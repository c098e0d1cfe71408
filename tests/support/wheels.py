"""Wheels of one file, as a package index would hold them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from onhand.library.catalog import PipSource

MEMBER = "tiny_model/tiny.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, content: bytes, member: str = MEMBER) -> Path:
    """A wheel of one file, as an index would hold it."""
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in files.items()}
    record = "".join(
        f"{name},sha256={digest.decode().rstrip('=')},{len(files[name])}\n" for name, digest in digests.items()
    )
    files[f"{info}/RECORD"] = record.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def source_of(wheel: Path, content: bytes, member: str = MEMBER) -> PipSource:
    return PipSource(
        distribution="tiny-model",
        version="1.0",
        member=member,
        wheel_sha256=sha256(wheel.read_bytes()),
        file_sha256=sha256(content),
    )
