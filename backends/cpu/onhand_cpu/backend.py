"""The backend that `onhand.backends` finds under the name "cpu"."""

from __future__ import annotations

import os
import platform

import onnxruntime as ort

from onhand.backends import MemoryNeeds, Probe
from onhand.errors import BackendError, OptionError
from onhand.formats.gguf import GgufFile
from onhand.formats.gguf_spec import read_spec
from onhand.formats.package import ModelPackage
from onhand.formats.spec import DecoderSpec
from onhand.options import DEFAULT_CONTEXT_TOKENS, CacheOptions, DeviceOptions
from onhand.types import Progress
from onhand_cpu.artifact import artifact_folder, compile_package
from onhand_cpu.calibration import kv_scales
from onhand_cpu.memory import memory_needs
from onhand_cpu.runtime import CpuRuntime
from onhand_cpu.threads import default_threads


class CpuBackend:
    """ONNX Runtime's CPU provider."""

    name = "cpu"

    def probe(self) -> Probe:
        """Always available: what this machine's processor offers."""
        telemetry = "off" if os.environ.get("ORT_DISABLE_TELEMETRY") == "1" else "on: set ORT_DISABLE_TELEMETRY=1"
        facts = {
            "onnxruntime": ort.__version__,
            "its telemetry": telemetry,
            "threads": str(default_threads()),
            "processor": platform.machine(),
        }
        return Probe(available=True, detail=f"{facts['threads']} threads, ONNX Runtime {ort.__version__}", facts=facts)

    def memory_needs(
        self, file: GgufFile, spec: DecoderSpec, *, window_tokens: int, slots: int, kv_bits: int
    ) -> MemoryNeeds:
        """What a model will take with such a cache, within a tenth."""
        return memory_needs(file, spec, window_tokens=window_tokens, slots=slots, kv_bits=kv_bits)

    def prepare(self, package: ModelPackage, progress: Progress | None = None) -> None:
        """Compile the weights into the package's folder, unless that was done and nothing has changed since."""
        compile_package(package, progress)

    def load(self, package: ModelPackage, cache: CacheOptions, device: DeviceOptions) -> CpuRuntime:
        """Load a prepared package; one that is first asked for an 8-bit KV cache is calibrated, which takes seconds.

        Raises OptionError for a context longer than the model's, BackendError.
        """
        with GgufFile.open(package.weights) as file:
            spec = read_spec(file)
        context = cache.context_tokens or min(spec.context_tokens, DEFAULT_CONTEXT_TOKENS)
        if context > spec.context_tokens:
            raise OptionError(
                "context_tokens", context, f"at most {spec.context_tokens}, what {package.name} was trained for"
            )
        model = artifact_folder(package) / ("decoder.onnx" if cache.kv_bits == 32 else "decoder-kv8.onnx")
        if not model.exists():
            raise BackendError(self.name, f"{package.name} was not prepared: call prepare first")
        threads = device.threads or default_threads()
        available = os.cpu_count() or threads
        if threads > available:
            raise OptionError("threads", threads, f"at most {available}, the CPUs of this machine")
        scales = None if cache.kv_bits == 32 else kv_scales(package, spec, threads=threads)
        return CpuRuntime(spec, model, threads=threads, context_tokens=context, slots=cache.slots, scales=scales)


backend = CpuBackend()
