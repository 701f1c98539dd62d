"""Figures that others published, computed again: sums, formats and small trainings, in seconds to a minute each.

Usage:
    python -m benchmarks.published                            all of them
    python -m benchmarks.published --only harmonic fasi
    python -m benchmarks.published --tables P3109/Public      compares IEEE P3109's value tables, a checkout, as well
    python -m benchmarks.published --json benchmarks/results/published.json
    python -m benchmarks.published --draw docs                draws the pictures of the committed results

A row has what was published, as its source prints it, and the same figure by this library. docs/checked.md shows the
rows. What was not read in its source is "not published".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.support.arguments import output_file
from benchmarks.support.results import write_results
from benchmarks.support.timing import ROOT, machine, versions
from qcore import NVFP4, Accumulator, Rounding, decode, encode, p3109, parse, quantize
from qcore.law.rounding import RoundingName
from qcore.linalg import matmul
from qcore.pictures import draw_curves, in_two_widths, picture

FILE = ROOT / "benchmarks" / "results" / "published.json"


class Row(NamedTuple):
    """A published figure and ours.

    Attributes:
        source: who published it, and when.
        what: the figure.
        published: as the source prints it.
        ours: the same, by this library.
    """

    source: str
    what: str
    published: str
    ours: str


class Line(NamedTuple):
    """A line of a picture: its panel, its name, its points (x, y)."""

    panel: str
    name: str
    points: list[tuple[float, float]]


Found = Iterator[Row | Line]

HIGHAM = "Higham 2018, as cited in Klöwer 2019; Higham and Pranesh 2019"
OLSON = "Olson and Klöckner 2020, notebook on the harmonic series"
HARMONIC = {
    "bfloat16": "5.0625 at 65 terms",
    "float16": "7.0859 at 513 terms",
    "float32": "15.4037 at all multiples of 200000 terms from 2200000 on",
    "e4m3fn": "not published",
    "e5m2": "not published",
}


def harmonic(formats: tuple[str, ...] = tuple(HARMONIC), block: int = 4096) -> Found:
    """The sum of 1/n, term by term, until a term does not change it."""
    for text in formats:
        total, terms = _harmonic_sum(text, block)
        ours = f"{total:.8g} at {terms} terms"
        source = OLSON if text == "float32" else HIGHAM
        yield Row(source, f"sum of 1/n stops, {text}", HARMONIC[text], ours)


def _harmonic_sum(text: str, block: int) -> tuple[float, int]:
    """The last sum, and the number of the first term that does not change it."""
    import torch

    from qtorch import linalg

    def added(total: Any, first: int, last: int) -> Any:
        terms = quantize(1 / np.arange(first, last, dtype=np.float64), text).astype(np.float32)
        return linalg.matmul(torch.ones(1, len(terms)), torch.from_numpy(terms)[:, None], total, accumulator=sums)

    sums = Accumulator(text, chunk=1)
    total, first = torch.zeros(1, 1), 1
    before = total
    # Whole blocks go fast. The sum of the last block is repeated term by term, to find where it stops.
    while (after := added(total, first, first + block)) != total:
        before, total, first = total, after, first + block
    total, first = before, max(first - block, 1)
    while (after := added(total, first, first + 1)) != total:
        total, first = after, first + 1
    return float(total), first


WANG = "Wang et al. 2018"
SUMS = {  # of 1-6-9 numbers
    "chunks of 1": Accumulator("float(6,9)", chunk=1),
    "chunks of 32": Accumulator("float(6,9)", chunk=32, inner=Accumulator("float(6,9)", chunk=1)),
    "stochastic": Accumulator("float(6,9)", chunk=1, rounding="stochastic"),
}
SWAMPED = {
    "chunks of 1": "not published",
    "chunks of 32": "chunks make sums of 16 bits possible",
    "stochastic": "so does stochastic rounding, in updates of weights",
}


def swamping(terms: int = 16384, part: int = 512) -> Found:
    """Sums of numbers of mean 1 and deviation 1 in 1-6-9, over the true sum, by the number of terms."""
    x = np.random.default_rng(0).uniform(1 - 3**0.5, 1 + 3**0.5, terms).astype(np.float32)
    x = quantize(x, "float(6,9)")
    for name, sums in SUMS.items():
        points = _partial_sums(x[None], sums, part)
        shown = ", ".join(f"{ratio[0]:.3f}" for n, ratio in points if n & (n - 1) == 0 and 8 * n >= terms)
        sizes = f"{terms // 8}, {terms // 4}, {terms // 2}, {terms} terms"
        yield Row(WANG, f"sum / true sum, 1-6-9, {name}; {sizes}", SWAMPED[name], shown)
        yield Line("swamping", name, [(n, round(float(ratio[0]), 4)) for n, ratio in points])


def _partial_sums(x: np.ndarray, sums: Accumulator, part: int) -> list[tuple[int, np.ndarray]]:
    """Each row's sum over its true sum, after every part; a part goes on from the sum before as its addend."""
    total, found = np.zeros((len(x), 1), np.float32), []
    for key, begin in enumerate(range(0, x.shape[1], part)):
        terms = x[:, begin : begin + part]
        # Each call counts its random words from 0, so each has a key of its own.
        words = key if sums.rounding is Rounding.STOCHASTIC else None
        total = matmul(terms, np.ones((terms.shape[1], 1), np.float32), total, accumulator=sums, key=words)
        end = begin + terms.shape[1]
        found.append((end, total[:, 0] / x[:, :end].sum(axis=1, dtype=np.float64)))
    return found


