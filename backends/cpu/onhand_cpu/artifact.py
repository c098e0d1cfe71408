"""The compiled form of a model for the CPU, kept in the model's package folder and rebuilt when anything changes.

cpu/
  manifest.json    what it was built from and with; written last, so that a folder with one is whole
  decoder.onnx     the graph that multiplies in int8
  exact.onnx       the same with float32 products, to check against (see bench/accuracy.py)
  decoder-kv8.onnx, exact-kv8.onnx
                   both with an 8-bit KV cache
  decoder.bin      the tensors of all of them
  kv-scales.npy    scales of the 8-bit KV cache, from the first time that somebody asks for one
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from onhand.errors import StorageError
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage, read_json, write_json, write_whole
from onhand.formats.spec import DecoderSpec
from onhand.types import Progress

if TYPE_CHECKING:
    import onnx

ARTIFACT_FORMAT = 6
"""Raise it with every change of the graph or of how weights are carried over."""

MANIFEST = "manifest.json"
KV_SCALES = "kv-scales.npy"
INT8, FLOAT32 = 4, 1  # MatMulNBits' accuracy levels


def artifact_folder(package: ModelPackage) -> Path:
    """Where the compiled form lies."""
    return package.folder / "cpu"


def manifest_of(package: ModelPackage, spec: DecoderSpec) -> dict[str, object]:
    """What a compiled form depends on; when any of it changes the form is stale."""
    described = json.dumps(dataclasses.asdict(spec), sort_keys=True)
    return {
        "format": ARTIFACT_FORMAT,
        "source_sha256": package.sha256,
        "spec_sha256": hashlib.sha256(described.encode()).hexdigest(),
        "onnxruntime": ort.__version__,
    }


def is_current(package: ModelPackage, spec: DecoderSpec) -> bool:
    """Whether the compiled form is there and built from just this with just these versions."""
    folder = artifact_folder(package)
    found = read_json(folder / MANIFEST)
    return found is not None and found == manifest_of(package, spec) | {"file_bytes": _file_bytes(folder)}


def _file_bytes(folder: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_size
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST and not path.name.startswith(KV_SCALES)
    }


def compile_package(package: ModelPackage, progress: Progress | None = None) -> None:
    """Build the compiled form unless it is current. Raises ModelFormatError, StorageError; leaves no half of one.

    One at a time for each package: whoever opens a model holds its lock, so what a killed process left can go.
    """
    with GgufFile.open(package.weights) as file:
        spec = read_spec(file)
        if is_current(package, spec):
            return
        target = artifact_folder(package)
        part = target.with_name(f"{target.name}.part-{secrets.token_hex(8)}")
        for leftover in package.folder.glob(f"{target.name}.part-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            part.mkdir()
            _build(file, spec, part, progress)
            write_json(part / MANIFEST, manifest_of(package, spec) | {"file_bytes": _file_bytes(part)})
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        except OSError as error:
            if is_current(package, spec):
                return  # another process was quicker
            raise StorageError(
                f"the compiled model cannot be written to {target}: {error.strerror}; make room"
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _build(file: GgufFile, spec: DecoderSpec, folder: Path, progress: Progress | None) -> None:
    # Imported here because it brings onnx, which takes a quarter of a second that a later start does not need.
    from onhand_cpu.decoder import build_decoder, with_int8_cache
    from onhand_cpu.graph import TensorFile

    total = sum(tensor.nbytes for tensor in file.tensors.values())
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress("compiling for the CPU", min(done, total), total)

    with TensorFile(folder / "decoder.bin") as tensors:
        model = build_decoder(spec, file, tensors, accuracy_level=INT8, advance=advance)
    for products in ("decoder", "exact"):
        _write_model(folder / f"{products}.onnx", model)
        _write_model(folder / f"{products}-kv8.onnx", with_int8_cache(model))
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = FLOAT32


def _write_model(path: Path, model: onnx.ModelProto) -> None:
    write_whole(path, lambda part: part.write_bytes(model.SerializeToString()))
