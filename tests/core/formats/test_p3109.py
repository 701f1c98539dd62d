"""IEEE P3109's formats, roundings and saturation modes against the report's formulas in exact fractions."""

from fractions import Fraction
from itertools import product

import numpy as np
import oracle_p3109 as report
import pytest
from support import assert_same_bits

import qcore
from qcore.random import random_bits

MODES = {
    "nearest": "NearestTiesToEven",
    "nearest_away": "NearestTiesToAway",
    "toward_zero": "TowardZero",
    "up": "TowardPositive",
    "down": "TowardNegative",
    "odd": "ToOdd",
    "stochastic": "StochasticA",
    "stochastic_b": "StochasticB",
    "stochastic_c": "StochasticC",
}
DIRECT = [mode for mode in MODES if not mode.startswith("stochastic")]
POLICIES = {"saturate": "SatFinite", "propagate": "SatPropagate", "inf": "SatNone"}
KEY = 5


def formats(bits):
    for precision, signed, extended in product(range(1, bits + 1), (True, False), (True, False)):
        if precision < bits or not signed:
            yield report.Format(bits, precision, signed, extended)


def ours(one):
    return qcore.p3109(one.K, one.P, one.signed, one.extended)


def as_float(x):
    return float(x)  # of "nan", "inf" and "-inf", too


def points(one):
    """All numbers of a format, the quarters between them and beyond its ends, and the neighbours of all these."""
    finite = np.array(sorted(float(x) for x in one.numbers.values() if not isinstance(x, str)))
    low, high = finite[0], finite[-1]
    steps = np.diff(finite)
    between = [finite[:-1] + steps * part for part in (0.25, 0.5, 0.75)]
    beyond = [end * np.array([1.0625, 1.125, 1.25, 1.5, 2, 2.5, 4]) for end in (high, low or -high)]
    least = finite[finite > 0][0] * np.array([0.25, 0.5, 0.75, 1])
    with np.errstate(over="ignore"):  # Binary8p1uf ends near the largest float32
        exact = np.concatenate([finite, *between, *beyond, least, -least, [0.0]]).astype(np.float32)
    largest = np.finfo(np.float32).max
    every = [exact, np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))]
    return np.unique(np.concatenate([*every, np.float32([largest, -largest, np.inf, -np.inf, 1e-45, np.nan])]))


def as_number(x):
    """A float as the report's oracle has it."""
    return Fraction(float(x)) if np.isfinite(x) else str(float(x))


def compare(one, modes):
    number, x = ours(one), points(one)
    exact = [as_number(point) for point in x]
    codes = {meaning: code for code, meaning in one.numbers.items()}
    for mode in modes:
        rounded = [report.rounded(point, one.P, one.bias, MODES[mode]) for point in exact]
        for policy, saturation in POLICIES.items():
            results = [report.saturated(point, one, MODES[mode], saturation) for point in rounded]
            message = f"{one.name} {mode} {saturation}"
            found = qcore.quantize(x, number, mode, overflow=policy)
            expected = np.float32([as_float(result) for result in results])
            same = (found == expected) | (np.isnan(found) & np.isnan(expected))
            assert same.all(), (message, x[~same][:4], found[~same][:4], expected[~same][:4])
            assert not np.signbit(found[found == 0]).any(), message
            coded = qcore.encode(x, number, mode, overflow=policy)
            assert coded.tolist() == [codes[result] for result in results], message


@pytest.mark.parametrize("bits", [3, 4, pytest.param(5, marks=pytest.mark.heavy)])
def test_all_roundings_and_saturations(bits):
    for one in formats(bits):
        compare(one, DIRECT)


@pytest.mark.parametrize("one", [report.Format(8, 4, True, True), report.Format(8, 3, False, False)], ids=str)
def test_eight_bits(one):
    compare(one, ("nearest", "odd", "up"))


@pytest.mark.heavy
@pytest.mark.parametrize("bits", [6, 7, 8])
def test_all_roundings_and_saturations_of_more_bits(bits):
    for one in formats(bits):
        compare(one, DIRECT)


@pytest.mark.parametrize("bits", range(3, 9))
def test_value_tables(bits):
    """The working group's tables, made from the formula."""
    for one in formats(bits):
        found = qcore.decode(np.arange(2**bits), ours(one), np.float64)
        assert np.array_equal(found, [as_float(x) for x in one.numbers.values()], equal_nan=True), one.name
        assert not np.signbit(found[found == 0]).any()


