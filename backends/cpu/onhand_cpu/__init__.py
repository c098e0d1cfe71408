"""The CPU backend: ONNX Runtime, the fallback that always works."""

from onhand_cpu.backend import CpuBackend, backend
from onhand_cpu.runtime import CpuRuntime

__all__ = ["CpuBackend", "CpuRuntime", "backend"]
