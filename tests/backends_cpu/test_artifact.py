"""The compiled form is built once, from just what it says, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from onhand.errors import ModelFormatError, StorageError
from onhand.formats.package import ModelPackage
from onhand_cpu import artifact
from onhand_cpu.artifact import artifact_folder, compile_package
from support.packages import package_of, tiny_package
from support.tiny import write_tiny


def stamp(package: ModelPackage) -> int:
    return (artifact_folder(package) / "decoder.bin").stat().st_mtime_ns


def test_a_current_form_is_left_alone(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    compile_package(package)
    first = stamp(package)
    compile_package(package)
    assert stamp(package) == first


def test_other_weights_are_compiled_again(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    compile_package(package)
    before = (artifact_folder(package) / "decoder.bin").read_bytes()
    package.weights.unlink()
    other = package_of(write_tiny(tmp_path / "other.gguf", seed=1), package.folder)
    compile_package(other)
    assert (artifact_folder(other) / "decoder.bin").read_bytes() != before


def test_another_runtime_or_format_version_compiles_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tiny_package(tmp_path)
    compile_package(package)
    first = stamp(package)
    monkeypatch.setattr(onnxruntime, "__version__", "99.0")
    compile_package(package)
    second = stamp(package)
    monkeypatch.setattr(artifact, "ARTIFACT_FORMAT", 99)
    compile_package(package)
    assert len({first, second, stamp(package)}) == 3


@pytest.mark.parametrize("name", ["decoder.onnx", "decoder.bin", "exact.onnx", "decoder-kv8.onnx", "manifest.json"])
def test_a_form_that_was_cut_short_is_compiled_again(name: str, tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    compile_package(package)
    path = artifact_folder(package) / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    compile_package(package)
    assert path.read_bytes() == whole


def test_weights_that_are_no_numbers_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "bad.gguf")
    data = bytearray(source.read_bytes())
    data[-20:-18] = b"\xff\x7f"  # the scale of one of the last blocks becomes a NaN
    source.write_bytes(data)
    package = package_of(source, tmp_path / "bad")
    with pytest.raises(ModelFormatError, match="not numbers"):
        compile_package(package)
    assert sorted(path.name for path in package.folder.iterdir()) == ["model.json", "weights.gguf"]


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    (package.folder / "cpu.part-0123").mkdir()
    (package.folder / "cpu.part-0123" / "decoder.bin").write_bytes(b"half")
    compile_package(package)
    assert sorted(path.name for path in package.folder.iterdir()) == ["cpu", "model.json", "weights.gguf"]


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    compile_package(tiny_package(tmp_path), lambda what, done, total: seen.append((what, done, total)))
    assert seen
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert all(0 < done <= total for _, done, total in seen)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on file sizes stands in for the disk's end: both fail the write with an error."""
    package = tiny_package(tmp_path)
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from onhand.errors import ModelFormatError, StorageError\n"
        "from onhand.formats.package import ModelPackage\n"
        "from onhand_cpu.artifact import compile_package\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "try:\n    compile_package(ModelPackage.open(Path(sys.argv[1])))\n"
        "except StorageError as error:\n    print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(package.folder)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("refused"), done.stderr
    assert sorted(path.name for path in package.folder.iterdir()) == ["model.json", "weights.gguf"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_a_typed_error(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    package.folder.chmod(0o500)
    with pytest.raises(StorageError):
        compile_package(package)
