"""Writes a GGUF file's matrices into a graph, a slab of rows at a time, and adds the nodes that multiply by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onhand.errors import ModelFormatError
from onhand.formats.blocks import dequantize, unpack
from onhand.formats.gguf import GgufFile
from onhand_cpu.graph import Graph
from onhand_cpu.nbits import NBitsLayout, carry, layout_of

Array = npt.NDArray[np.generic]

SLAB_BYTES = 4 << 20  # of the file at a time; unpacked it is a few times as much


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix in the tensor file. layout: None for float32. offsets: where codes, scales and zero points begin."""

    name: str
    rows: int
    columns: int
    layout: NBitsLayout | None
    offsets: tuple[int, ...]


class Weights:
    """The matrices of one GGUF file on their way into one graph.

    accuracy_level: MatMulNBits' own: 4 multiplies in int8, the fast path; 1 in float32, to check against.
    advance: told the bytes of the source that were just carried over.
    """

    def __init__(self, file: GgufFile, graph: Graph, accuracy_level: int, advance: Callable[[int], None]) -> None:
        self._file = file
        self._graph = graph
        self._accuracy_level = accuracy_level
        self._advance = advance

    def vector(self, name: str) -> str:
        """A one-dimensional tensor as float32."""
        return self._graph.store(name, self._floats(name))

    def linear(self, x: str, names: Sequence[str]) -> str:
        """x W^T + b for the matrices of those names stacked: x (1, tokens, columns) -> (1, tokens, all rows)."""
        stored = self.store(names)
        bias = self._bias(names)
        return self.multiply(x, stored, bias)

    def can_stack(self, names: Sequence[str]) -> bool:
        """Whether these matrices are stored alike, so that one product can do for all."""
        return len({self._layout(name) for name in names}) == 1

    def store(self, names: Sequence[str]) -> Stored:
        """Carry matrices of equal columns over, stacked in one."""
        layout = self._layout(names[0])
        tensors = [self._file.tensors[name] for name in names]
        rows, columns = sum(t.shape[0] for t in tensors), tensors[0].shape[1]
        reserve = self._graph.tensors.reserve
        if layout is None:
            offsets: tuple[int, ...] = (reserve(rows * columns * 4),)
        else:
            widths = (layout.blocks * layout.code_bytes, layout.blocks * 4, layout.zero_bytes)
            offsets = tuple(reserve(rows * width) for width in widths)
        ends = list(offsets)
        for name in names:
            for parts in self._slabs(name, layout):
                ends = [self._graph.tensors.write(end, part) for end, part in zip(ends, parts, strict=True)]
        return Stored(names[0], rows, columns, layout, offsets)

    def multiply(self, x: str, stored: Stored, bias: str = "") -> str:
        """x W^T + bias with a stored matrix."""
        g, name, layout = self._graph, stored.name, stored.layout
        if layout is None:
            matrix = g.external(f"{name}.float", np.float32, (stored.rows, stored.columns), stored.offsets[0])
            y = g.contrib("FusedMatMul", [x, matrix], transB=1)
            return g.node("Add", [y, bias]) if bias else y
        codes = (stored.rows, layout.blocks, layout.code_bytes)
        inputs = [
            g.with_block_means(x, layout),
            g.external(f"{name}.codes", np.uint8, codes, stored.offsets[0]),
            g.external(f"{name}.scales", np.float32, codes[:2], stored.offsets[1]),
            self._zero_points(stored, ".zeros"),
            "",
            bias,
        ]
        while not inputs[-1]:
            inputs.pop()
        return g.contrib(
            "MatMulNBits",
            inputs,
            N=stored.rows,
            K=layout.inner,
            bits=layout.bits,
            block_size=layout.block_size,
            accuracy_level=self._accuracy_level,
        )

    def multiply_finely(self, x: str, stored: Stored) -> str:
        """x W^T with nearly no rounding of x, where int8 products would round it to 127 steps of its block's largest.

        A second row holds what the first one's rounding leaves, and the two products are added. The weights are read
        once for both, and reading them is what a product of few rows takes its time for.
        """
        g, layout = self._graph, stored.layout
        if layout is None:
            return self.multiply(x, stored)
        blocks = g.constant("fine.blocks", np.array([0, 0, -1, layout.block_size], np.int64))
        whole = g.constant("fine.whole", np.array([0, 0, -1], np.int64))
        last_axis = g.constant("last_axis", np.array([-1], np.int64))
        split = g.node("Reshape", [x, blocks])
        largest = g.node("ReduceMax", [g.node("Abs", [split]), last_axis], keepdims=1)
        step = g.node("Mul", [largest, g.constant("fine.step", np.array(1 / 127, np.float32))])
        step = g.node("Max", [step, g.constant("fine.least", np.array(1e-30, np.float32))])
        rounded = g.node("Mul", [g.node("Round", [g.node("Div", [split, step])]), step])
        left = g.node("Sub", [split, rounded])
        rows = g.node("Concat", [g.node("Reshape", [part, whole]) for part in (rounded, left)], axis=0)
        both = self.multiply(rows, stored)
        first_axis = g.constant("first_axis", np.array([0], np.int64))
        return g.node("ReduceSum", [both, first_axis], keepdims=1)

    def gather(self, ids: str, stored: Stored) -> str:
        """Rows of a stored matrix: ids (1, tokens) -> (1, tokens, columns) float32. Shares the bytes of `multiply`."""
        g, name, layout = self._graph, stored.name, stored.layout
        if layout is None:
            matrix = g.external(f"{name}.float", np.float32, (stored.rows, stored.columns), stored.offsets[0])
            return g.node("Gather", [matrix, ids])
        codes = (stored.rows, layout.blocks * layout.code_bytes)
        inputs = [
            g.external(f"{name}.table", np.uint8, codes, stored.offsets[0]),
            ids,
            g.external(f"{name}.table_scales", np.float32, (stored.rows, layout.blocks), stored.offsets[1]),
            self._zero_points(stored, ".table_zeros"),
        ]
        rows = g.contrib(
            "GatherBlockQuantized",
            inputs if inputs[-1] else inputs[:-1],
            bits=layout.bits,
            block_size=layout.block_size,
            quantize_axis=1,
            gather_axis=0,
        )
        return self._fold_offsets(rows, layout) if layout.copies else rows

    def _fold_offsets(self, rows: str, layout: NBitsLayout) -> str:
        """Add what the extra columns hold of each block's offset to the block's own values."""
        g = self._graph
        sizes = [layout.columns, layout.copies * layout.own_blocks]
        sizes.append(layout.blocks * layout.block_size - layout.inner)
        outputs = ["embedding.own", "embedding.extra", "embedding.padding"]
        split = g.constant("embedding.sizes", np.array(sizes, np.int64))
        g.node("Split", [rows, split], outputs, axis=-1)
        shapes = {"own": (layout.own_blocks, layout.block_size), "extra": (layout.copies, layout.own_blocks)}
        own, extra = (
            g.node(
                "Reshape", [f"embedding.{part}", g.constant(f"embedding.{part}_shape", np.array([0, 0, *s], np.int64))]
            )
            for part, s in shapes.items()
        )
        copies_axis = g.constant("embedding.copies_axis", np.array([-2], np.int64))
        last_axis = g.constant("last_axis", np.array([-1], np.int64))
        total = g.node("ReduceSum", [extra, copies_axis], keepdims=0)
        rest = g.node("Div", [total, g.constant("embedding.block", np.array(layout.block_size, np.float32))])
        whole = g.node("Add", [own, g.node("Unsqueeze", [rest, last_axis])])
        return g.node("Reshape", [whole, g.constant("embedding.shape", np.array([0, 0, -1], np.int64))])

    def _zero_points(self, stored: Stored, suffix: str) -> str:
        layout = stored.layout
        if layout is None or not layout.copies:
            return ""
        shape = (stored.rows, layout.zero_bytes)
        return self._graph.external(stored.name + suffix, np.uint8, shape, stored.offsets[2])

    def _layout(self, name: str) -> NBitsLayout | None:
        tensor = self._file.tensors[name]
        return layout_of(tensor.type, tensor.shape[1])

    def _slabs(self, name: str, layout: NBitsLayout | None) -> Iterator[tuple[Array, ...]]:
        """The matrix as it is stored, some rows at a time: codes, scales and zero points, or float32 values alone."""
        block_type, raw = self._file.tensors[name].type, self._file.raw(name)
        step = max(1, SLAB_BYTES // raw.shape[1])
        for first in range(0, raw.shape[0], step):
            slab = raw[first : first + step]
            if layout is None:
                yield (self._finite(name, dequantize(block_type, slab)),)
            else:
                blocks = unpack(block_type, slab)
                for values in (blocks.scales, blocks.offsets):
                    if values is not None:
                        self._finite(name, values)
                rows = carry(blocks, layout)
                yield rows.codes, rows.scales, rows.zeros
            self._advance(slab.nbytes)

    def _finite(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if not np.isfinite(values).all():
            raise ModelFormatError(
                self._file.path, f"tensor {name!r} holds weights that are not numbers: fetch it again"
            )
        return values

    def _bias(self, names: Sequence[str]) -> str:
        biases = [name.removesuffix("weight") + "bias" for name in names]
        if not all(bias in self._file.tensors for bias in biases):
            return ""
        return self._graph.store(biases[0], np.concatenate([self._floats(bias) for bias in biases]))

    def _floats(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._file.tensors[name]
        return self._finite(name, dequantize(tensor.type, self._file.raw(name)).ravel())
