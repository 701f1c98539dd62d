"""A step of Adam in one pass over memory: decoded, updated and encoded by one kernel in C, where everything is kept."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import increment_version

from qcore.formats.number import prepare
from qcore.formats.text import parse
from qcore.law.carrier import FLOAT32
from qcore.law.rounding import Rounding
from qcore.reproducible import operations
from qcore.reproducible.companded import ERRORS, weight_error, weight_with_error
from qcore.reproducible.state_codes import (
    AdamNumbers,
    StateCodes,
    Weight,
    adam_of_blocks,
    as_weight,
    correction,
    flash_of_blocks,
    join_weight,
    split_weight,
)
from qcore.trace import BLOCK, CONSTANT, ELEMENT, FloatValue, Trace, Value
from qtorch._kernels.blocks import MOST, BlockKernel, Pairs, Permuted
from qtorch._kernels.laws import Constants, random_word
from qtorch._kernels.source import Argument
from qtorch._kernels.store import Function, load
from qtorch._rounding.keys import make_noise
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.optim.permutes import SIGNED, tables
from qtorch.reproducible.fused import trace

RANDOM_BITS = 16  # as many as a bfloat16 number has fewer than a float32 number
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_ERRORS = (*ERRORS.values(),)
_BESIDE = {"remainder": "int16", **{name: name for name in _ERRORS}}  # the dtypes of remainders, by the rounding
_ALONE = 1024  # neighbours at a time where states are floats, which have no blocks
_LONGEST = 1 << 31  # numbers whose indices are the low words of counters


class AdamVariant(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        kinds: the codes of each state, see `StateCodes`; None for floats of the parameter's dtype.
        dtype, gradient: of the parameter and of its gradient, as C has them.
        rounding: how the parameter is written: "nearest", "stochastic", "remainder" beside the rest of its bits, or
            beside codes of its error, whose dtype is "int8" or "int16".
        small: `Weight.small` of the moments' weights; None in FlashOptim's order, which has no such weights.
        decoupled: True for AdamW.
        decays: False in FlashOptim's order without weight decay.
    """

    kinds: tuple[str | None, ...]
    dtype: str
    gradient: str
    rounding: str
    small: tuple[bool, bool] | None
    decoupled: bool
    decays: bool


class _Trace(Trace):
    value_type = FloatValue


def _of_trace(name: str) -> Any:
    return staticmethod(lambda x, *others, **named: getattr(x.trace, name)(x, *others, **named))


class _Names(trace.Names):
    """The operations of one element of a block."""

    amax, take, clip, integers, float_bits = map(_of_trace, ("amax", "take", "clip", "integers", "float_bits"))

    @staticmethod
    def bits(x: Any) -> Value:
        return x.trace.float32_bits(x)

    @staticmethod
    def floats(bits: Any) -> Value:
        return bits.trace.float32_from(bits)

    @staticmethod
    def to_int32(x: Any) -> Value:
        return x if x.dtype == "int32" else x.trace.note("(int32_t){}", x, dtype="int32")

    @staticmethod
    def astype(x: Any, dtype: str) -> Value:
        return x.trace.note(f"({dtype}_t){{}}", x, dtype=dtype)

    @staticmethod
    def floor(x: Any) -> Value:
        return x.trace.note("__builtin_floorf({})", x)

    @classmethod
    def settled(cls, x: Any) -> Any:
        return x.trace.note("settled({})", x)

    @classmethod
    def one_nan(cls, x: Any) -> Value:
        return x.trace.note("one_nan({})", x)

    @classmethod
    def quotient(cls, a: Any, b: Any) -> Value:
        """In float32: C rounds quotients once, as the way through float64 does."""
        return a / b

    @classmethod
    def sqrt(cls, x: Any) -> Value:
        """Settled, as x is: roots of normal numbers are far above 2^-126."""
        return x.trace.note("__builtin_sqrtf({})", x)

    @classmethod
    def maximum(cls, a: Any, b: Any) -> Value:
        return cls.where((a > b) | (a != a), a, b)


