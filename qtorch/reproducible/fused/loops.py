"""Steps in C: loops over the elements of arrays with one shape, and sums."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cache
from math import prod
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from qcore.trace import C_TYPES, Value
from qcore.writer import Writer
from qtorch._kernels import products, source, store
from qtorch.linalg.native import Native, NoKernelError
from qtorch.reproducible.fused.trace import ArrayValue, Number, Shape, in_order

TEMPLATE = Path(store.__file__).with_name("loops.c")
OUTER = 3  # dimensions outside the innermost one, as in `loops.c`


def loop_for(results: Sequence[ArrayValue], is_memory: Container[str]) -> Native:
    """The loop that computes nodes of one shape; its sizes and the strides of all arrays are arguments.

    `is_memory` has the names of nodes that are in memory already. It raises NoKernelError without a compiler, and for
    too many dimensions.
    """
    order = in_order(results, is_memory)
    read = [node for node in order if node.name in is_memory]
    shapes = [node.shape for node in [*read, *results]]
    sizes, strides = _as_loop(results[0].shape, shapes)
    if len(sizes) > OUTER + 1:
        raise NoKernelError
    missing = OUTER + 1 - len(sizes)
    table = [(1,) * missing + sizes, *((0,) * missing + each[:-1] for each in strides)]
    numbers = list(dict.fromkeys(one for node in order for one in node.operands if isinstance(one, Number)))
    function = _function(_source(order, read, results, numbers, [each[-1] for each in strides]))
    if function is None:
        raise NoKernelError
    flat = np.array([number for row in table for number in row], np.int64)
    values = np.array([one.value for one in numbers], np.float64)
    return Native(function, flat, values, [node.name for node in read], results)


def sums_of(node: ArrayValue, read: Sequence[str], shape: Sequence[int], axes: Sequence[int]) -> Native:
    """The sums of an array along axes, or of its products with a second array; NoKernelError as for `loop_for`."""
    function = products.tree_sums_step()
    if function is None or len(shape) > products.MOST_AXES:
        raise NoKernelError
    sizes = np.array([len(shape), len(axes), *shape, *axes], np.int64)
    return Native(function, sizes, np.zeros(0), [*read, None][:2], [node])


@cache
def _function(text: str) -> int | None:
    return store.address(text, "step")


def _as_loop(shape: Shape, shapes: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """The sizes of a loop over a shape, and the strides of contiguous arrays that broadcast to it.

    Neighbouring dimensions are one where they are one for all arrays.
    """
    columns = [(size, strides) for size, *strides in zip(shape, *(_strides(one, shape) for one in shapes), strict=True)]
    merged: list[tuple[int, list[int]]] = []
    for size, strides in columns:
        if size == 1:
            continue
        if merged and all(outer == inner * size for outer, inner in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = merged[-1][0] * size, strides
        else:
            merged.append((size, strides))
    merged = merged or [(1, [0] * len(shapes))]
    return tuple([size for size, _ in merged]), [tuple(each) for each in zip(*(one[1] for one in merged), strict=True)]


def _strides(own: Shape, shape: Shape) -> list[int]:
    own = (1,) * (len(shape) - len(own)) + own
    return [0 if size == 1 else prod(own[axis + 1 :]) for axis, size in enumerate(own)]


def _source(
    order: Sequence[ArrayValue],
    read: Sequence[ArrayValue],
    results: Sequence[ArrayValue],
    numbers: Sequence[Number],
    inner: Sequence[int],
) -> str:
    """C, with the same names for the same computation."""
    names: dict[Any, str] = {node.name: f"v{place}" for place, node in enumerate(order)}
    names |= {number: f"n{place}" for place, number in enumerate(numbers)}
    before = [
        f"const {C_TYPES[number.dtype]} {names[number]} = ({C_TYPES[number.dtype]})numbers[{place}];"
        for place, number in enumerate(numbers)
    ]
    statements = []
    for place, node in enumerate(read):
        kind, name = C_TYPES[node.dtype], names[node.name]
        before.append(f"const {kind}* const a{place} = (const {kind}*)x[{place}];")
        where = statements if inner[place] else before
        where.append(f"const {kind} {name} = a{place}[{'j' if inner[place] else '0'}];")
    for place, result in enumerate(results, len(read)):
        before.append(f"{C_TYPES[result.dtype]}* const a{place} = ({C_TYPES[result.dtype]}*)x[{place}];")
    loaded = {node.name for node in read}
    statements += [_Loop(names).declared(node) for node in order if node.name not in loaded]
    statements += [f"a{place}[j] = {names[one.name]};" for place, one in enumerate(results, len(read))]
    arrays = [*read, *results]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        values=source.VALUES.read_text(encoding="utf-8"),
        arrays=len(arrays),
        before="\n    ".join(before),
        statements="\n        ".join(statements),
        bytes=", ".join(f"sizeof({C_TYPES[node.dtype]})" for node in arrays),
        inner=", ".join(map(str, inner)),
    )


class _Loop(Writer):
    """C with given names of nodes and numbers; other numbers are texts already."""

    def __init__(self, names: dict[Any, str]) -> None:
        self.names = names

    def name(self, value: Value) -> str:
        return self.names[value.name]

    def part(self, part: Any, of: Value) -> str:
        return self.name(part) if isinstance(part, ArrayValue) else self.names.get(part) or part
