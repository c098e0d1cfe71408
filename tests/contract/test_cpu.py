"""The CPU backend meets the contract, on a tiny model of every architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from onhand.formats.package import ModelPackage
from onhand.options import CacheOptions, DeviceOptions
from onhand.testing import BackendContract
from onhand_cpu import CpuRuntime, backend
from support.packages import tiny_package
from support.tiny import ARCHITECTURES


class TestCpu(BackendContract):
    tolerance = 0

    @pytest.fixture(params=ARCHITECTURES, autouse=True)
    def _package(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.package: ModelPackage = tiny_package(tmp_path, request.param)
        backend.prepare(self.package)

    def open_runtime(self) -> CpuRuntime:
        return backend.load(self.package, CacheOptions(context_tokens=96, slots=2), DeviceOptions(threads=2))