CONNOLLY = "Connolly, Higham and Mary 2021"
UNIT = 2.0**-8  # the unit roundoff of bfloat16


def stochastic_sums(terms: int = 4096, rows: int = 16, part: int = 64) -> Found:
    """The relative error of sums of uniform numbers in bfloat16, mean of several, by the number of terms."""
    x = quantize(np.random.default_rng(1).random((rows, terms), np.float32), "bfloat16")
    bounds: dict[RoundingName, str] = {"nearest": "stagnates", "stochastic": "at most a multiple of sqrt(n) u"}
    sizes = [terms // 16, terms // 4, terms]
    for mode, bound in bounds.items():
        found = _partial_sums(x, Accumulator("bfloat16", chunk=1, rounding=mode), part)
        errors = {n: float(np.abs(ratio - 1).mean()) for n, ratio in found if n & (n - 1) == 0}
        what = f"error of bfloat16 sums, {mode}; {', '.join(map(str, sizes))} terms"
        yield Row(CONNOLLY, what, bound, ", ".join(f"{errors[n]:.4f}" for n in sizes))
        yield Line("stochastic_sums", mode, [(n, round(error, 6)) for n, error in errors.items()])
    yield Row(CONNOLLY, "sqrt(n) u of these", "the bound", ", ".join(f"{n**0.5 * UNIT:.4f}" for n in sizes))
    yield Line("stochastic_sums", "sqrt(n) u", [(n, n**0.5 * UNIT) for n in errors])


H = 2.0**-24  # the smallest float16 number
# Operands of one step of Volta (b is ones if it is not given), the addend, and the result: Fasi et al., section 3.
FASI: dict[str, tuple[list[float], list[float] | None, float, float]] = {
    "subnormal operands": ([H] * 4, None, 0, 2.0**-22),
    "a subnormal addend": ([0] * 4, None, 2.0**-149, 2.0**-149),
    "a subnormal result": ([2.0**-14] * 1, [2.0**-1], 0, 2.0**-15),
    "an exact product": ([1 - 2.0**-11], [1 - 2.0**-11], 0, 1 - 2.0**-10 + 2.0**-22),
    "exact products": ([1 - 2.0**-11] * 4, [1 - 2.0**-11] * 4, 0, 4 * (1 - 2.0**-10 + 2.0**-22)),
    "five terms at once": ([2.0**-12] * 4, [2.0**-12] * 4, 1, 1),
    "toward zero": ([2.0**-12, 2.0**-12, 2], [2.0**-11, 2.0**-12, 1], 0, 2),
    "toward zero, negative": ([-(2.0**-12), -(2.0**-12), -2], [2.0**-11, 2.0**-12, 1], 0, -2),
    "no guard bit": ([1], None, -(1 - H), 2.0**-23),
    "one normalization": ([H] * 4, None, 1 - H, 1 + 2.0**-23),
    "normalization after the sum": ([1, -H], None, -1 + H, 2.0**-23),
    "extra bits of the carry": ([1, 1, 1, 2.0**-23], None, 1 + 2.0**-22 + 2.0**-23, 4 + 2.0**-21),
    "carries out": ([1, 1.5, 1.75, 1.875], None, 1.875, 8),
    "carries cut off": ([1] * 4, None, 1 + 2.0**-22 + 2.0**-23, 5),
    "carries cut off, negative": ([-1] * 4, None, -(1 + 2.0**-22 + 2.0**-23), -5),
}


def dot(design: str, a: list[float], b: list[float], c: float) -> float:
    """One step of a design."""
    left, right = (np.array(side, np.float32) for side in (a, b))
    return float(matmul(left[None], right[:, None], np.array([[c]], np.float32), accumulator=design)[0, 0])


def fasi_checks() -> dict[str, bool]:
    """The 17 checks: those of the table with the operands in any order, and the two that need another form."""
    found = {}
    for name, (a, b, c, expected) in FASI.items():
        b = b or [1.0] * len(a)
        orders = ((a[i:] + a[:i], b[i:] + b[:i]) for i in range(len(a)))
        found[name] = all(dot("volta.mma.f16", *order, c) == expected for order in orders)
    halves = [2.0**-12, 2.0**-13], [2.0**-13, 2.0**-13]
    found["float16 results to nearest"] = dot("volta.mma.f16.f16", *halves, 0) == H
    small = [2.0**-12] * 4, [2.0**-12] * 4
    found["not monotonic"] = dot("volta.mma.f16", *small, 1 - H) > dot("volta.mma.f16", *small, 1)
    return found


def fasi() -> Found:
    """Fasi et al.'s checks of a V100 against the design `volta.mma.f16`."""
    found = fasi_checks()
    what = "checks of a V100, here of `volta.mma.f16`"
    yield Row("Fasi et al. 2021", what, "17 pass", f"{sum(found.values())} of {len(found)} pass")


P3109 = "IEEE P3109, interim report"
WIDEST = 12  # bits of the formats that the formula is tried on


def tables(folder: Path | None = None, widest: int = WIDEST) -> Found:
    """The numbers of all codes of P3109's formats, by the report's formula, and by its value tables if given."""
    formats = codes = differ = 0
    for bits in range(3, widest + 1):
        for precision, signed, extended in np.ndindex(bits + 1, 2, 2):
            if 1 <= precision <= bits - signed:
                shape = bits, precision, bool(signed), bool(extended)
                found = _differing(p3109(*shape), np.array([_value(code, *shape) for code in range(1 << bits)]))
                if found is not None:
                    formats, codes, differ = formats + 1, codes + (1 << bits), differ + found
    what = f"numbers of all codes by the formula of the report, 3 to {widest} bits"
    ours = f"{differ} of {codes} numbers differ, in the {formats} formats that float32 holds"
    yield Row(P3109, what, "the formula", ours)
    if folder is not None:
        yield _value_tables(sorted(folder.rglob("Binary*.csv")))


def _value(code: int, bits: int, precision: int, signed: bool, extended: bool) -> float:
    """The number of a code, by the report; beyond float64 an infinity or zero."""
    nan = 1 << (bits - 1) if signed else (1 << bits) - 1
    if code == nan:
        return float("nan")
    sign, magnitude = (-1, code - nan) if signed and code > nan else (1, code)
    if extended and magnitude == nan - 1:
        return sign * float("inf")
    bias = 1 << (bits - precision - 1) if signed else 1 << (bits - precision)
    exponent, trailing = divmod(magnitude, 1 << (precision - 1))
    significand = trailing + (1 << (precision - 1)) * (exponent > 0)
    with np.errstate(over="ignore"):
        return sign * float(np.ldexp(float(significand), max(exponent, 1) - bias - precision + 1))


def _differing(number: Any, values: np.ndarray) -> int | None:
    """How many codes have another number; None if float32 does not hold the format."""
    with np.errstate(over="ignore", under="ignore"):
        expected = values.astype(np.float32)
    if (expected != values)[~np.isnan(values)].any():
        return None
    found = decode(np.arange(len(values), dtype=np.uint16 if len(values) > 256 else np.uint8), number)
    # These formats have one zero and one NaN, so equal numbers are equal bits.
    return int((~((found == expected) | (np.isnan(found) & np.isnan(expected)))).sum())


def _value_tables(files: list[Path]) -> Row:
    """A row for the value tables of a checkout of P3109/Public."""
    fit = codes = differ = 0
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()[1:]
        texts = [line.split(",")[1] for line in lines]
        values = [float(text) if text.strip("-") in ("Inf", "NaN") else _from_hex(text) for text in texts]
        found = _differing(parse(file.stem), np.array(values))
        if found is not None:
            fit, codes, differ = fit + 1, codes + len(values), differ + found
    ours = f"{differ} of {codes} numbers differ, in the {fit} tables that float32 holds"
    return Row("P3109/Public, value tables", "numbers of all codes", f"{len(files)} tables", ours)


def _from_hex(text: str) -> float:
    """A hexadecimal number; one beyond float64 is an infinity, which no finite code of a format that fits has."""
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("inf")


QUARTET = "Quartet II 2026, notebook `unbiasedness`"
INFINITENSOR = "InfiniTensor/Learning-CUDA#80"
HEADROOM = 17 / 16  # so that rounding a scale to e4m3 never makes it too small
BLOCK, LARGEST, LARGEST_SCALE = 16, 6.0, 448.0


def nvfp4(size: int = 1024, averaged: int = 256, most: int = 64) -> Found:
    """Errors of NVFP4 and MXFP8 of normal numbers, and of means of stochastic products."""
    x = np.random.default_rng(2).standard_normal((size, size)).astype(np.float32)
    shapes = (
        ("blocks of 1 x 16", NVFP4({-1: 16}), "9.0"),
        ("blocks of 16 x 16", NVFP4({-2: 16, -1: 16}), "12.4"),
        ("blocks of 1 x 16, four over six", NVFP4({-1: 16}, four_over_six="mse"), "7.6"),
        ("blocks of 16 x 16, four over six", NVFP4({-2: 16, -1: 16}, four_over_six="mse"), "12.4"),
    )
    for name, number, published in shapes:
        error = _relative_error(quantize(x, number), x)
        yield Row(QUARTET, f"NVFP4, {name}: 1000 x relative squared error", published, f"{1000 * error:.2f}")
    error = _relative_error(_with_headroom(x, 0), x)
    what = "NVFP4, stochastic, scales with a headroom of 17/16: 1000 x relative squared error"
    yield Row(QUARTET, what, "23.5", f"{1000 * error:.2f}")
    a, b = x[:averaged, :averaged], x[-averaged:, -averaged:]
    bits = _bits_of_means(a, b, most)
    what = f"effective bits of means of {', '.join(map(str, bits))} stochastic products"
    shown = ", ".join(f"{value:.3f}" for value in bits.values())
    yield Row(QUARTET, what, "2.197, 3.196, 4.196, 5.197", shown)
    others = (("MXFP8", "scaled(e4m3fn,{1:32},rule=rceil)", "0.000706241"), ("NVFP4", "nvfp4({1:16})", "0.00904878"))
    for name, text, published in others:
        error = float(((quantize(x, text) - x).astype(np.float64) ** 2).mean())
        yield Row(INFINITENSOR, f"{name}: mean squared error, {size} x {size}", published, f"{error:.6g}")


def _relative_error(found: np.ndarray, x: np.ndarray) -> float:
    return float(((found - x).astype(np.float64) ** 2).sum() / (x.astype(np.float64) ** 2).sum())


def _with_headroom(x: np.ndarray, key: int) -> np.ndarray:
    """NVFP4 whose elements are rounded stochastically, with room for them above the largest of a block."""
    blocks = x.reshape(-1, BLOCK)
    largest = LARGEST / HEADROOM
    whole = np.float32(np.abs(x).max() / LARGEST_SCALE / largest)
    scales = quantize(np.abs(blocks).max(axis=1, keepdims=True) / np.float32(largest) / whole, "e4m3fn") * whole
    return (quantize(blocks / scales, "e2m1fn", "stochastic", key=key) * scales).reshape(x.shape)


def _bits_of_means(a: np.ndarray, b: np.ndarray, most: int) -> dict[int, float]:
    """-log2 of the relative error of the mean of 1, 4, 16, ... products; without a bias one more for each factor 4."""
    right = a.astype(np.float64) @ b.T
    total, found = np.zeros_like(right), {}
    for count in range(1, most + 1):
        total += _with_headroom(a, 2 * count).astype(np.float64) @ _with_headroom(b, 2 * count + 1).T
        if count in (4**power for power in range(most)):
            found[count] = float(-np.log2(((total / count - right) ** 2).mean() / (right**2).mean()) / 2)
    return found


MLX = "ml-explore/mlx#4353"
FLYDSL = "ROCm/FlyDSL#590"
HALF_A_STEP = 1 / 16  # of e4m3, the most that a number within the range loses


def scales(blocks: int = 512, many: int = 8192) -> Found:
    """What MX loses by scales that are rounded to the nearest power of two: of normal numbers, in blocks of 32."""
    x = np.random.default_rng(0).standard_normal((many, 32)).astype(np.float32)
    published = (("nearest", "29.27 %; 243", "7.11 %, of weights"), ("rceil", "5.84 %; 0", "2.68 %, of weights"))
    for rule, losses, errors in published:
        rounded = quantize(x, f"scaled(e4m3fn,{{-1:32}},rule={rule})")
        lost = _losses(rounded, x)[:blocks]
        what = f"MXFP8, {rule}: worst loss of a block's largest number; how many of {blocks} lose more than 6.25 %"
        yield Row(MLX, what, losses, f"{100 * lost.max():.2f} %; {np.count_nonzero(lost > HALF_A_STEP)}")
        error = f"{100 * _relative_error(rounded, x) ** 0.5:.2f} %"
        yield Row(MLX, f"MXFP8, {rule}: relative root mean square error", errors, error)
    nearest, even = (
        np.asarray(encode(x, f"scaled(e2m3fn,{{-1:32}},rule={rule})")[1], int) for rule in ("nearest_mantissa", "even")
    )
    low, others = np.count_nonzero(nearest == even - 1), np.count_nonzero((nearest != even) & (nearest != even - 1))
    what = "e2m3, nearest_mantissa beside even: scales one too low; scales that differ otherwise"
    yield Row(FLYDSL, what, "67.9 %; 0", f"{100 * low / many:.1f} %; {others}")


def _losses(found: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The relative error of each block's largest number."""
    places = np.abs(x).argmax(1)[:, None]
    largest, rounded = (np.take_along_axis(np.abs(one), places, 1).astype(np.float64) for one in (x, found))
    return (np.abs(rounded - largest) / largest)[:, 0]


WEIGHTS = "fixed(8,6)"
SWALP = "Yang et al. 2019 (SWALP), linear regression"


def swalp(steps: int = 30000, features: int = 32, rate: float = 0.002, warm: int = 1000) -> Found:
    """The squared distance to the optimum of a linear regression: SGD, SGD in fixed point, and its mean."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1024, features)).astype(np.float32)
    y = x @ rng.uniform(-1, 1, features).astype(np.float32) + rng.standard_normal(1024).astype(np.float32) * 0.1
    best = np.linalg.lstsq(x.astype(np.float64), y.astype(np.float64))[0]
    lines: dict[str, list[tuple[float, float]]] = {"float32": [], "fixed point": [], "mean of fixed point": []}
    plain, low, mean = np.zeros(features, np.float32), np.zeros(features, np.float32), np.zeros(features)
    picks = rng.integers(0, len(x), (steps, 4))
    for step, pick in enumerate(picks, 1):
        plain, low = (w - np.float32(rate) * (x[pick].T @ (x[pick] @ w - y[pick])) for w in (plain, low))
        low = quantize(low, WEIGHTS, "stochastic", key=step)
        averaged = max(step - warm, 1)
        mean = low.astype(np.float64) if averaged == 1 else mean + (low - mean) / averaged
        if step % max(steps // 60, 1) == 0:
            for name, w in zip(lines, (plain, low, mean), strict=True):
                lines[name].append((step, float(f"{((w - best) ** 2).sum():.4g}")))
    floor = float(((quantize(best, WEIGHTS) - best) ** 2).sum())
    claims = {
        "fixed point": "stays at a noise floor",
        "mean of fixed point": "arbitrarily close to the optimum",
    }
    for name, claim in claims.items():
        what = f"squared distance after {steps} steps, 8 bits, {name}"
        yield Row(SWALP, what, claim, f"{lines[name][-1][1]:.2g}")
    yield Row(SWALP, "squared distance of the nearest 8-bit weights", "passed by the mean", f"{floor:.2g}")
    for name, points in lines.items():
        yield Line("swalp", name, points)
    yield Line("swalp", "nearest 8-bit weights", [(point[0], float(f"{floor:.4g}")) for point in lines["float32"]])


GUPTA = "Gupta et al. 2015"
FRACTIONS = (12, 10, 8, 6)  # bits of fraction, of 16


def gupta(epochs: int = 30, hidden: int = 64, fractions: tuple[int, ...] = FRACTIONS) -> Found:
    """The test error of a network for handwritten digits, all of whose numbers are 16-bit fixed point."""
    curves = {"float32": _digits_errors(lambda x: x, epochs, hidden)}
    for fraction in fractions:
        for mode in ("nearest", "stochastic"):
            curves[f"{fraction} bits of fraction, {mode}"] = _digits_errors(
                _rounding(f"fixed(16,{fraction})", mode), epochs, hidden
            )
    claims = {"float32": "the baseline"}
    for name, errors in curves.items():
        claim = claims.get(name, "little to no degradation" if "stochastic" in name else "not published")
        yield Row(GUPTA, f"% of test digits wrong, {name}", claim, f"{errors[-1]:.1f}")
        yield Line("gupta", name, list(enumerate((round(error, 3) for error in errors), 1)))


def _rounding(text: str, mode: RoundingName) -> Callable[[np.ndarray], np.ndarray]:
    """Rounds each array that it gets, with a fresh key."""
    keys = iter(range(1 << 40))
    return lambda x: quantize(x, text, mode, key=next(keys) if mode == "stochastic" else None)


def _digits_errors(q: Callable[[np.ndarray], np.ndarray], epochs: int, hidden: int) -> list[float]:
    """The test errors in percent after each epoch; exact sums of products are rounded once, as Gupta's are."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    rng = np.random.default_rng(4)
    pixels, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    x, labels = q(pixels[order] / 16), labels[order]
    targets = np.eye(10)[labels]
    train, batch, rate = 1400, 100, 0.1
    w, v = (q(rng.standard_normal(shape) * shape[0] ** -0.5) for shape in ((64, hidden), (hidden, 10)))
    errors = []
    for _ in range(epochs):
        for begin in range(0, train, batch):
            part = slice(begin, begin + batch)
            h = q(np.maximum(x[part] @ w, 0))
            powers = np.exp(q(h @ v))
            error = q(powers / powers.sum(axis=1, keepdims=True) - targets[part])
            back = q((error @ v.T) * (h > 0))
            v, w = (q(p - q(rate * q(a.T @ e / batch))) for p, a, e in ((v, h, error), (w, x[part], back)))
        outputs = q(np.maximum(x[train:] @ w, 0)) @ v
        errors.append(float((outputs.argmax(axis=1) != labels[train:]).mean() * 100))
    return errors


PARTS: dict[str, Callable[..., Found]] = {
    "harmonic": harmonic,
    "swamping": swamping,
    "stochastic_sums": stochastic_sums,
    "fasi": fasi,
    "p3109": tables,
    "nvfp4": nvfp4,
    "scales": scales,
    "swalp": swalp,
    "gupta": gupta,
}


def records(name: str, found: Found) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows and the lines of a part, as the result file has them."""
    rows, lines = [], []
    for one in found:
        (rows if isinstance(one, Row) else lines).append({"part": name} | one._asdict())
    return rows, lines


class Panel(NamedTuple):
    """A panel of a picture: its title, the lines' panel and their names in the picture, and its axes."""

    title: str
    panel: str
    names: dict[str, str]
    xlabel: str
    ylabel: str
    scale: str = "log"


def _of_gupta(mode: str) -> Panel:
    names = {f"{fraction} bits of fraction, {mode}": f"{fraction} bits" for fraction in FRACTIONS}
    title = f"Gupta 2015: fixed point of 16 bits, rounded to {mode}" if mode == "nearest" else "The same, stochastic"
    return Panel(title, "gupta", {"float32": "float32"} | names, "epoch", "% of test digits wrong")


PICTURES = {
    "published-sums.svg": (
        Panel(
            "Wang 2018: sums in 1-6-9",
            "swamping",
            {"chunks of 1": "chunks of 1", "chunks of 32": "chunks of 32", "stochastic": "stochastic"},
            "terms",
            "sum / true sum",
            "linear",
        ),
        Panel(
            "Connolly 2021: sums in bfloat16",
            "stochastic_sums",
            {"nearest": "nearest", "stochastic": "stochastic", "sqrt(n) u": "√n u"},
            "terms",
            "relative error",
        ),
    ),
    "published-training.svg": (
        Panel(
            "SWALP 2019: linear regression",
            "swalp",
            {
                "float32": "float32",
                "fixed point": "fixed point",
                "mean of fixed point": "its mean",
                "nearest 8-bit weights": "nearest 8 bits",
            },
            "step",
            "squared distance",
        ),
        _of_gupta("nearest"),
        _of_gupta("stochastic"),
    ),
}


def draw(lines: list[dict[str, Any]], folder: Path) -> None:
    """Draws the pictures of the lines of a result file."""
    points = {(line["panel"], line["name"]): line["points"] for line in lines}
    for file, panels in PICTURES.items():
        in_two_widths(partial(_draw, points, panels), folder / file)


def _draw(points: Mapping[tuple[str, str], Any], panels: Sequence[Panel], path: Path) -> None:
    title = "; ".join(panel.title for panel in panels)
    text = "; ".join(f"{panel.ylabel} by {panel.xlabel}: {', '.join(panel.names.values())}" for panel in panels)
    with picture(path, 2.3 * len(panels), title, text) as figure:
        for axes, panel in zip(figure.subplots(len(panels), 1), panels, strict=True):
            axes.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel, yscale=panel.scale)
            draw_curves(axes, {short: points[panel.panel, name] for name, short in panel.names.items()})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.published", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--tables", metavar="FOLDER", type=Path, help="a checkout of P3109/Public")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write versions, machine and rows there")
    parser.add_argument("--draw", metavar="FOLDER", type=Path, help="only draw the committed results there")
    options = parser.parse_args(argv)
    if options.draw:
        draw(json.loads(FILE.read_text(encoding="utf-8"))["lines"], options.draw)
        return 0
    rows, lines, seconds = [], [], {}
    for name in options.only:
        begin = perf_counter()
        found = records(name, PARTS[name](options.tables) if name == "p3109" else PARTS[name]())
        seconds[name] = round(perf_counter() - begin, 1)
        rows, lines = rows + found[0], lines + found[1]
        for row in found[0]:
            print(f"{name}: {row['what']}: published {row['published']}; ours {row['ours']}", flush=True)
    if options.json:
        facts = {"versions": versions(), "machine": machine("cpu"), "seconds": seconds}
        write_results(options.json, facts | {"rows": rows, "lines": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
