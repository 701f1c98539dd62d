"""States of optimizers as codes: a code of 4 or 8 bits for each number, and a float32 scale for each block.

The blocks are so many neighbours of the flattened array. The law is torchao's (`torchao.optim`, 2026-08):

    scale = max(greatest magnitude of the block, 1e-12) / greatest number of the codes
    code  = the code of the nearest number to x / scale; in maps a tie goes up: from (hi - lo) / 2 above lo on, where
            hi - lo, its half and the distance from lo are float32 numbers
    x     = number of the code * scale

A state begins with zeros for all codes and scales. So it decodes to zeros, whatever number has the code 0.
FlashOptim's codes, and its order of a step, are in `qcore.reproducible.companded` and `flash_of_blocks`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from qcore.arguments import check_choice, check_flag, check_int, check_type
from qcore.binding import public
from qcore.formats.names import NAMED
from qcore.formats.number import Number
from qcore.formats.table import Table
from qcore.law.carrier import FLOAT32
from qcore.law.program import Program, flat
from qcore.law.rounding import Rounding
from qcore.law.table import BUCKETS
from qcore.namespace import Names
from qcore.reproducible.companded import COMPANDED, decode_root, decode_softsign, encode_root, encode_softsign
from qcore.reproducible.differentiable import without_gradients
from qcore.reproducible.optimizers import OptimizerFunctions, adam_options

FLOAT8 = "e4m3fn"
_KINDS = ("dynamic", "udynamic", "dynamic4", "linear4", FLOAT8, *COMPANDED)  # the first four are in state_maps.json
_LEAST = float(np.float32(1e-12))  # of the greatest magnitude, so that no block is divided by 0


@dataclass(frozen=True)
class StateCodes:
    """How a state of an optimizer is stored: which number each code stands for, and how many numbers share a scale.

    Attributes:
        kind: "dynamic" and "udynamic" are bitsandbytes' maps of 8 bits for signed numbers and for others, which are
            finer near zero; "dynamic4" and "linear4" are torchao's maps of 4 bits for signed numbers and for numbers
            above zero, two codes a byte; "e4m3fn" is FP8; "softsign" and "root" are FlashOptim's codes of 8 bits for
            signed numbers and for others, with scales of float16.
        block: the count of numbers that share a scale; for codes of 4 bits an even one. The last block of FlashOptim's
            codes may be shorter.

    Raises:
        ValueError: for codes of 4 bits if the block is odd.

    Example:
        >>> StateCodes("dynamic").bits, StateCodes("linear4", block=128).bits
        (8, 4)
    """

    kind: str
    block: int = 256
    laws: ClassVar[_Laws]

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, _KINDS)
        check_int("block", self.block, 1)
        # Not a field, and not looked up in a law: programs for torch.compile would trace how it is made.
        object.__setattr__(self, "laws", _laws(self.kind))
        if self.bits == 4 and self.block % 2:
            raise ValueError(f"block={self.block}; allowed for codes of 4 bits is an even number")

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return 4 if self.kind.endswith("4") else 8

    @property
    def companded(self) -> bool:
        """True for FlashOptim's codes."""
        return self.kind in COMPANDED

    @property
    def dtypes(self) -> tuple[str, str]:
        """The dtypes of codes and of scales."""
        return (COMPANDED[self.kind][0], "float16") if self.companded else ("uint8", "float32")

    def __reduce__(self) -> tuple[Any, ...]:
        return StateCodes, (self.kind, self.block)

    def counts(self, size: int) -> tuple[int, int]:
        """The bytes of the codes and the count of scales of so many numbers."""
        return size * self.bits // 8, -(-size // self.block)

    def fits(self, size: int) -> bool:
        """True for a count of numbers that the block divides; with FlashOptim's codes for any above 0."""
        return size > 0 and (self.companded or size % self.block == 0)


LEAST_SIZE = 4096  # numbers of the smallest tensors whose states are codes
ADAM_KINDS = {  # of the moments, by what torchao's optimizers are named for
    "8bit": ("dynamic", "udynamic"),
    "4bit": ("dynamic4", "linear4"),
    "Fp8": (FLOAT8, FLOAT8),
    "Flash": (*COMPANDED,),
}


def adam_codes(storage: str, block: int, size: int, amsgrad: bool) -> tuple[StateCodes | None, ...]:
    """How Adam's states of a parameter with so many numbers are stored; None for those that stay floats."""
    first, second = (StateCodes(kind, block) for kind in ADAM_KINDS[storage])
    coded = first.fits(size) and (first.companded or size >= LEAST_SIZE)
    return tuple(one if coded else None for one in (first, second, second)[: 3 if amsgrad else 2])