class _Usual(_Names):
    """The operations of blocks that are usual, see `_is_usual`: without subnormal numbers and NaN."""

    @classmethod
    def settled(cls, x: Any) -> Any:
        return x

    @classmethod
    def one_nan(cls, x: Any) -> Any:
        return x

    @classmethod
    def add_product(cls, a: Any, b: Any, c: Any) -> Any:
        """Rounded once; a block is not usual if that may matter."""
        found = a.trace.note("add_product({}, {}, {})", a, b, c)
        a.trace.amax(a.trace.note("is_near_middle({}, {}, {}, {})", a, b, c, found, dtype="int32"), (1,))
        return found


class AdamStep(NamedTuple):
    """A step of a parameter: what an optimizer's group says, the step's number, and how the parameter is written."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    rate: float
    count: float
    decoupled: bool
    order: str
    rounding: str
    key: tuple[int, int] | None = None

    def run(self, p: torch.Tensor, gradient: torch.Tensor, states: list[Any], remainder: torch.Tensor | None) -> bool:
        """Writes the parameter, its states (pairs of codes and scales with their `StateCodes`, or floats), and its
        remainder after the step; False, and nothing is written, where no kernel can."""
        codes = [state[2] if isinstance(state, tuple) else None for state in states]
        tensors = [x for state in states for x in (state[:2] if isinstance(state, tuple) else [state])]
        written = [p, *tensors, *([] if remainder is None else [remainder])]
        block = next((one.block for one in codes if one is not None), _ALONE)
        every = [gradient, *written]
        wanted = [(p.numel(), gradient.dtype), *_wanted(p, codes, self.rounding)]
        fits = are_plain_tensors(every) and p.is_cpu and block <= MOST and 0 < p.numel() < _LONGEST
        if not fits or gradient.dtype not in _DTYPES or [(x.numel(), x.dtype) for x in every] != wanted:
            return False
        kinds = tuple([None if one is None else one.kind for one in codes])
        first, second = (as_weight(1 - beta) for beta in self.betas)
        small, factors = (first.small, second.small), [first.factor, second.factor]
        if self.order == "flashoptim":
            small, factors = None, [x for beta in self.betas for x in (beta, 1.0 - beta)]
        decays = self.weight_decay != 0 or self.order == "torchao"
        dtypes = _DTYPES[p.dtype], _DTYPES[gradient.dtype]
        kernel = _kernel(AdamVariant(kinds, *dtypes, self.rounding, small, self.decoupled, decays))
        if kernel is None:
            return False
        numbers = [self.rate, self.eps, self.weight_decay, *factors]
        numbers += [_correction(beta, self.count) for beta in self.betas]
        constants = np.array(numbers, np.float32)
        noise = () if self.key is None else make_noise(self.key, RANDOM_BITS, 0, p)
        by_tables = [one for one in codes if one is not None and not one.companded]
        read = [x for one in by_tables for x in (one.laws.decoding, one.laws.encoding, tables(one.kind))]
        slope, *rooms = map(_as_memory, every)
        addresses = [x.data_ptr() for x in (*noise, slope, *rooms)]
        kernel(
            p.numel(),
            block,
            constants.ctypes.data,
            *addresses[: len(noise)],
            *(x.ctypes.data for x in read),
            *addresses[len(noise) :],
        )
        for x, room in zip(written, rooms, strict=True):
            if room is x:
                increment_version(x)
            else:
                x.copy_(room)
        return True


def _wanted(p: torch.Tensor, codes: list[StateCodes | None], rounding: str) -> Iterator[tuple[int, torch.dtype]]:
    """The sizes and dtypes of what a step writes: a kernel would read beyond others, which users may put there."""
    yield p.numel(), p.dtype
    for one in codes:
        if one is None:
            yield p.numel(), p.dtype
        else:
            yield from zip(one.counts(p.numel()), (getattr(torch, name) for name in one.dtypes), strict=True)
    if rounding in _BESIDE:
        yield p.numel(), getattr(torch, _BESIDE[rounding])


def _as_memory(x: torch.Tensor) -> torch.Tensor:
    """A tensor in row-major order at an aligned address: the same one, or a copy."""
    whole = x.is_contiguous() and x.data_ptr() % x.element_size() == 0
    return x if whole else x.clone(memory_format=torch.contiguous_format)


@lru_cache(maxsize=64)
def _correction(beta: float, count: float) -> float:
    """`correction` by the reference, once for all parameters."""
    with operations.Names.arithmetic():
        return float(correction(operations.Names, beta, np.float32(count)))


@cache
def _kernel(variant: AdamVariant) -> Function | None:
    """The kernel, or None without a compiler.

    A call gives the numbers of elements and of a block's, and the addresses of the numbers of `AdamNumbers` in their
    order, of the key and the window (see `Noise`) if rounding is stochastic, for each state in codes of torchao's of
    the constants of its decoder and its encoder and of what permutes read, of the gradient, the parameter, the states,
    and the remainder.
    """
    return load(traced(variant).source())


def traced(variant: AdamVariant) -> BlockKernel:
    """The kernel's law."""
    made = _Trace()
    codes = [None if kind is None else StateCodes(kind, 2) for kind in variant.kinds]
    given = [made.value(f"numbers[{place}]", "float32", CONSTANT) for place in range(9 if variant.small is None else 7)]
    arguments = list(_arguments(variant, codes))
    results, _ = _results(made, variant, codes, given, _Names)
    if codes[0] is None or variant.small != (True, True):
        return BlockKernel(made, arguments, results)
    count = len(made.maxima)
    permuted = [one and _permuted(place, one) for place, one in enumerate(codes)]
    shorter, read = _results(made, variant, permuted, given, _Usual)
    condition = _is_usual(given, read, made.maxima[count:], list(filter(None, codes)), variant.decoupled)
    shorter = {f"coded_{name}" if name.startswith("state") else name: x for name, x in shorter.items()}
    return BlockKernel(made, arguments, results, shorter, condition)


