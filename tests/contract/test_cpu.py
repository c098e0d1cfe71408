"""The CPU backend meets the contract, on a tiny model of every architecture and with either KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from onhand.formats.package import ModelPackage
from onhand.options import CacheOptions, DeviceOptions
from onhand.testing import BackendContract
from onhand_cpu import CpuRuntime, backend
from support.packages import tiny_package
from support.tiny import ARCHITECTURES


class TestCpu(BackendContract):
    tolerance = 0
    kv_bits: Literal[8, 32] = 32

    @pytest.fixture(params=ARCHITECTURES, autouse=True)
    def _package(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.package: ModelPackage = tiny_package(tmp_path, request.param)
        backend.prepare(self.package)

    def open_runtime(self) -> CpuRuntime:
        cache = CacheOptions(context_tokens=96, slots=2, kv_bits=self.kv_bits)
        return backend.load(self.package, cache, DeviceOptions(threads=2))


class TestCpuWith8BitKv(TestCpu):
    kv_bits = 8
