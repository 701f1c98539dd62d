"""Inputs on which rounding goes wrong when it can: where tests and benchmarks compare bits.

Random numbers almost never lie on a midpoint or among the subnormals, so every format gets its own representable
values, the midpoints between them and their neighbours, next to all half-precision codes and random bit patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

import ml_dtypes
import numpy as np

from qcore import (
    NAMED,
    NVFP4,
    BinaryFloat,
    BlockFloatingPoint,
    BlockScaled,
    FixedPoint,
    FloatingPoint,
    Number,
    Posit,
    Rounding,
    Table,
    decode,
    encode,
    p3109,
)
from qcore.law.rounding import RoundingName
from qcore.law.tiles import block_sizes, tiles

FORMATS: tuple[Number, ...] = (
    *(FloatingPoint(exp, man) for exp, man in ((2, 1), (3, 2), (4, 3), (5, 2), (5, 10), (6, 9), (8, 0), (8, 7))),
    *(FloatingPoint(exp, man) for exp, man in ((8, 10), (8, 23), (9, 2), (5, 0))),
    *(FixedPoint(wl, fl) for wl, fl in ((2, 1), (4, 2), (8, 4), (8, 0), (16, 10), (24, 20), (8, -3))),
    FixedPoint(8, 4, symmetric=True),
    FixedPoint(8, 7, clamp=False),
    *(BlockFloatingPoint(wl, dim) for wl, dim in ((2, -1), (8, -1), (8, 0), (8, 1), (16, 2), (22, 1))),
)
_GENERAL: tuple[Number, ...] = (
    *(p3109(bits, precision) for bits, precision in ((8, 3), (8, 1), (6, 6), (16, 11))),
    *(p3109(8, precision, signed, extended=False) for precision, signed in ((4, True), (5, False))),
    p3109(8, 1, signed=False),
    FloatingPoint(4, 3, bias=20),
    FloatingPoint(5, 2, subnormals=False),
    FloatingPoint(8, 3, bias=135, subnormals=False),
    FloatingPoint(4, 2, bias=140),
    BinaryFloat(8, 4, bias=140, specials="fn"),
    FixedPoint(6, 2, signed=False),
    *(Posit(bits, es) for bits, es in ((8, 0), (16, 1), (32, 3), (6, 5), (3, 1), (2, 0))),
    Table([-10, 1, 13, 0.3, 2.0**-30]),
    Table([one * abs(one) + 0.125 for one in range(-20, 20)]),
    Table([-3, -0.5, 0, 0.7, 8], thresholds=[-1, -0.25, 0.125, 8]),
    NVFP4(law="torchao_0_16"),
    BlockScaled("e4m3fn", {-1: 32}, scale="bfloat16"),
    BlockScaled("nf4", {-1: 64}, "absmax", "float32"),
    BlockScaled("nf4", {"flat": 64}, "absmax", "float32"),
    BlockScaled("fp4_bnb", {-1: 16}, scale="e4m3fn", tensor_scale="float32"),
)
_POLICIES = ("saturate", "propagate", "inf", "nan", "wrap")


def _variants(number: Number) -> Iterator[Number]:
    """The format with each of its overflow policies."""
    for policy in _POLICIES:
        with suppress(ValueError):
            yield number.overflowing(policy)


# Elements, blocks and rules beyond those of the named block formats.
BLOCKS: tuple[Number, ...] = (
    NVFP4({-2: 16, -1: 16}),
    *(BlockScaled("e4m3fn", {-1: 32}, rule) for rule in ("ceil", "even", "rceil", "round")),
    BlockScaled("e2m1fn", {-2: 32}, "rceil"),
    BlockScaled("e5m2", {-2: 16, -1: 16}, "even"),
    BlockScaled("int8", {0: 1, ...: None}, "ceil"),
    BlockScaled("e3m2fn", {...: None}),
    BlockScaled("e4m3fnuz", {0: 2, -1: 7}, "rceil"),
    BlockScaled(FixedPoint(5, 7, signed=False), {-1: None}, "even"),
    BlockScaled(p3109(8, 1), {-1: 24}),
)


# Beyond FORMATS: all named formats, general ones, and the policies for overflow that are not their own.
MORE = tuple(
    dict.fromkeys(
        variant
        for number in (*(number for number, _ in NAMED.values()), *_GENERAL)
        for variant in (number, *_variants(number))
        if variant not in FORMATS
    )
)
MODES: tuple[RoundingName, ...] = tuple(mode.value for mode in Rounding)

_SEED = 20_261_120


def hard_inputs(number: Number, count: int = 300_000, dtype: type = np.float32) -> list[np.ndarray]:
    """Arrays with at least `count` elements together: one with exactly so many, or for blocks one of each kind.

    Args:
        number: the format that the inputs are hard for.
        count: how many elements; fewer than 200,000 do not leave room for all half-precision codes.
        dtype: np.float32, np.float64, np.float16 or ml_dtypes.bfloat16.
    """
    rng = np.random.default_rng(_SEED)
    if isinstance(number, BlockFloatingPoint):
        return _blocks(number, count, dtype, rng)
    if isinstance(number, BlockScaled):
        return _scaled_blocks(number, count, dtype, rng)
    values = _values(number, rng)
    with np.errstate(over="ignore"):
        points = np.concatenate([values, *_around(values, number)]).astype(dtype)
    points = _distinct(np.concatenate([points, _neighbours(points)]).view(f"u{np.dtype(dtype).itemsize}")).view(dtype)
    points = _at_most(np.concatenate([points, -points]), count // 2, rng)
    codes = _at_most(all_codes(dtype), (count - points.size) * 3 // 4, rng)
    return [np.concatenate([points, codes, random_bits(count - points.size - codes.size, dtype, rng)])]


def _distinct(values: np.ndarray) -> np.ndarray:
    """What np.unique returns, in a twentieth of the time: it hashes integers."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])]