def _permuted(place: int, codes: StateCodes) -> StateCodes:
    """Codes that permutes decode and encode where a processor has them, see `Permuted`."""

    def decode(xp: Any, lanes: Any, constants: Any, count: int) -> Value:
        bits = codes.laws.decode(xp, lanes, constants, count)
        return bits.trace.note(f"PERMUTED(plain_state{place}[j], {{}})", bits)

    def encode(xp: Any, bits: Any, constants: Any) -> Value:
        return bits.trace.note("PERMUTED({}, {})", bits, codes.laws.encode(xp, bits, constants))

    made = copy(codes)
    object.__setattr__(made, "laws", codes.laws._replace(decode=decode, encode=encode))
    return made


def _results(
    made: Trace, variant: AdamVariant, codes: list[StateCodes | None], given: list[Value], xp: Any
) -> tuple[dict[str, Value], list[Value]]:
    """The results by the names of their arrays; and the parameter and the gradient, and scales, as they are read."""
    rate, eps, decay, *factors, first, second = given
    pairs = [factors[:2], factors[2:]]
    means = pairs if variant.small is None else [Weight(*one) for one in zip(variant.small, factors, strict=True)]
    decay = decay if variant.decays else 0.0
    numbers = AdamNumbers(xp.settled(rate), eps, decay, means[0], means[1], first, second)
    states = [_state(made, place, one, variant.dtype, xp) for place, one in enumerate(codes)]
    p = _read(made, "p", variant.dtype)
    if variant.rounding in _ERRORS:
        error = made.value("remainder[j]", variant.rounding, ELEMENT)
        p = weight_with_error(xp, xp.settled(p), error, variant.dtype, variant.rounding)
    elif variant.rounding == "remainder":
        rest = made.value("remainder[j]", "int16", ELEMENT)
        p = xp.floats(join_weight(xp, made.value("p[j]", "int16", ELEMENT), rest))
    p, gradient = (xp.settled(x) for x in (p, _read(made, "gradient", variant.gradient)))
    read = [p, gradient, *(state[1] for state in states if len(state) > 1)]
    law = flash_of_blocks if variant.small is None else adam_of_blocks
    p, found = law(xp, p, gradient, states, numbers, codes, variant.decoupled)
    results = dict(_written(made, _Names.one_nan(p), variant))
    for place, (one, state) in enumerate(zip(codes, found, strict=True)):
        if one is None:
            results[f"state{place}"] = _stored(xp.one_nan(state[0]), variant.dtype)
        else:
            kept, of_scale = one.dtypes
            lanes = state[0] if kept == "uint8" else xp.astype(state[0], kept)
            results |= {f"state{place}": lanes, f"scale{place}": _stored(xp.one_nan(state[1]), of_scale)}
    return results, read