@cache
def _element(kind: str) -> Number:
    if kind == FLOAT8:
        return NAMED[FLOAT8][0]
    text = json.loads(Path(__file__).with_name("state_maps.json").read_text(encoding="utf-8"))[kind]
    numbers = np.array([int(one, 16) for one in text.split()], np.uint32).view(np.float32)
    # A number that equals a threshold becomes the lower one: so this is the last number that does.
    last = [_first_up(lo, hi).view(np.int32) for lo, hi in pairwise(numbers)]
    return Table(numbers, [_before(one) for one in last])


def _first_up(lo: np.float32, hi: np.float32) -> np.float32:
    """The least float32 number between two neighbours of a map that is rounded up."""
    half = (hi - lo) * np.float32(0.5)
    low, high = _key(lo), _key(hi)  # the number is above low, and at most high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _number(middle) - lo >= half else (middle, high)
    return _number(high)


def _before(bits: np.int32) -> float:
    return float(_number(_key(bits.view(np.float32)) - 1))


def _key(x: np.float32) -> int:
    """An integer that grows with the number, and is one more for the next number."""
    bits = int(x.view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def _number(key: int) -> np.float32:
    return np.uint32(key if key >= 0 else -key | 0x80000000).view(np.float32)


class _Laws(NamedTuple):
    """What encodes numbers under their scales, and decodes: laws with their constants; and the greatest number."""

    encode: Callable[..., Any]
    encoding: np.ndarray
    decode: Callable[..., Any]
    decoding: np.ndarray
    largest: float


@cache
def _laws(kind: str) -> _Laws:
    if kind in COMPANDED:
        none = np.zeros(0, np.int32)
        encode, decode = (encode_softsign, decode_softsign) if kind == "softsign" else (encode_root, decode_root)
        return _Laws(encode, none, decode, none, 1.0)
    element = _element(kind)
    encoder, encoding = element.program(Rounding.NEAREST, FLOAT32, coded=True)
    decoder, decoding = element.decoding(FLOAT32)
    integers = [np.array(flat(constants), np.int64).astype(np.int32) for constants in (encoding, decoding)]
    if kind == FLOAT8:
        numbers = decoder.run(Names, np.arange(256, dtype=np.int32), decoder.split(integers[1]))
        return _Laws(partial(_encode_float, encoder), integers[0], _decode_by_table, numbers, 448.0)
    *_, bounds, codes, nan = encoder.split(integers[0])
    numbers, _ = decoder.split(integers[1])
    return _Laws(_encode_by_buckets, _buckets(bounds[1:], codes, nan), _decode_by_table, np.asarray(numbers), 1.0)


def _encode_float(program: Program, xp: Any, bits: Any, constants: Any) -> Any:
    return program.run(xp, bits, program.split(constants), ())


def _decode_by_table(xp: Any, lanes: Any, numbers: Any, count: int) -> Any:
    """Of numbers of e4m3fn too, whose law takes longer; and of 16 numbers: a chain of comparisons takes XLA three times
    as long. Other bits are ignored."""
    return xp.take(numbers[0:count], lanes & (count - 1))


def _encode_by_buckets(xp: Any, bits: Any, buckets: Any) -> Any:
    """The codes of a map: one entry leads to each. Keys and buckets are those of `qcore.law.table`.

    A bucket has one bound at most. The sum carries where the low half of a key is above the bound's.
    """
    key = bits ^ ((bits >> FLOAT32.last) & FLOAT32.magnitude_mask)
    place = (key >> 16) + BUCKETS // 2
    return (xp.take(buckets[0:BUCKETS], place) + (key & 0xFFFF)) >> 16


def _buckets(bounds: np.ndarray, codes: np.ndarray, nan: int) -> np.ndarray:
    """For each bucket the code of its first key, and in the low half what carries into the next code."""
    first = np.arange(-BUCKETS // 2, BUCKETS // 2) << 16
    place = np.searchsorted(bounds, first)
    bound = np.append(bounds, first[-1])[place]
    low = np.where(bound < first + 0xFFFF, bound - first, 0xFFFF)
    is_nan = first > FLOAT32.infinity  # the sign of a NaN is not set, see `one_nan`
    return np.where(is_nan, nan << 16, (codes[place] << 16) + 0xFFFF - low).astype(np.int32)


def encoded_lanes(xp: Any, x: Any, constants: Any, codes: StateCodes) -> tuple[Any, Any]:
    """The codes as int32, and the scales of shape (blocks, 1), of a float32 array of shape (blocks, block)."""
    if codes.kind == "root":
        x = xp.sqrt(x)
    # As integers, magnitudes have the order of the numbers, and a NaN is above infinity.
    scale = xp.floats(xp.amax(xp.bits(abs(x)), (1,), keepdims=True))
    scale = xp.where(scale < _LEAST, _LEAST, scale)
    if codes.laws.largest != 1:
        scale = xp.div(scale, codes.laws.largest)
    # The sign of a quotient's NaN is the processor's. Tiny quotients have the codes of zeros.
    z = xp.one_nan(xp.quotient(x, scale))
    return xp.to_int32(codes.laws.encode(xp, xp.bits(z), constants)), scale


def decoded_lanes(xp: Any, lanes: Any, scale: Any, constants: Any, codes: StateCodes) -> Any:
    """The inverse of `encoded_lanes`."""
    x = xp.mul(xp.floats(codes.laws.decode(xp, lanes, constants, 1 << codes.bits)), scale)
    return xp.mul(x, x) if codes.kind == "root" else x


def encoded(xp: Any, x: Any, constants: Any, codes: StateCodes) -> tuple[Any, Any]:
    """The codes and the scales of a float32 array of shape (blocks, block)."""
    return _packed(xp, *encoded_lanes(xp, x, constants, codes), codes)


def _packed(xp: Any, lanes: Any, scale: Any, codes: StateCodes) -> tuple[Any, Any]:
    """Codes and scales as a state has them."""
    if codes.bits == 4:
        pairs = lanes.reshape((-1, 2))
        # A sum, as XLA would compute the codes once for each half of a byte.
        lanes = xp.total(pairs << (4 - 4 * xp.arange(2, pairs)), (1,))
    kept, of_scale = codes.dtypes
    return xp.astype(lanes.reshape((-1,)), kept), xp.astype(scale.reshape((-1,)), of_scale)


def decoded(xp: Any, given: Any, scale: Any, constants: Any, codes: StateCodes) -> Any:
    """The float32 array of shape (blocks, block) that codes and scales stand for."""
    return decoded_lanes(xp, *_unpacked(xp, given, scale, codes), constants, codes)


def _unpacked(xp: Any, given: Any, scale: Any, codes: StateCodes) -> tuple[Any, Any]:
    """The inverse of `_packed`: arrays of shapes (blocks, block) and (blocks, 1)."""
    found = xp.to_int32(given).reshape((-1,))
    if codes.bits == 4:
        found = xp.stack([found >> 4, found & 15], 1)
    return in_blocks(xp, found, codes.block), xp.to_float32(scale).reshape((-1, 1))


def in_blocks(xp: Any, x: Any, block: int) -> Any:
    """An array as one of shape (blocks, block); the last block of FlashOptim's codes is filled with zeros."""
    rest = -prod(x.shape) % block
    return (xp.pad(x.reshape((-1,)), [(0, rest)]) if rest else x).reshape((-1, block))


def unblocked(x: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `in_blocks`, also of an array of one dimension."""
    return x.reshape((-1,))[: prod(shape)].reshape(shape)


def _encode(xp: Any, x: Any, constants: Any, codes: StateCodes) -> tuple[Any, Any]:
    found, scale = encoded(xp, in_blocks(xp, x, codes.block), constants, codes)
    return found if codes.bits == 4 else unblocked(found, tuple(x.shape)), scale


def _decode(xp: Any, given: Any, scale: Any, constants: Any, codes: StateCodes, shape: tuple[int, ...]) -> Any:
    return unblocked(decoded(xp, given, scale, constants, codes), shape)


def split_weight(xp: Any, bits: Any) -> tuple[Any, Any]:
    """The bits of a bfloat16 weight and its remainder, int16 arrays, of the bits of float32 numbers as int32.

    The remainder is the low half. The weight is the high half, one more where the remainder is negative: the number
    rounded to nearest, ties away from zero. This is Transformer Engine's law, and it loses no bit.
    """
    low = (bits << 16) >> 16
    return xp.astype((bits - low) >> 16, "int16"), xp.astype(low, "int16")


def join_weight(xp: Any, weight: Any, remainder: Any) -> Any:
    """The inverse of `split_weight`."""
    return (xp.to_int32(weight) << 16) + xp.to_int32(remainder)


class Weight(NamedTuple):
    """How much a mean moves: its weight below 1/2, else what is left of 1; as a number, or one that a kernel reads."""

    small: bool
    factor: Any


def as_weight(weight: float) -> Weight:
    """The `Weight` of a number."""
    return Weight(True, weight) if weight < 0.5 else Weight(False, float(np.float32(1) - np.float32(weight)))


def weighted(xp: Any, mean: Any, x: Any, weight: Weight) -> Any:
    """mean + weight * (x - mean) as torch's `lerp` has it: the product and the sum are rounded once."""
    change = xp.sub(x, mean)
    if weight.small:
        return xp.add_product(mean, change, weight.factor)
    return xp.float32(xp.float64(x) - xp.float64(change) * xp.float64(weight.factor))


def correction(xp: Any, beta: float, step: Any) -> Any:
    """1 - beta^step with a float32 power."""
    return xp.sub(1.0, xp.power(xp.add(xp.mul(step, 0.0), beta), step))


class AdamNumbers(NamedTuple):
    """The numbers of a step that all elements share: the rate, options, and `correction` of both factors.

    `first` and `second` say how the moments move: as `Weight`s, or in FlashOptim's order as pairs of what the moment
    and what the gradient is multiplied by.
    """

    rate: Any
    eps: Any
    weight_decay: Any
    first: Any
    second: Any
    first_correction: Any
    second_correction: Any


def adam_of_blocks(
    xp: Any,
    p: Any,
    gradient: Any,
    states: Sequence[tuple[Any, ...]],
    numbers: AdamNumbers,
    codes: Sequence[StateCodes | None],
    decoupled: bool,
) -> tuple[Any, list[tuple[Any, ...]]]:
    """The parameter and the states after a step, in the order of torchao's `single_param_adam`.

    Arrays have the shape (blocks, block). A state is codes as int32, scales of shape (blocks, 1), and the constants of
    its decoder and of its encoder, of which the first two are returned; or it is one array, without codes. The third
    state, if there is one, has the largest second moments ("amsgrad").
    """
    before = [
        state[0] if one is None else decoded_lanes(xp, state[0], state[1], state[2], one)
        for state, one in zip(states, codes, strict=True)
    ]
    if decoupled:
        p = xp.sub(p, xp.mul(xp.mul(numbers.rate, numbers.weight_decay), p))
    else:
        gradient = xp.add(gradient, xp.mul(p, numbers.weight_decay))
    first = weighted(xp, before[0], gradient, numbers.first)
    second = weighted(xp, before[1], xp.mul(gradient, gradient), numbers.second)
    moments, below = [first, second], second
    if len(codes) == 3:
        below = xp.maximum(before[2], second)
        moments.append(below)
    root = xp.div(xp.sqrt(below), xp.sqrt(numbers.second_correction))
    change = xp.mul(numbers.rate, xp.div(first, numbers.first_correction))
    # The parameter moves by the moments before they are encoded.
    p = xp.sub(p, xp.div(change, xp.add(root, numbers.eps)))
    return p, [
        (moment,) if one is None else encoded_lanes(xp, moment, state[3], one)
        for state, one, moment in zip(states, codes, moments, strict=True)
    ]


def flash_of_blocks(
    xp: Any,
    p: Any,
    gradient: Any,
    states: Sequence[tuple[Any, ...]],
    numbers: AdamNumbers,
    codes: Sequence[StateCodes | None],
    decoupled: bool,
) -> tuple[Any, list[tuple[Any, ...]]]:
    """`adam_of_blocks` in FlashOptim's order, without "amsgrad"; means are two products and a sum, each rounded."""
    first, second = (
        state[0] if one is None else decoded_lanes(xp, state[0], state[1], state[2], one)
        for state, one in zip(states, codes, strict=True)
    )
    if numbers.weight_decay and not decoupled:
        gradient = xp.add(gradient, xp.mul(p, numbers.weight_decay))
    (kept, new), (kept_square, new_square) = numbers.first, numbers.second
    first = xp.add(xp.mul(first, kept), xp.mul(gradient, new))
    second = xp.add(xp.mul(second, kept_square), xp.mul(xp.mul(gradient, gradient), new_square))
    if numbers.weight_decay and decoupled:
        p = xp.mul(p, xp.sub(1.0, xp.mul(numbers.rate, numbers.weight_decay)))
    root = xp.div(xp.sqrt(second), xp.sqrt(numbers.second_correction))
    change = xp.mul(first, xp.div(numbers.rate, numbers.first_correction))
    return xp.sub(p, xp.div(change, xp.add(root, numbers.eps))), [
        (moment,) if one is None else encoded_lanes(xp, moment, state[3], one)
        for state, one, moment in zip(states, codes, (first, second), strict=True)
    ]


def _adam(
    xp: Any,
    p: Any,
    gradient: Any,
    step: Any,
    rate: Any,
    *states: Any,
    codes: tuple[StateCodes | None, ...],
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    order: str,
) -> tuple[Any, ...]:
    """The parameter and the states after a step.

    Of a state in codes there are four arrays, codes, scales and the constants of its decoder and its encoder, and two
    results; of another state one.
    """
    shape = tuple(p.shape)
    block = next((one.block for one in codes if one is not None), 0)
    if block:
        p, gradient = in_blocks(xp, p, block), in_blocks(xp, gradient, block)
    remaining = iter(states)
    given = [
        (next(remaining),)
        if one is None
        else (*_unpacked(xp, next(remaining), next(remaining), one), next(remaining), next(remaining))
        for one in codes
    ]
    of_flash = order == "flashoptim"
    first, second = ((beta, 1.0 - beta) if of_flash else as_weight(1 - beta) for beta in betas)
    numbers = AdamNumbers(rate, eps, weight_decay, first, second, *(correction(xp, beta, step) for beta in betas))
    law = flash_of_blocks if of_flash else adam_of_blocks
    p, after = law(xp, p, gradient, given, numbers, codes, decoupled)
    found = [unblocked(p, shape)]
    for one, state in zip(codes, after, strict=True):
        if one is None:
            found.append(unblocked(state[0], shape))
        else:
            kept, scale = _packed(xp, state[0], state[1], one)
            found += [kept if one.bits == 4 else unblocked(kept, shape), scale]
    return tuple(found)


ENCODE_STATE = without_gradients(_encode, fusible=False)
DECODE_STATE = without_gradients(_decode, fusible=False)
ADAM_WITH_CODES = without_gradients(_adam, fusible=False)


class StateFunctions(OptimizerFunctions):
    """`OptimizerFunctions`, and states of optimizers as codes."""

    def constants(self, array: np.ndarray, like: Any) -> Any:
        """An array of NumPy's as one of the package, on the device of another array."""
        raise NotImplementedError

    @public
    def encode_state(self, x: Any, codes: Any) -> tuple[Any, Any]:
        """The codes and scales of an optimizer's state.

        Args:
            x: float32 array, whose count of numbers the block divides.
            codes: a `StateCodes`.

        Returns:
            The codes, a uint8 (of "softsign" int8) array of x's shape, or for codes of 4 bits of one dimension, two
            codes a byte, the first in the high bits; and the scales, a float32 (FlashOptim's: float16) array of shape
            (blocks,).

        Example:
            >>> codes, scale = reproducible.encode_state(
            ...     np.float32([1.0, -4.0]), reproducible.StateCodes("dynamic", 2)
            ... )
            >>> codes.tolist(), scale.tolist()
            ([201, 0], [4.0])
        """
        check_type("codes", codes, StateCodes, "a StateCodes")
        x = self.float32("x", x)
        _check_fits("x", tuple(x.shape), codes)
        return self.call(ENCODE_STATE, x, self.constants(codes.laws.encoding, x), codes=codes)

    @public
    def decode_state(self, given: Any, scale: Any, codes: Any, shape: tuple[int, ...]) -> Any:
        """The numbers that the codes and scales of an optimizer's state stand for.

        Args:
            given: array of integers: the codes.
            scale: float32 array of shape (blocks,), with FlashOptim's codes also float16.
            codes: a `StateCodes`.
            shape: the shape of the state.

        Returns:
            A float32 array of this shape.

        Example:
            >>> codes = reproducible.StateCodes("linear4", 2)
            >>> given, scale = reproducible.encode_state(np.float32([1.0, 4.0]), codes)
            >>> reproducible.decode_state(given, scale, codes, (2,)).tolist()
            [1.0, 4.0]
        """
        check_type("codes", codes, StateCodes, "a StateCodes")
        shape = tuple([check_int("shape", size, 0) for size in shape])
        _check_fits("shape", shape, codes)
        given, scale = self._coded_state("", (given, scale), shape, codes)
        return self.call(
            DECODE_STATE, given, scale, self.constants(codes.laws.decoding, scale), codes=codes, shape=shape
        )

    @public
    def adam_step_with_codes(
        self,
        p: Any,
        gradient: Any,
        states: tuple[Any, ...],
        step: Any,
        rate: Any,
        codes: tuple[Any, ...],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        order: str = "torchao",
    ) -> tuple[Any, tuple[Any, ...]]:
        """A step of Adam whose moments are codes; each operation is rounded to float32.

        Args:
            p, gradient: float32 arrays of one shape.
            states: the first and the second moment, and with "amsgrad" the largest second moments so far: for each a
                pair of codes and scales, or a float32 array of p's shape.
            step: float32 array without dimensions: the step's number, from 1 on.
            rate: float32 array without dimensions: the learning rate.
            codes: for each state a `StateCodes`, or None for a float32 array; all have one block.
            betas, eps: as for `adam_step`.
            weight_decay: the factor of the weight's decay, at least 0.
            decoupled: True for AdamW.
            order: whose order the operations have: "torchao", or "flashoptim", which has no "amsgrad".

        Returns:
            The parameter and the states after the step.

        Example:
            >>> codes = (reproducible.StateCodes("dynamic", 1), reproducible.StateCodes("udynamic", 1))
            >>> one, scale, byte = np.float32(1.0), np.float32([0.0]), np.array([0], dtype=np.uint8)
            >>> p, states = reproducible.adam_step_with_codes(
            ...     np.float32([1.0]),
            ...     np.float32([1.0]),
            ...     ((byte, scale), (byte, scale)),
            ...     one,
            ...     np.float32(0.25),
            ...     codes,
            ... )
            >>> round(float(p[0]), 3), states[0][0].tolist()
            (0.75, [255])
        """
        options = adam_options(betas, eps, weight_decay)
        check_flag("decoupled", decoupled)
        p = self.float32("p", p)
        shape, codes = tuple(p.shape), tuple(codes)
        gradient = self._of_shape("gradient", gradient, shape)
        check_choice("order", order, ["torchao", "flashoptim"])
        check_choice("the number of codes", str(len(codes)), ["2", "3"] if order == "torchao" else ["2"])
        if len(states) != len(codes):
            raise ValueError(f"states has {len(states)} entries; allowed are {len(codes)}, as many as codes")
        if len({one.block for one in codes if one is not None}) > 1:
            raise ValueError(f"codes={codes} have several blocks; allowed is one")
        arrays: list[Any] = []
        for index, (state, one) in enumerate(zip(states, codes, strict=True)):
            arrays += self.state_arrays(f"states[{index}]", state, shape, one)
        step, rate = self.count("step", step, 1), self._of_shape("rate", rate, ())
        p, *found = self.call(
            ADAM_WITH_CODES, p, gradient, step, rate, *arrays, codes=codes, decoupled=decoupled, order=order, **options
        )
        rest = iter(found)
        return p, tuple(next(rest) if one is None else (next(rest), next(rest)) for one in codes)

    def state_arrays(self, name: str, state: Any, shape: tuple[int, ...], codes: StateCodes | None) -> list[Any]:
        """What laws take of a state: codes, scales, and the constants of the decoder and the encoder; or an array."""
        if codes is None:
            return [self._of_shape(name, state, shape)]
        check_type("codes", codes, StateCodes, "a StateCodes")
        _check_fits("p", shape, codes)
        given, scale = self._coded_state(name, state, shape, codes)
        return [given, scale, *(self.constants(table, scale) for table in (codes.laws.decoding, codes.laws.encoding))]

    def _coded_state(self, name: str, state: Any, shape: tuple[int, ...], codes: StateCodes) -> tuple[Any, Any]:
        """The codes and the scales of a state, checked."""
        given, scale = state
        size = prod(shape)
        given = self.integers(f"{name}[0]" if name else "given", given)
        bytes_, blocks = codes.counts(size)
        if tuple(given.shape) != (expected := shape if codes.bits == 8 else (bytes_,)):
            raise ValueError(f"{name or 'given'} has codes of shape {tuple(given.shape)}; allowed is {expected}")
        where = f"{name}[1]" if name else "scale"
        if not codes.companded or str(getattr(scale, "dtype", "")).split(".")[-1] != "float16":
            return given, self._of_shape(where, scale, (blocks,))
        if tuple(scale.shape) != (blocks,):
            raise ValueError(f"{where} has shape {tuple(scale.shape)}; allowed is {(blocks,)}")
        return given, scale


def _check_fits(name: str, shape: tuple[int, ...], codes: StateCodes) -> None:
    size = prod(shape)
    if not codes.fits(size):
        raise ValueError(f"{name} has {size} numbers; allowed is a multiple of block={codes.block}, at least one block")