def _at_most(values: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return values if values.size <= count else rng.choice(values, count, replace=False)


def all_codes(dtype: type) -> np.ndarray:
    """All float16 and all bfloat16 numbers that the dtype can hold, and its largest, smallest and special ones."""
    codes = np.arange(2**16, dtype=np.uint16)
    info = ml_dtypes.finfo(dtype)
    edges = [info.max, info.smallest_normal, info.smallest_subnormal, np.inf, np.nan, 0.0, 1.0]
    with np.errstate(all="ignore"):
        halves = [codes.view(np.float16).astype(dtype), codes.view(ml_dtypes.bfloat16).astype(dtype)]
        return np.concatenate([*halves, np.array(edges).astype(dtype)])


def random_bits(count: int, dtype: type, rng: np.random.Generator) -> np.ndarray:
    """Any bit pattern is as likely as any other: NaN payloads, infinities and subnormals among them."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True).view(dtype)


def _values(number: Number, rng: np.random.Generator) -> np.ndarray:
    """The format's numbers >= 0, as exact float64: all of them, or a sample with every exponent and both ends."""
    if isinstance(number, FixedPoint):
        highest = 2 ** min(number.wl - number.signed, 30) + 2
        steps = np.arange(highest) if highest < 2**14 else rng.integers(0, highest, 2**14)
        return np.concatenate([steps, np.arange(16), highest - np.arange(16)]).clip(0) * 2.0**-number.fl
    if isinstance(number, Posit):
        return np.concatenate([[0.0], decode(_posit_codes(number, rng), number, np.float64)])
    if isinstance(number, Table):
        return np.abs([*number.finite, number.beyond or 0.0])
    assert isinstance(number, FloatingPoint | BinaryFloat)
    magnitudes = number.magnitudes
    exponents = np.arange(
        max(magnitudes.lowest, -149), min(magnitudes.span[2] + 1, 127) + 1
    )  # and where overflow begins
    room = max(2**14 // len(exponents), 8)
    all_steps = 2**number.man
    steps = np.arange(all_steps) if all_steps <= room else rng.integers(0, all_steps, room)
    steps = np.concatenate([steps, [0, all_steps - 1]])
    normal = (1 + steps / all_steps) * 2.0 ** exponents[:, None]
    subnormal = steps / all_steps * 2.0 ** exponents[0]
    return np.concatenate([normal.ravel(), subnormal])


def _posit_codes(number: Posit, rng: np.random.Generator) -> np.ndarray:
    """Codes of positive posits: all, or a sample with every regime, and both ends."""
    end = 1 << (number.bits - 1)
    if end <= 2**15:
        return np.arange(1, end)
    regimes = 1 << np.arange(1, number.bits - 1)
    sample = rng.integers(regimes[:, None], 2 * regimes[:, None], (regimes.size, 256)).ravel()
    ends = np.arange(1, 16)
    return np.concatenate([sample, end - sample, regimes, end - regimes, ends, end - ends])


def _around(values: np.ndarray, number: Number) -> list[np.ndarray]:
    """Midpoints above and below each number, and points deep between zero and the smallest number."""
    if isinstance(number, FixedPoint):
        step = np.full_like(values, 2.0**-number.fl)
    elif isinstance(number, Posit):
        return _around_posits(values, number)
    elif isinstance(number, Table):
        return _around_table(number)
    else:
        assert isinstance(number, FloatingPoint | BinaryFloat)
        exponent = np.frexp(values)[1] - 1
        lowest = max(number.magnitudes.lowest, -149)
        step = 2.0 ** (np.maximum(np.where(values > 0, exponent, -200), lowest) - number.man)
    deep = step.min() * 2.0 ** -np.arange(0, 60)
    return [values + step / 2, values - step / 2, deep, deep * 1.5]


def _around_posits(values: np.ndarray, number: Posit) -> list[np.ndarray]:
    """Midpoints of codes above each posit, whose exponents lie in the middle where those of the posits have fewer bits
    than others, and what is beyond the smallest and the largest."""
    codes = encode(values[(values > 0) & (values < values.max())], number)
    below, above = decode(codes, number, np.float64), decode(codes + 1, number, np.float64)
    exponents = np.frexp(below)[1] + np.frexp(above)[1] - 2
    middle = np.where(above > 2 * below, np.ldexp(1.0, exponents // 2), below / 2 + above / 2)
    powers = 2.0 ** np.arange(60)
    return [middle, values.max() * powers, values.max() * powers * 1.5, 1 / (values.max() * powers)]


def _around_table(number: Table) -> list[np.ndarray]:
    """Midpoints, thresholds, and points between neighbours that are almost one of them."""
    ends = () if number.beyond is None else (-number.beyond, number.beyond)
    ordered = np.unique([*number.finite, *ends])
    low, gaps = ordered[:-1], np.diff(ordered)
    between = [low + gaps * part for part in (0.5, 2.0**-24, 0.25, 1 - 2.0**-24)]
    return [*between, np.array(number.thresholds or ()), ordered[-1] * 2.0 ** -np.arange(60)]


def _neighbours(points: np.ndarray) -> np.ndarray:
    bits = points.view(np.dtype(f"i{points.dtype.itemsize}"))
    return np.concatenate([bits + 1, bits - 1]).view(points.dtype)


def _blocks(number: BlockFloatingPoint, count: int, dtype: type, rng: np.random.Generator) -> list[np.ndarray]:
    """3-D arrays: for dim >= 0 each index along it is a block of its own kind, else each array is."""
    kinds = 24
    side = max(math.isqrt(-(-count // kinds) - 1) + 1, 2)  # so that no dimension has length 1
    blocks = [_block(kind, number.wl, side * side, dtype, rng) for kind in range(kinds)]
    if number.dim == -1:
        return [block.reshape(1, side, side) for block in blocks]
    return [np.ascontiguousarray(np.moveaxis(np.stack(blocks).reshape(kinds, side, side), 0, number.dim))]


def _block(kind: int, wl: int, size: int, dtype: type, rng: np.random.Generator) -> np.ndarray:
    """One block: its maximum's exponent goes through the range with `kind`, and so do its special elements."""
    info = ml_dtypes.finfo(dtype)
    lowest = int(np.log2(float(info.smallest_subnormal)))
    exponent = np.linspace(lowest, info.maxexp - 1, 16).round().astype(int)[kind % 16]
    steps = rng.integers(-(2**wl), 2**wl, size, endpoint=True)  # half steps: every second one is a tie
    with np.errstate(all="ignore"):
        block = np.ldexp(steps.astype(np.float64), exponent - wl).astype(dtype)
    if kind % 3 == 1:
        block = _neighbours(block)[:size]
    special = {16: [np.nan], 17: [np.inf], 18: [-np.inf, np.nan], 20: [np.nextafter(dtype(1), dtype(0))]}
    for place, value in enumerate(special.get(kind, [])):
        block[place] = value
    if kind == 19:
        block[:] = 0
        block[::2] = -block[::2]
    if kind == 21:
        block[:] = np.nan
    return block if kind != 22 else random_bits(size, dtype, rng)


def _scaled_blocks(number: BlockScaled, count: int, dtype: type, rng: np.random.Generator) -> list[np.ndarray]:
    """3-D arrays whose sizes the usual tiles do not divide: the element's numbers, midpoints and their neighbours,
    times powers of two that go through dtype's range from block to block, with special elements in some."""
    rows = max(math.isqrt(count // 3 * 2 // 3), 4)
    if tiles((3, rows, rows * 3 // 2), block_sizes(number.block, 3)).counts == (1, 1, 1):
        side = max(math.isqrt(count // 24), 4)
        return [_scaled_block(number, (1, side, side), kind, dtype, rng) for kind in range(24)]
    return [_scaled_block(number, (3, rows, rows * 3 // 2), None, dtype, rng)]


def _scaled_block(
    number: BlockScaled, shape: tuple[int, ...], kind: int | None, dtype: type, rng: np.random.Generator
) -> np.ndarray:
    """Blocks of one kind, or of all of them by turns."""
    info, element = ml_dtypes.finfo(dtype), number.element
    values = _values(element, rng)
    points = np.concatenate([values, *_around(values, element)])
    points = points[np.abs(points) <= 2 * values.max()]
    split = tiles(shape, block_sizes(number.block, 3))
    kinds = (np.arange(math.prod(split.counts)) if kind is None else np.array([kind])).reshape(split.counts)
    for axis, length in enumerate(split.cut):
        size = split.padded[axis] // split.counts[axis]
        kinds = np.repeat(kinds, size, axis=axis).take(range(length), axis=axis)
    kinds = kinds.reshape(shape)
    lowest, highest = int(np.log2(float(info.smallest_subnormal))), info.maxexp
    emax = int(np.frexp(values.max())[1])
    exponents = np.linspace(lowest, highest, 37).round().astype(int)[kinds * 5 % 37] - emax
    with np.errstate(all="ignore"):
        x = np.ldexp(rng.choice(points, shape) * rng.choice([-1.0, 1.0], shape), exponents).astype(dtype)
        near = _neighbours(x.reshape(-1))
        x = np.where(rng.random(shape) < 0.3, near[: x.size].reshape(shape), x)
        x = np.where(np.isfinite(x), x, 1).astype(dtype)
        power = np.ldexp(1.0, exponents + emax - 1).astype(dtype)
        below = np.nextafter(power, dtype(0))
    x = np.where(kinds % 12 == 1, np.clip(x, -power, power), x)  # maxima that are powers of two, or just below
    x = np.where(kinds % 12 == 3, np.clip(x, -below, below), x)
    x = np.where(kinds % 24 == 5, x * 0, x)
    rare = rng.random(shape) < 0.05
    x = np.where((kinds % 24 == 7) & rare, dtype(np.nan), x)
    x = np.where((kinds % 24 == 9) & rare, dtype(-np.inf), x)
    with np.errstate(invalid="ignore"):
        return np.where(kinds % 24 == 11, random_bits(x.size, dtype, rng).reshape(shape), x).astype(dtype)


_TINY = 5420  # places of exponentials that reach a unit of float64 together, and do not one by one


def tie_row(length: int = _TINY + 6) -> np.ndarray:
    """A row of numbers whose softmax depends on the order of its sum, unless the sum is exact; -inf at its end.

    It has 1, two exponentials that put the sum on a tie of float32, and exponentials of -44 on even places before them.
    In a sum of float64 those are lost one by one, or not, as the row is cut.
    """
    row = np.full(length, -np.inf, np.float32)
    row[:_TINY:2] = -44
    row[[_TINY + 1, _TINY + 3, _TINY + 5]] = 0, float.fromhex("-0x1.5ffe3p+2"), float.fromhex("-0x1.6ebe1ep+3")
    return row
