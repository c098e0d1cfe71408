"""The layers keep to themselves: read from the import statements of every source file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "onhand": ROOT / "sdk/onhand",
    "onhand_cpu": ROOT / "backends/cpu/onhand_cpu",
}

# Of the SDK, what each part may import besides itself and the values at the bottom. A part that is not named may import
# any of those below it in this order.
LAYERS = ["cli", "model", "chat", "library", "decoding", "prompts", "testing", "backends", "formats"]
LAYERS += ["privacy", "home", "locks"]
BOTTOM = {"errors", "types", "grammar", "options"}
SIBLINGS_ALLOWED = {("decoding", "prompts"), ("decoding", "backends"), ("library", "formats")}


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at the top or within a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            yield node.module


def sources(package: str) -> list[Path]:
    found = sorted(PACKAGES[package].rglob("*.py"))
    assert found
    return found


def part_of(module: str) -> str:
    """The part of the SDK that a module of it belongs to: onhand.decoding.sampling -> decoding."""
    return [*module.split("."), "__init__"][1]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_backend_is_imported_by_anything_but_itself(package: str) -> None:
    others = [name for name in PACKAGES if name not in (package, "onhand")]
    for path in sources(package):
        for module in imports(path):
            assert module.split(".")[0] not in others, f"{path} imports {module}"


def test_lower_parts_of_the_sdk_do_not_import_upper_ones() -> None:
    for path in sources("onhand"):
        relative = path.relative_to(PACKAGES["onhand"])
        part = relative.parts[0].removesuffix(".py")
        for module in imports(path):
            if module.split(".")[0] != "onhand" or part == "__init__":
                continue
            other = part_of(module)
            if part in BOTTOM:
                assert other in BOTTOM, f"{relative} imports {module}"
            elif other in LAYERS and part in LAYERS and (part, other) not in SIBLINGS_ALLOWED:
                assert LAYERS.index(part) <= LAYERS.index(other), f"{relative} imports {module}"


def test_a_backend_imports_of_the_sdk_only_the_seam_and_what_lies_below_it() -> None:
    allowed = {"backends", "runtime_checks", "formats", *BOTTOM}
    for path in sources("onhand_cpu"):
        for module in imports(path):
            if module.split(".")[0] == "onhand":
                assert part_of(module) in allowed, f"{path} imports {module}"


def test_nothing_reads_a_pickle_or_runs_text_as_code() -> None:
    """Invariant 9; BR-22."""
    for package in PACKAGES:
        for path in sources(package):
            names = set(imports(path))
            assert not names & {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "torch"}, path
            calls = [
                n.func.id
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            ]
            assert not {"eval", "exec", "compile"} & set(calls), path


def test_the_sdk_opens_no_socket_itself() -> None:
    """What is fetched is fetched by pip, in a process of its own, on the user's word."""
    for package in PACKAGES:
        for path in sources(package):
            networking = {"socket", "urllib", "http", "httpx", "requests", "ftplib", "smtplib"}
            assert not {module.split(".")[0] for module in imports(path)} & networking, path
            used = {
                node.attr
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "asyncio"
            }
            assert used <= {"get_running_loop", "shield"}, path


def test_asyncio_is_loaded_by_those_alone_who_use_it() -> None:
    code = "import sys, onhand.model; assert 'asyncio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_stands_in_pyproject_alone() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for package in PACKAGES:
        for path in sources(package):
            assert f'"{version}"' not in path.read_text(encoding="utf-8"), path
