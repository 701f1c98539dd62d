"""A step of Adam in one pass over memory: decoded, updated and encoded by one kernel in C, where everything is kept."""

from __future__ import annotations

from collections.abc import Iterator
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
from qcore.reproducible.state_codes import (
    AdamNumbers,
    StateCodes,
    Weight,
    adam_of_blocks,
    as_weight,
    correction,
    join_weight,
    split_weight,
)
from qcore.trace import BLOCK, CONSTANT, ELEMENT, FloatValue, Trace, Value
from qtorch._kernels.blocks import MOST, BlockKernel, Pairs
from qtorch._kernels.laws import Constants, random_word
from qtorch._kernels.source import Argument
from qtorch._kernels.store import Function, load
from qtorch._rounding.keys import make_noise
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.reproducible.fused import trace

RANDOM_BITS = 16  # as many as a bfloat16 number has fewer than a float32 number
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_ALONE = 1024  # neighbours at a time where states are floats, which have no blocks
_LONGEST = 1 << 31  # numbers whose indices are the low words of counters


class AdamVariant(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        kinds: the codes of each state, see `StateCodes`; None for floats of the parameter's dtype.
        dtype, gradient: of the parameter and of its gradient, as C has them.
        rounding: how the parameter is written: "nearest", "stochastic", or "remainder" beside the rest of its bits.
        small: `Weight.small` of the moments' weights.
        decoupled: True for AdamW.
    """

    kinds: tuple[str | None, ...]
    dtype: str
    gradient: str
    rounding: str
    small: tuple[bool, bool]
    decoupled: bool


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

    @classmethod
    def settled(cls, x: Any) -> Any:
        return x.trace.note("settled({})", x)

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


class AdamStep(NamedTuple):
    """A step of a parameter: what an optimizer's group says, the step's number, and how the parameter is written."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    rate: float
    count: float
    decoupled: bool
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
        wanted = [(p.numel(), gradient.dtype), *_wanted(p, codes, remainder)]
        fits = are_plain_tensors(every) and p.is_cpu and block <= MOST and 0 < p.numel() < _LONGEST
        if not fits or gradient.dtype not in _DTYPES or [(x.numel(), x.dtype) for x in every] != wanted:
            return False
        weights = [as_weight(1 - beta) for beta in self.betas]
        kinds = tuple([None if one is None else one.kind for one in codes])
        small = weights[0].small, weights[1].small
        variant = AdamVariant(kinds, _DTYPES[p.dtype], _DTYPES[gradient.dtype], self.rounding, small, self.decoupled)
        kernel = _kernel(variant)
        if kernel is None:
            return False
        numbers = [self.rate, self.eps, self.weight_decay, *(one.factor for one in weights)]
        numbers += [_correction(beta, self.count) for beta in self.betas]
        constants = np.array(numbers, np.float32)
        noise = () if self.key is None else make_noise(self.key, RANDOM_BITS, 0, p)
        tables = [x for one in codes if one is not None for x in (one.laws.decoding, one.laws.encoding)]
        slope, *rooms = map(_as_memory, every)
        addresses = [x.data_ptr() for x in (*noise, slope, *rooms)]
        kernel(
            p.numel(),
            block,
            constants.ctypes.data,
            *addresses[: len(noise)],
            *(x.ctypes.data for x in tables),
            *addresses[len(noise) :],
        )
        for x, room in zip(written, rooms, strict=True):
            if room is x:
                increment_version(x)
            else:
                x.copy_(room)
        return True


def _wanted(
    p: torch.Tensor, codes: list[StateCodes | None], remainder: torch.Tensor | None
) -> Iterator[tuple[int, torch.dtype]]:
    """The sizes and dtypes of what a step writes: a kernel would read beyond others, which users may put there."""
    yield p.numel(), p.dtype
    for one in codes:
        if one is None:
            yield p.numel(), p.dtype
        else:
            yield from zip(one.counts(p.numel()), (torch.uint8, torch.float32), strict=True)
    if remainder is not None:
        yield p.numel(), torch.int16


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
    order, of the key and the window (see `Noise`) if rounding is stochastic, for each state in codes of the constants
    of its decoder and its encoder, of the gradient, the parameter, the states, and the remainder.
    """
    return load(traced(variant).source())


def traced(variant: AdamVariant) -> BlockKernel:
    """The kernel's law."""
    made = _Trace()
    codes = [None if kind is None else StateCodes(kind, 2) for kind in variant.kinds]
    given = [made.value(f"numbers[{place}]", "float32", CONSTANT) for place in range(7)]
    rate, eps, decay, first, second, *corrections = given
    weights = Weight(variant.small[0], first), Weight(variant.small[1], second)
    numbers = AdamNumbers(_Names.settled(rate), eps, decay, *weights, *corrections)
    states = [_state(made, place, one, variant.dtype) for place, one in enumerate(codes)]
    p = _read(made, "p", variant.dtype)
    if variant.rounding == "remainder":
        rest = made.value("remainder[j]", "int16", ELEMENT)
        p = _Names.floats(join_weight(_Names, made.value("p[j]", "int16", ELEMENT), rest))
    p, gradient = (_Names.settled(x) for x in (p, _read(made, "gradient", variant.gradient)))
    p, found = adam_of_blocks(_Names, p, gradient, states, numbers, codes, variant.decoupled)
    results = dict(_written(made, _Names.one_nan(p), variant))
    for place, (one, state) in enumerate(zip(codes, found, strict=True)):
        if one is None:
            results[f"state{place}"] = _stored(_Names.one_nan(state[0]), variant.dtype)
        else:
            results |= {f"state{place}": state[0], f"scale{place}": _Names.one_nan(state[1])}
    return BlockKernel(made, list(_arguments(variant, codes)), results)


def _arguments(variant: AdamVariant, codes: list[StateCodes | None]) -> Iterator[Argument | Pairs]:
    dtype = "int16" if variant.dtype == "bfloat16" else variant.dtype
    yield Argument("numbers", "float32")
    if variant.rounding == "stochastic":
        yield from (Argument("key", "int32"), Argument("window", "int32"))
    for place, one in enumerate(codes):
        if one is not None:
            yield from (Argument(f"decoding{place}", "int32"), Argument(f"encoding{place}", "int32"))
    yield Argument("gradient", "int16" if variant.gradient == "bfloat16" else variant.gradient, ELEMENT)
    yield Argument("p", dtype, ELEMENT)
    for place, one in enumerate(codes):
        if one is None:
            yield Argument(f"state{place}", dtype, ELEMENT)
        else:
            yield Pairs(f"state{place}") if one.bits == 4 else Argument(f"state{place}", "uint8", ELEMENT)
            yield Argument(f"scale{place}", "float32", BLOCK)
    if variant.rounding == "remainder":
        yield Argument("remainder", "int16", ELEMENT)


def _state(made: Trace, place: int, codes: StateCodes | None, dtype: str) -> tuple[Any, ...]:
    if codes is None:
        return (_Names.settled(_read(made, f"state{place}", dtype)),)
    scale = _Names.settled(made.value(f"scale{place}[block]", "float32", BLOCK))
    tables = [Constants(made, "int32", f"{name}{place}") for name in ("decoding", "encoding")]
    lanes = made.value(f"state{place}[j]", "int32" if codes.bits == 4 else "uint8", ELEMENT)
    return _Names.to_int32(lanes), scale, *tables


def _read(made: Trace, name: str, dtype: str) -> Any:
    """An array's element as a float32 number."""
    if dtype == "bfloat16":
        return _Names.floats(_Names.to_int32(made.value(f"{name}[j]", "int16", ELEMENT)) << 16)
    x = made.value(f"{name}[j]", dtype, ELEMENT)
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
    elif variant.rounding == "remainder":
        yield from zip(("p", "remainder"), split_weight(_Names, _Names.bits(p)), strict=True)
    else:
        program, constants = prepare(parse("bfloat16"), Rounding.STOCHASTIC, FLOAT32, "inf", False)
        word = random_word(made, False, FLOAT32, False)
        yield "p", _Names.astype(program.run(made, _Names.bits(p), constants, (), word) >> 16, "int16")
