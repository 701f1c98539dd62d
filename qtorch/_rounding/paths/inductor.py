"""Rounding and codes in programs that Inductor compiles: the law in its loops, which fuse with their neighbours.

Programs contain the operators `qtorch::round`, `encode` and `decode`. `inline_round`, `inline_encode` and
`inline_decode` replace their calls by loops. The law's own Python runs once for a loop's body, on `Lane`s that record
operations of Inductor; `Body` is the array namespace.

    relu(x) * 1.5 -> qtorch::round        one loop: load, relu, multiply, 26 operations of the law, store

Traced through Dynamo instead, the law would be some forty operations for Dynamo, autograd and Inductor, and Inductor
writes each operation again at every use. A lowering evaluates each operation once.

Where Inductor's loops do not have the bits of the kernels, or are slower, the operator stays a call: see `keeps_bits`,
`is_faster`, `inline_encode` and `inline_decode`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from qcore.formats.text import parse
from qcore.law.shared_scale import magnitudes
from qcore.law.tiles import Tiles, tiles
from qcore.trace import decided
from qtorch._namespace import FLOATS
from qtorch._rounding.paths.operations import DTYPES, lane_dtype
from qtorch._rounding.plan import RoundingPlan, plan_for
from qtorch._torch_internals import Inductor, imports_inductor, inductor

_OPERATIONS = {"+": "add", "-": "sub", "*": "mul", "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor"} | {
    "<<": "bitwise_left_shift",
    ">>": "bitwise_right_shift",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
}


class Lane:
    """A value of a loop's body.

    Attributes:
        body: the body, which keeps one lane for each operation on the same operands.
        value: Inductor's value, which its operations take and return.
    """

    __slots__ = ("body", "value")
    __hash__ = None  # type: ignore[assignment]  # comparisons are operations

    def __init__(self, body: Body, value: Any) -> None:
        self.body = body
        self.value = value

    # fmt: off
    def __add__(self, other: Any) -> Any: return self.body.binary("+", self, other)
    def __radd__(self, other: Any) -> Any: return self.body.binary("+", self, other)
    def __sub__(self, other: Any) -> Any: return self.body.binary("-", self, other)
    def __rsub__(self, other: Any) -> Any: return self.body.binary("-", other, self)
    def __mul__(self, other: Any) -> Any: return self.body.binary("*", self, other)
    def __rmul__(self, other: Any) -> Any: return self.body.binary("*", self, other)
    def __and__(self, other: Any) -> Any: return self.body.binary("&", self, other)
    def __rand__(self, other: Any) -> Any: return self.body.binary("&", self, other)
    def __or__(self, other: Any) -> Any: return self.body.binary("|", self, other)
    def __ror__(self, other: Any) -> Any: return self.body.binary("|", self, other)
    def __xor__(self, other: Any) -> Any: return self.body.binary("^", self, other)
    def __rxor__(self, other: Any) -> Any: return self.body.binary("^", self, other)
    def __lshift__(self, other: Any) -> Any: return self.body.binary("<<", self, other)
    def __rlshift__(self, other: Any) -> Any: return self.body.binary("<<", other, self)
    def __rshift__(self, other: Any) -> Any: return self.body.binary(">>", self, other)
    def __rrshift__(self, other: Any) -> Any: return self.body.binary(">>", other, self)
    def __lt__(self, other: Any) -> Any: return self.body.binary("<", self, other)
    def __le__(self, other: Any) -> Any: return self.body.binary("<=", self, other)
    def __gt__(self, other: Any) -> Any: return self.body.binary(">", self, other)
    def __ge__(self, other: Any) -> Any: return self.body.binary(">=", self, other)
    def __eq__(self, other: Any) -> Any: return self.body.binary("==", self, other)
    def __ne__(self, other: Any) -> Any: return self.body.binary("!=", self, other)
    def __neg__(self) -> Any: return self.body.note("neg", self)
    def __invert__(self) -> Any: return self.body.note("bitwise_not", self)
    # fmt: on


class Body:
    """The array namespace of the law in one loop's body; see `qcore.namespace`.

    Args:
        ops: Inductor's operations.
        dtype: the dtype of the lanes.
        maximum: returns the maximum of a lane over axes.
    """

    def __init__(self, ops: Any, dtype: torch.dtype, maximum: Callable[[Lane, tuple[int, ...]], Lane]) -> None:
        self.ops = ops
        self.dtype = dtype
        self.maximum = maximum
        self.lanes: dict[tuple[Any, ...], Lane] = {}

    def load(self, value: Any) -> Lane:
        """The lane of a float that Inductor loaded or computed."""
        return Lane(self, self.ops.to_dtype_bitcast(value, self.dtype, FLOATS[self.dtype]))

    def store(self, lane: Lane) -> Any:
        """The float of a lane."""
        return self.ops.to_dtype_bitcast(lane.value, FLOATS[self.dtype], self.dtype)

    def load_code(self, value: Any, dtype: torch.dtype) -> Lane:
        """The lane of an integer of a dtype."""
        return Lane(self, self.ops.to_dtype(value, self.dtype, src_dtype=dtype))

    def store_code(self, lane: Lane, dtype: torch.dtype) -> Any:
        """The integer of a lane, which is not negative."""
        return self.ops.to_dtype(lane.value, dtype, src_dtype=self.dtype)

    def note(self, name: str, *operands: Any, settings: tuple[Any, ...] = ()) -> Lane:
        """The lane of an operation; numbers among the operands are constants of the lanes' type."""
        lanes = [operand if isinstance(operand, Lane) else self.constant(operand) for operand in operands]
        # Inductor writes an operation at each use. The law reads its values several times, so each is noted once.
        key = name, *map(id, lanes), *settings
        if key not in self.lanes:
            values = (lane.value for lane in lanes)
            self.lanes[key] = Lane(self, getattr(self.ops, name)(*values, *settings))
        return self.lanes[key]

    def constant(self, number: int) -> Lane:
        key = "constant", number
        if key not in self.lanes:
            self.lanes[key] = Lane(self, self.ops.constant(number, self.dtype))
        return self.lanes[key]

    def binary(self, sign: str, a: Any, b: Any) -> Any:
        """The lane of an operation with two operands; `decided` leaves out operations such as x + 0."""
        found = decided(sign, a, b)
        return self.note(_OPERATIONS[sign], a, b) if found is None else found

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, bool):  # a comparison of the format's own integers, which are numbers here
            return a if condition else b
        return self.note("where", condition, a, b)

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        x = x if low is None else self.note("maximum", x, low)
        return x if high is None else self.note("minimum", x, high)

    def named(self, function: str, /, **values: Any) -> None:
        return None  # Inductor names its variables itself

    def amax(self, x: Lane, axis: tuple[int, ...], keepdims: bool) -> Lane:
        return self.maximum(x, axis)

    def float_bits(self, lanes: Lane) -> Lane:
        floats = FLOATS[self.dtype]
        converted = self.note("to_dtype", lanes, settings=(floats, self.dtype))
        return self.note("to_dtype_bitcast", converted, settings=(self.dtype, floats))

    def product_bits(self, a: Any, b: Any) -> Lane:
        floats = FLOATS[self.dtype]
        a, b = (self.note("to_dtype", one, settings=(floats, self.dtype)) for one in (a, b))
        return self.note("to_dtype_bitcast", self.note("mul", a, b), settings=(self.dtype, floats))

    def integers(self, bits: Lane) -> Lane:
        floats = FLOATS[self.dtype]
        converted = self.note("to_dtype_bitcast", bits, settings=(floats, self.dtype))
        return self.note("to_dtype", converted, settings=(self.dtype, floats))


