"""Takes denormal numbers for zero while a graph runs.

Sharp attention makes them: weights of e^-87 and less, whose products cost the processor many times what others do and
add nothing that is ever seen. ONNX Runtime has a setting for its own threads, but the calling thread takes its share
of the work too. Its mode belongs to the program around onhand, which gets it back after every run.

On Linux on x86-64 alone, where glibc and musl agree on the layout of fenv_t. ONNX Runtime's setting does nothing on
ARM.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32

_Environment = ctypes.c_uint32 * 8  # seven words of the x87 unit, then MXCSR
_MXCSR, _FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 7, 1 << 15, 1 << 6
_libm = ctypes.CDLL(None) if SUPPORTED else None


@contextmanager
def no_denormals() -> Iterator[None]:
    """The calling thread takes denormals for zero within the block; does nothing where that is not supported."""
    if _libm is None:
        yield
        return
    before = _Environment()
    _libm.fegetenv(before)
    changed = _Environment(*before)
    changed[_MXCSR] |= _FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO
    _libm.fesetenv(changed)
    try:
        yield
    finally:
        _libm.fesetenv(before)
