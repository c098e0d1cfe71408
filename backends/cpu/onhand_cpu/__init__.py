"""The CPU backend: ONNX Runtime, the fallback that always works."""

import os

# ONNX Runtime 1.32 reports its use: importing it writes a device id below the user's home and looks up its maker's
# server. `disable_telemetry_events` comes too late; only this, before the first import, stops it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from onhand_cpu.backend import CpuBackend, backend
from onhand_cpu.runtime import CpuRuntime

__all__ = ["CpuBackend", "CpuRuntime", "backend"]