def register() -> None:
    """Registers the lowerings if Inductor is imported; called whenever a program with an operator is traced."""
    # Importing Inductor takes seconds, and programs for other backends do not need it.
    if imports_inductor():
        _register()


@cache
def _register() -> None:
    parts = inductor()
    if parts is not None:
        operators = torch.ops.qtorch
        parts.register(operators.round.default, inline_round)
        parts.register(operators.encode.default, inline_encode)
        parts.register(operators.decode.default, inline_decode)


def inline_round(x: Any, key: Any, window: Any, number: str, rounding: str, overflow: str, law: str) -> Any:
    """The lowering of `torch.ops.qtorch.round`: loops, or the call as it is."""
    parts = inductor()
    assert parts is not None
    dtype, shape, device = x.get_dtype(), tuple(x.get_size()), x.get_device().type
    if key is None:  # in stochastic rounding the random words take most of the time: a loop would save next to nothing
        plan = plan_for(number, rounding, dtype, overflow or None, False)
        served = device == "cpu" or (device == "cuda" and plan.elementwise)  # blocks of GPUs are traced
        if served and keeps_bits(plan, dtype, shape) and is_faster(plan, shape, parts.is_fused(x)):
            return _loop(parts, plan, x, (), None) if plan.elementwise else _loop_of_blocks(parts, plan, x, shape)
    return parts.call(torch.ops.qtorch.round.default, x, key, window, number, rounding, overflow, law)


def inline_encode(x: Any, key: Any, window: Any, number: str, rounding: str, overflow: str, law: str) -> Any:
    """The lowering of `torch.ops.qtorch.encode`: a loop for codes of 8 bits; Inductor has no vectors of wider codes."""
    parts = inductor()
    assert parts is not None
    dtype, shape = x.get_dtype(), tuple(x.get_size())
    if key is None and x.get_device().type in ("cpu", "cuda"):
        plan = plan_for(number, rounding, dtype, overflow or None, True)
        if plan.elementwise and plan.dtype is torch.uint8 and keeps_bits(plan, dtype, shape):
            return [_loop(parts, plan, x, (), None)]
    return parts.call(torch.ops.qtorch.encode.default, x, key, window, number, rounding, overflow, law)