# What makes a block usual: no result of an operation in it is from 2^-149 to 2^-126, and `settled` changes nothing. A
# sum of two float32 numbers that is not 0 is at least half of the larger term, or a multiple of the last place of half
# of it. With moments' weights w from 2^-14 on, the least numbers but 0 are these:
#
#     moments m, v       2^-62   by the maps, of scales from 2^-40 on (of e4m3fn 2^-49)
#     gradient g         2^-55   g * g 2^-110, g - m 2^-80, g * g - v 2^-110
#     m + w (g - m)      2^-110, and checked: 2^-80; v + w (g * g - v) 2^-124
#     rate * (m / c)     2^-104, of rates from 2^-24 on; over a root + eps of at most 2^18: 2^-122
#     parameter p        2^-60   rate * decay * p 2^-100, p - that 2^-100, p - the change 2^-124
_LEAST_PARAMETER, _LEAST_GRADIENT, _LEAST_MOMENT = -60, -55, -80
_LEAST_RATE, _LEAST_DECAY, _LEAST_WEIGHT, _LEAST_SCALE = 2.0**-24, 2.0**-40, 2.0**-14, 2.0**-40
_LARGEST_SQUARE = 20  # the exponent of the largest second moment
# How many times the block's former largest magnitude a moment may have. The least number of a map is at least 2^-21.6,
# so products are at most 2^26 times the moments that they are added to, see `add_product` in `blocks.c`.
_MOST_GROWTH = 16


def _is_usual(
    given: list[Value], read: list[Value], maxima: list[Value], codes: list[StateCodes], decoupled: bool
) -> Value:
    """See above: 1 if a block is usual, else 0; an infinity or a NaN in it is not."""
    rate, eps, decay, *rest = given
    p, gradient, *scales = read
    *near, largest, square = maxima[:4]
    squares = [square, *maxima[4:]]
    found = _zero_or(rate, _LEAST_RATE) & _zero_or(eps, 2.0**_LEAST_MOMENT) & (eps <= 1.0)
    found = found & (_zero_or(rate * decay, _LEAST_DECAY) if decoupled else decay == 0.0)
    for one in rest:
        found = found & (one >= _LEAST_WEIGHT)
    for one, coded in zip(scales, codes, strict=True):
        found = found & _zero_or(one, _LEAST_SCALE if coded.laws.largest == 1 else _LEAST_SCALE / 512)
    for one, scale, most, coded in zip(near, scales, (largest, square), codes, strict=False):
        grows_little = _Names.floats(most) <= scale * (_MOST_GROWTH * coded.laws.largest)
        found = found & (one == 0) & (grows_little | (scale == 0.0))
    for bits, exponent in (
        (_Names.bits(p), _LEAST_PARAMETER),
        (_Names.bits(gradient), _LEAST_GRADIENT),
        (largest.operands[0], _LEAST_MOMENT),
    ):
        # Ascending from 0 on, as zeros become the least integer, and others the larger the smaller they are.
        found = found & (bits.trace.amax(-0x80000000 - (bits << 1), (1,)) <= 0x80000000 - (_bits_of(exponent) << 1))
    for one in squares:
        found = found & (one <= _bits_of(_LARGEST_SQUARE))
    return found & (largest < FLOAT32.infinity)