def test_names_of_the_report():
    for one in formats(8):
        for name in (one.name, one.name.lower()):
            assert qcore.parse(name) == ours(one)
        assert qcore.parse(ours(one).text) == ours(one)
    assert qcore.parse("Binary8p4se").text == "p3109(8,4)"
    assert qcore.parse("binary4p2sf:propagate").overflow == "propagate"
    for wrong in ("binary8p9uf", "binary8p0se", "binary8p4", "binary17p4se", "binary8p4xe"):
        with pytest.raises(ValueError, match=r"^text="):
            qcore.parse(wrong)


@pytest.mark.parametrize("mode", ["stochastic", "stochastic_b", "stochastic_c"])
def test_all_random_numbers(mode):
    """Each point is rounded with all R of few bits, and with some of many."""
    one = report.Format(6, 3, True, True)
    number = ours(one)
    parts = [Fraction(k, 64) for k in range(65)] + [Fraction(2 * k + 1, 2**26) for k in (0, 1, 2**23 - 1, 2**25 - 1)]
    least, unit = Fraction(2) ** (2 - one.P - one.bias), Fraction(1, 4)
    x = [least * part for part in parts] + [1 + unit * part for part in parts] + [-least * part for part in parts[:9]]
    x += [least * Fraction(k, 2**N) * Fraction(2**24 + s, 2**24) for N in (4, 25) for k in (1, 3) for s in (-1, 0, 1)]
    for dtype, N in product((np.float32, np.float64), (1, 2, 3, 8, 22, 23, 24)):
        exact = [point for point in x if Fraction(float(dtype(float(point)))) == point]
        repeats = 2**N * 12 if N <= 3 else 8
        values = np.repeat(dtype([float(point) for point in exact]), repeats)
        R = random_bits(KEY, values.shape) >> np.uint32(32 - N)
        if N <= 3:
            assert all(len(set(row)) == 2**N for row in R.reshape(-1, repeats).tolist())
        found = qcore.quantize(values, number, mode, key=KEY, random_bits=N)
        for point, row, results in zip(exact, R.reshape(-1, repeats), found.reshape(-1, repeats), strict=True):
            of_each = {r: as_float(report.project(point, one, MODES[mode], "SatNone", r, N)) for r in set(row.tolist())}
            assert results.tolist() == [of_each[r] for r in row.tolist()], (dtype, N, point)


def test_bias_of_few_random_bits():
    """A cuts the distance off, so its mean is too low: by 2^-(D + 1) - 2^-(N + 1) over distances of D bits."""
    D, N = 8, 3
    distances = (1024 + np.arange(2**D) / 2**D).astype(np.float32)
    x = np.repeat(distances, 64)
    R = (random_bits(KEY, x.shape) >> np.uint32(32 - N)).reshape(-1, 64)
    biases = {}
    for mode in ("stochastic", "stochastic_b", "stochastic_c"):
        table = np.float64(
            [[report.rounded(as_number(d), 11, 0, MODES[mode], r, N) for r in range(8)] for d in distances]
        )
        biases[mode] = (table - distances[:, None]).mean()
        found = qcore.quantize(x, "float(6,10)", mode, key=KEY, random_bits=N).reshape(R.shape)
        assert np.array_equal(found, np.take_along_axis(table, R.astype(int), axis=1)), mode
    assert biases == {"stochastic": 2.0**-9 - 2.0**-4, "stochastic_b": 2.0**-9, "stochastic_c": 0}


def test_saturations_of_other_formats():
    """Propagating: the largest number for finite numbers, and infinities stay."""
    x = np.float32([1e9, -1e9, np.inf, -np.inf, 3.1, np.nan])
    for name in ("e5m2", "float16", "bfloat16", "e4m3", "e3m4"):
        finite = qcore.quantize(x, name, overflow="saturate")
        expected = np.where(np.isinf(x), x, finite)
        found = qcore.quantize(x, f"{name}:propagate")
        assert_same_bits(found, expected)
        codes = qcore.encode(x, name, overflow="propagate")
        assert_same_bits(qcore.decode(codes, name)[:5], expected[:5])
        assert np.isnan(qcore.decode(codes, name)[5])
    for name in ("e4m3fn", "e2m1fn", "int8", "posit8", "float(5,2)", "mxfp4"):
        with pytest.raises(ValueError, match="overflow"):
            qcore.quantize(x, name, overflow="propagate")