def inline_decode(codes: Any, scales: Any, scale: Any, number: str, dtype: torch.dtype, law: str) -> Any:
    """The lowering of `torch.ops.qtorch.decode`: a loop from integers of `_VECTORS` to floats of 32 or 64 bits."""
    parts = inductor()
    assert parts is not None
    stored, is_loop = codes.get_dtype(), scales is None and dtype in (torch.float32, torch.float64)
    is_loop = is_loop and stored in _VECTORS and codes.get_device().type == "cpu"
    decoding, constants = parse(number).decoding(DTYPES[dtype])
    if not is_loop or decoding.searches:
        return parts.call(torch.ops.qtorch.decode.default, codes, scales, scale, number, dtype, law)
    load, lanes = codes.make_loader(), lane_dtype(decoding.carrier)

    def inner(index: Any) -> Any:
        body = Body(parts.ops, lanes, _no_maximum)
        return body.store(decoding.run(body, body.load_code(load(index), stored), constants))

    return parts.pointwise(codes, dtype, inner)


_VECTORS = (torch.uint8, torch.int8, torch.int32)


def _no_maximum(lane: Lane, axes: tuple[int, ...]) -> Lane:
    raise AssertionError("elements have no maximum")


def _loop_of_blocks(parts: Inductor, plan: RoundingPlan, x: Any, shape: tuple[Any, ...]) -> Any:
    """A loop for the maxima of blocks and a loop for their elements; Inductor fuses both over the blocks."""
    blocks = _blocks(plan, shape)
    view, amax = parts.lowerings["view"], parts.lowerings["amax"]
    tiled = view(x, list(blocks.tiled))
    largest = amax(_magnitudes(parts, plan, tiled), list(blocks.axes), True)
    largest.realize()  # or each element of a block would compute the block's maximum again
    return view(_loop(parts, plan, tiled, blocks.axes, largest), list(shape))


def keeps_bits(plan: RoundingPlan, dtype: torch.dtype, shape: tuple[Any, ...]) -> bool:
    """True if Inductor's loops have the bits of the kernels.

    - Not for numbers of 16 bits: Inductor computes with them in float32, so a producer that is fused has not rounded
      them, and NaNs lose bits where they are stored.
    - Not for blocks that do not fill their dimension: torch 2.13's Inductor splits such loops and leaves out the last
      block where a program goes on with a part of the result.
    - Not for scales of a format or of float32, whose laws divide, nor for long tables, which are arrays beside the
      loop's own.
    - Not for blocks with sub-blocks, whose law has maxima of maxima.
    """
    program = plan.program
    if dtype not in (torch.float32, torch.float64) or program.float_scaled or program.searches:
        return False
    if not program.has_kernels:
        return False
    if plan.elementwise:
        return True
    if 0 in shape or not all(isinstance(length, int) or length.is_number for length in shape):
        return False
    blocks = _blocks(plan, shape)
    return blocks.cut == blocks.padded and not blocks.around


def is_faster(plan: RoundingPlan, shape: tuple[Any, ...], is_fused: bool) -> bool:
    """True if loops are not slower than the kernels, by `benchmarks.fusion`.

    A loop is always faster for formats without blocks. With blocks it is faster where it saves a pass over memory, if
    the blocks are long and lie along the last dimension. A processor has no fast maximum of the lanes of one vector, so
    short blocks are slower; and a loop for maxima along outer dimensions reads memory in steps.

    Args:
        plan: the plan of the rounding.
        shape: the shape of the numbers.
        is_fused: True if Inductor has not yet written the numbers to memory.
    """
    if plan.elementwise:
        return True
    blocks = _blocks(plan, shape)
    along_last = len(blocks.tiled) - 1 in blocks.axes
    return is_fused and along_last and math.prod(blocks.tiled[axis] for axis in blocks.axes) >= _LONG


_LONG = 256  # elements of a block


def _blocks(plan: RoundingPlan, shape: tuple[Any, ...]) -> Tiles:
    return tiles(tuple(map(int, shape)) or (1,), plan.number.tile_sizes(len(shape)) or (1,))


def _loop(parts: Inductor, plan: RoundingPlan, x: Any, axes: tuple[int, ...], largest: Any) -> Any:
    """The loop that rounds; `largest` are the maxima of blocks, which lie along `axes`."""
    load, lanes = x.make_loader(), lane_dtype(plan.program.carrier)
    load_largest = None if largest is None else largest.make_loader()

    def inner(index: Any) -> Any:
        def maximum(_: Lane, axis: tuple[int, ...]) -> Lane:
            assert load_largest is not None
            place = [parts.zero if i in axis else one for i, one in enumerate(index)]
            return Lane(body, load_largest(place))

        body = Body(parts.ops, lanes, maximum)
        found = plan.program.run(body, body.load(load(index)), plan.constants, axes)
        return body.store_code(found, plan.dtype) if plan.program.codes else body.store(found)

    return parts.pointwise(x, plan.dtype, inner)


def _magnitudes(parts: Inductor, plan: RoundingPlan, x: Any) -> Any:
    """The lanes of which the law takes the maximum of a block."""
    load, program = x.make_loader(), plan.program
    lanes = lane_dtype(program.carrier)

    def inner(index: Any) -> Any:
        body = Body(parts.ops, lanes, _no_maximum)
        return magnitudes(body, body.load(load(index)), program.carrier, program.kind).value

    return parts.pointwise(x, lanes, inner)