def _zero_or(x: Value, least: float) -> Value:
    return (x >= least) | (x == 0.0)


def _bits_of(exponent: int) -> int:
    """The bits of a power of 2."""
    return (exponent + 127) << FLOAT32.width


def _arguments(variant: AdamVariant, codes: list[StateCodes | None]) -> Iterator[Argument | Pairs | Permuted]:
    dtype = "int16" if variant.dtype == "bfloat16" else variant.dtype
    yield Argument("numbers", "float32")
    if variant.rounding == "stochastic":
        yield from (Argument("key", "int32"), Argument("window", "int32"))
    for place, one in enumerate(codes):
        if one is not None and not one.companded:
            yield from (Argument(f"decoding{place}", "int32"), Argument(f"encoding{place}", "int32"))
            yield Permuted(f"permutes{place}", f"state{place}", one.bits, one.kind in SIGNED)
    yield Argument("gradient", "int16" if variant.gradient == "bfloat16" else variant.gradient, ELEMENT)
    yield Argument("p", dtype, ELEMENT)
    for place, one in enumerate(codes):
        if one is None:
            yield Argument(f"state{place}", dtype, ELEMENT)
        else:
            kept, of_scale = one.dtypes
            yield Pairs(f"state{place}") if one.bits == 4 else Argument(f"state{place}", kept, ELEMENT)
            yield Argument(f"scale{place}", of_scale, BLOCK)
    if variant.rounding in _BESIDE:
        yield Argument("remainder", _BESIDE[variant.rounding], ELEMENT)


def _state(made: Trace, place: int, codes: StateCodes | None, dtype: str, xp: Any) -> tuple[Any, ...]:
    if codes is None:
        return (xp.settled(_read(made, f"state{place}", dtype)),)
    kept, of_scale = codes.dtypes
    scale = xp.settled(_wide(made.value(f"scale{place}[block]", of_scale, BLOCK), of_scale))
    tables = [Constants(made, "int32", f"{name}{place}") for name in ("decoding", "encoding")]
    lanes = made.value(f"state{place}[j]", kept, ELEMENT)
    return _Names.to_int32(lanes), scale, *tables


def _read(made: Trace, name: str, dtype: str) -> Any:
    """An array's element as a float32 number."""
    return _wide(made.value(f"{name}[j]", "int16" if dtype == "bfloat16" else dtype, ELEMENT), dtype)


def _wide(x: Any, dtype: str) -> Any:
    """A stored number of a dtype as a float32 number."""
    if dtype == "bfloat16":
        return _Names.floats(_Names.to_int32(x) << 16)
    return x if dtype == "float32" else _Names.to_float32(x)


def _stored(x: Any, dtype: str) -> Any:
    """A float32 number rounded to a dtype."""
    if dtype == "bfloat16":
        return x.trace.note("to_bfloat16({})", x, dtype="int16")
    return x if dtype == "float32" else x.trace.note("(_Float16){}", x, dtype="float16")


def _written(made: Trace, p: Any, variant: AdamVariant) -> Iterator[tuple[str, Any]]:
    """The results that hold the parameter."""
    if variant.rounding == "nearest":
        yield "p", _stored(p, variant.dtype)
    elif variant.rounding in _ERRORS:
        yield "p", (high := _stored(p, variant.dtype))
        written = _Names.settled(_wide(high, variant.dtype))
        yield "remainder", weight_error(_Names, p, written, variant.dtype, variant.rounding)
    elif variant.rounding == "remainder":
        yield from zip(("p", "remainder"), split_weight(_Names, _Names.bits(p)), strict=True)
    else:
        program, constants = prepare(parse("bfloat16"), Rounding.STOCHASTIC, FLOAT32, "inf", False)
        word = random_word(made, False, FLOAT32, False)
        yield "p", _Names.astype(program.run(made, _Names.bits(p), constants, (), word) >> 16, "int16")
