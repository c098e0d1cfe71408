"""A small writer of ONNX graphs whose tensors go straight to a file beside the model, a few rows at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from onhand_cpu.nbits import NBitsLayout

CONTRIB = "com.microsoft"
OPSET = 21
IR_VERSION = 10
PAGE_BYTES = 4096  # external data are mapped, so each tensor begins on a page

_ONNX_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
}


class TensorFile:
    """The file that holds a graph's tensors. Each is reserved whole and written in pieces."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file = path.open("wb")
        self._end = 0

    def reserve(self, size_bytes: int) -> int:
        """The offset of a new region of that size."""
        offset = -(-self._end // PAGE_BYTES) * PAGE_BYTES
        self._end = offset + size_bytes
        return offset

    def write(self, offset: int, values: npt.NDArray[np.generic]) -> int:
        """Write an array's bytes; the offset after them."""
        view = memoryview(np.ascontiguousarray(values).tobytes())
        while view:
            written = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[written:], offset + written
        return offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._end:
            os.truncate(self._file.fileno(), self._end)
            os.fsync(self._file.fileno())  # the manifest, written later, vouches for these bytes
        self._file.close()


class Graph:
    """An ONNX graph under construction. Names of values are strings, as in ONNX; "" is an input left out."""

    def __init__(self, tensors: TensorFile) -> None:
        self.tensors = tensors
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._means: dict[tuple[str, int, int], str] = {}

    def input(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> str:
        """Declare an input; a string in the shape is a dimension that may vary."""
        self._inputs.append(helper.make_tensor_value_info(name, _ONNX_TYPES[np.dtype(dtype)], list(shape)))
        return name

    def output(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> None:
        """Declare a node's output as an output of the graph."""
        self._outputs.append(helper.make_tensor_value_info(name, _ONNX_TYPES[np.dtype(dtype)], list(shape)))

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), *, domain: str = "", **attributes: Any
    ) -> str:
        """Add a node; the name of its first output."""
        names = list(outputs) or [f"v{len(self._nodes)}"]
        self._nodes.append(helper.make_node(op, list(inputs), names, domain=domain, **attributes))
        return names[0]

    def contrib(self, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attributes: Any) -> str:
        """Add a node of ONNX Runtime's own operators."""
        return self.node(op, inputs, outputs, domain=CONTRIB, **attributes)

    def constant(self, name: str, values: npt.NDArray[np.generic]) -> str:
        """A small tensor kept in the graph itself."""
        if name not in self._initializers:
            self._initializers[name] = onnx.numpy_helper.from_array(values, name)
        return name

    def external(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int], offset: int) -> str:
        """A tensor that lies at that offset of the tensor file. Two of different shapes may share the bytes."""
        tensor = TensorProto(name=name, data_type=_ONNX_TYPES[np.dtype(dtype)], dims=list(shape))
        tensor.data_location = TensorProto.EXTERNAL
        length = int(np.prod(shape)) * np.dtype(dtype).itemsize
        for key, value in (("location", self.tensors.name), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        self._initializers[name] = tensor
        return name

    def store(self, name: str, values: npt.NDArray[np.generic]) -> str:
        """A tensor written to the tensor file at once."""
        offset = self.tensors.reserve(values.nbytes)
        self.tensors.write(offset, values)
        return self.external(name, values.dtype, values.shape, offset)

    def with_block_means(self, x: str, layout: NBitsLayout) -> str:
        """x, (1, tokens, columns), with the means of its blocks appended as often as the layout says."""
        if not layout.copies:
            return x
        key = (x, layout.block_size, layout.copies)
        if key not in self._means:
            size = layout.block_size
            split = self.constant(f"blocks_of.{size}", np.array([0, 0, -1, size], np.int64))
            last_axis = self.constant("last_axis", np.array([-1], np.int64))
            # Faster than AveragePool, which hands even a few numbers to the thread pool.
            means = self.node("ReduceMean", [self.node("Reshape", [x, split]), last_axis], keepdims=0)
            self._means[key] = self.node("Concat", [x, *[means] * layout.copies], axis=-1)
        return self._means[key]

    def finish(self) -> onnx.ModelProto:
        """The model, its tensors outside of it."""
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="onhand")
