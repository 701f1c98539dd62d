"""Tables: every mode beside exact fractions, codes, text, what is refused, and bitsandbytes' numbers by hand."""

import pickle
import shutil
import subprocess
from itertools import pairwise

import numpy as np
import oracle_tables
import pytest
from covering import some
from oracle_tables import DTYPES
from support import assert_same_bits, words

import qcore
from benchmarks.support.inputs import MODES, random_bits
from qcore import NAMED, Table, parse
from qcore.cli.emit_c import emit
from qcore.law.table import FEW
from qcore.linalg.exactness import sums_are_exact

SPREAD = [-(2.0**-k) * 1.3 for k in range(0, 60, 3)] + [2.0**-k for k in range(0, 60, 3)]
TABLES = {
    "nf4": NAMED["nf4"][0],
    "fp4_bnb": NAMED["fp4_bnb"][0],
    "unsorted, twice the same": Table([0.5, -3, 0.5, 7, -0.25, 100]),
    "around zero": Table([-1, 1]),
    "beside zero": Table([-10, 1, 13]),
    "positive": Table([1 / 3, 1.5, 1.25, 1e5]),
    "thresholds": Table([3, 0, -1, 8], thresholds=[-1, 1e-7, 8]),
    "beyond ranges": Table([-1e300, -1e-300, 1e-46, 3e-8, 70000, 1e39, 65519]),
    "far apart": Table([1.0000001, 2.0**20 / 3, -(2.0**-60)]),
    "long": Table(SPREAD),
    "infinities": Table([1, -np.inf, -2, np.nan, np.inf, 0.25], beyond=3),
    "one infinity, ties away": Table([5, 0, -3.5, np.inf, 3], thresholds=[-1, 2, 4, 7], ties="away", beyond=8),
    "hif8": NAMED["hif8"][0],
    "long with thresholds": Table(range(-20, 20), thresholds=[one + 0.3 for one in range(-20, 19)]),
}


def inputs(table, dtype):
    """Numbers of the table, thresholds and midpoints, their neighbours, and random ones; most of which are in range."""
    rng, ordered = np.random.default_rng(3), sorted({*table.finite})
    points = [
        *ordered,
        *([] if table.beyond is None else [table.beyond, (ordered[-1] + table.beyond) / 2]),
        *((a + b) / 2 for a, b in pairwise(ordered)),
        *(table.thresholds or ()),
    ]
    between = [a + (b - a) * part for a, b in pairwise(ordered) for part in (rng.random(), 0.25, 2.0**-20)]
    if len(ordered) > 20:
        points, between = points[::9], between[::28]
    with np.errstate(over="ignore"):
        x = np.array([*points, *between, 0.0, np.inf, np.nan]).astype(dtype)
    with np.errstate(all="ignore"):
        x = np.concatenate(
            [x, np.nextafter(x, dtype(np.inf)), np.nextafter(x, dtype(-np.inf)), random_bits(20, dtype, rng)]
        )
    return np.concatenate([x, -x[-40:]])


# An ordinary run takes a table in one dtype; hif8, whose every number is a point, among the heavy tests.
BY_TURNS = ((i, i % 4) for i, name in enumerate(TABLES) if name != "hif8")


@some(*BY_TURNS, name=[*TABLES], dtype=[*DTYPES.values()])
def test_every_mode_is_that_of_exact_fractions(name, dtype):
    table = TABLES[name]
    x = inputs(table, dtype)
    for mode in MODES:
        random = (24, 3) if mode.startswith("stochastic") else (24,)
        for bits in random:
            noise = words(11, x.shape) if mode.startswith("stochastic") else None
            found, codes = oracle_tables.quantize(
                x, table.values, table.thresholds, table.ties, table.beyond, mode, noise, bits
            )
            assert_same_bits(qcore.quantize(x, table, mode, key=11, random_bits=bits), found, mode)
            np.testing.assert_array_equal(qcore.encode(x, table, mode, key=11, random_bits=bits), codes, mode)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_numbers_of_a_float_are_rounded_as_that_float(dtype):
    """Of e4m3fn, whose 253 numbers make a long table; ties go to even codes, and distances decide as bits do."""
    values = qcore.decode(np.arange(256), "e4m3fn", np.float64)
    table, rng = Table(np.unique(values[np.isfinite(values)])), np.random.default_rng(0)
    ties = ((values[1:126] + values[2:127]) / 2).astype(dtype)
    normal = (rng.standard_normal(2000) * np.exp2(rng.integers(-12, 6, 2000))).astype(dtype)
    x = np.concatenate([ties, -ties, normal, random_bits(1000, dtype, rng)])
    with np.errstate(all="ignore"):
        x = x[~(np.abs(x.astype(np.float64)) > 448)]
    for mode in MODES:
        expected = qcore.quantize(x, "e4m3fn", mode, key=5, overflow="saturate")
        assert_same_bits(qcore.quantize(x, table, mode, key=5), expected, mode)


def test_codes_are_indices():
    table = Table([3, -1, 0, 3, 0.5])
    assert qcore.decode(np.arange(16), table).tolist()[:5] == [3, -1, 0, 3, 0.5]
    assert np.isnan(qcore.decode(np.array([5, 6, 7]), table)).all()
    assert qcore.decode(np.array([8, 9]), table).tolist() == [3, -1]  # what is above a code is ignored
    x = np.float32([9, 2, -0.0, np.nan, -np.inf, 0.3])
    assert qcore.encode(x, table).tolist() == [0, 0, 2, 0, 1, 4]
    assert_same_bits(qcore.quantize(x, table), np.float32([3, 3, -0.0, np.nan, -1, 0.5]))
    assert [qcore.encode(x, Table(range(count))).dtype.name for count in (2, 256, 257, 65536)] == [
        "uint8",
        "uint8",
        "uint16",
        "uint16",
    ]


def test_a_table_of_65536_numbers():
    values = np.random.default_rng(0).standard_normal(65536).astype(np.float32)
    table = Table(values)
    x = np.concatenate([values[:3000], np.linspace(-5, 5, 3000, dtype=np.float32)])
    nearest = np.sort(values)[np.clip(np.searchsorted(np.sort(values), x), 1, None) - 1]
    above = np.sort(values)[np.clip(np.searchsorted(np.sort(values), x), None, 65535)]
    found, wide = qcore.quantize(x, table), x.astype(np.float64)
    distance = np.minimum(np.abs(wide - nearest), np.abs(wide - above))
    np.testing.assert_array_equal(np.abs(wide - found), distance)
    assert_same_bits(found, values[qcore.encode(x, table)])
    assert repr(table) == f"<Table of 65536 numbers from {values.min().item()} to {values.max().item()}>"
    assert len(table._repr_html_()) < 2000
    assert parse(table.text) == table


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_text_pickle_and_hash(table):
    copies = (
        parse(table.text),
        pickle.loads(pickle.dumps(table)),
        eval(repr(table), vars(qcore) | {"inf": np.inf, "nan": np.nan}),
    )
    assert {table, *copies} == {table}
    assert {hash(one) for one in copies} == {hash(table)}
    assert (len(sorted({*table.values})) > FEW) == (table.reduce(qcore.law.carrier.FLOAT64)[0] == "long_table")


def test_texts():
    assert Table([-1, 0.1, 3e-20, 1e22]).text == "table([-1,0.1,3e-20,1e+22])"
    assert parse("table([ 0, 1e0 ], thresholds=[+0.5])") == Table([0, 1], [0.5])
    assert NAMED["nf4"][0].text == "nf4"
    assert Table(np.float32([0.1, 1])).values == (float(np.float32(0.1)), 1.0)
    assert Table([-0.0, 1]) == Table([0, 1])
    with pytest.raises(ValueError, match="allowed here is a number"):
        parse("table([0,one])")
    with pytest.raises(ValueError, match=r"overflow='inf'"):
        qcore.quantize(np.float32(1), "nf4", overflow="inf")
    assert qcore.quantize(np.float32(9), "nf4", overflow="saturate") == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Table([1]), ValueError, "values has 1 numbers; allowed are 2 to 65536"),
        (lambda: Table(range(65537)), ValueError, "values has 65537 numbers; allowed are 2 to 65536"),
        (lambda: Table([2, 2]), ValueError, r"values=\(2.0, 2.0\); allowed are at least two different finite numbers"),
        (lambda: Table([0, np.nan]), ValueError, r"values=\(0.0, nan\); allowed are at least two different finite num"),
        (lambda: Table([0, 1, np.inf]), ValueError, "beyond=None; allowed is a number above all magnitudes with infin"),
        (lambda: Table([0, 1, np.inf], beyond=1), ValueError, "beyond=1.0; allowed is a number above all magnitudes"),
        (lambda: Table([0, 1], beyond=2), ValueError, "beyond=2.0; allowed is a number above all .* None without them"),
        (lambda: Table([0, 1], ties="odd"), ValueError, "ties='odd'; allowed are even, away"),
        (lambda: Table([0, 10**400]), ValueError, r"values\[1\]=1000.*; allowed are finite numbers"),
        (lambda: Table([0, 2**53 + 1]), ValueError, r"values\[1\]=9007199254740993; allowed are finite numbers"),
        (lambda: Table([0, True]), TypeError, r"values\[1\]=True is a bool"),
        (lambda: Table("01"), TypeError, "values='01' is a str; allowed is a sequence of numbers"),
        (lambda: Table(3), TypeError, "values=3 is a int; allowed is a sequence of numbers"),
        (lambda: Table(np.zeros((2, 2))), ValueError, r"values has shape \(2, 2\); allowed is one dimension"),
        (lambda: Table([0, 1], [0.5, 0.6]), ValueError, "thresholds has 2 numbers; allowed are 1"),
        (lambda: Table([0, 1], [2]), ValueError, r"thresholds\[0\]=2.0; allowed is a number from 0.0 to 1.0"),
        (
            lambda: qcore.quantize(np.float16(1), Table([1e6, 1e7])),
            ValueError,
            "x has dtype float16, whose range has none",
        ),
        (lambda: qcore.decode(np.uint8([1]), "nf4", np.float16), ValueError, "dtype=float16"),
        (lambda: emit(Table(range(33)), "nearest", None), ValueError, "allowed are tables of at most 32 numbers"),
        (lambda: qcore.Accumulator("nf4"), ValueError, "number='nf4'; allowed are fixed and floating point formats"),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_emitted_c_checks_itself(tmp_path, mode):
    emit("nf4", mode, tmp_path)
    command = [shutil.which("cc") or "gcc", "-std=c99", "-DSELF_CHECK", f"round_nf4_{mode}.c", "-o", "check"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = subprocess.run([tmp_path / "check"], capture_output=True, check=False, text=True)
    assert found.stdout.startswith("0 of")


def test_sums_of_products_of_tables():
    """Numbers are multiples of a step, so sums in float64 are exact while all bits fit."""
    table = Table([0, 1, -3.5, 2])
    assert sums_are_exact(table, "int8", 2**53 // (7 * 128))
    assert not sums_are_exact(table, "int8", 2**53 // (7 * 128) + 1)
    assert not sums_are_exact(Table([1e-30, 1]), table, 2)


# bitsandbytes 0.50: thresholds are midpoints in float32, and what equals one becomes the lower number.
NF4 = """-1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334
    -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224
    0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0"""
# Its CUDA kernel's own thresholds, from low to high.
NF4_THRESHOLDS = """-0.8480964004993439 -0.6106329262256622 -0.4599952697753906 -0.33967943489551544
    -0.23460740596055984 -0.13791173323988914 -0.045525018125772476 0.03979014977812767 0.1202552504837513
    0.2035212516784668 0.2920137718319893 0.3893125355243683 0.5016634166240692 0.6427869200706482 0.8614784181118011"""


def test_nf4_by_hand():
    values, thresholds = np.float32(NF4.split()), np.float32(NF4_THRESHOLDS.split())
    assert_same_bits(qcore.decode(np.arange(16), "nf4"), values)
    x = np.concatenate([thresholds, np.nextafter(thresholds, np.float32(2)), np.float32([-3, 3, 0, -0.0])])
    expected = [*range(15), *range(1, 16), 0, 15, 7, 7]
    assert qcore.encode(x, "nf4").tolist() == expected
    np.testing.assert_array_equal(qcore.quantize(x, "nf4"), values[expected])


def test_fp4_by_hand():
    """The codes are those of sign and magnitude; bitsandbytes' code 8 is a second zero, which is not used here."""
    values = np.float32([0, 0.0625, 8, 12, 4, 6, 2, 3]) / np.float32(12)
    assert_same_bits(qcore.decode(np.arange(16), "fp4_bnb"), np.concatenate([values, 0 - values]) + np.float32(0))
    x = np.float32([0.9, -0.9, 0.6, 0.0027, 0.0025, -0.0025, -0.2, 0.2, 0.45, -1])
    assert qcore.encode(x, "fp4_bnb").tolist() == [3, 11, 2, 1, 0, 0, 14, 6, 5, 11]
    middle = np.float32(values[2] + values[3]) / np.float32(2)  # a tie becomes the lower number, also below zero
    assert qcore.encode(np.float32([middle, -middle]), "fp4_bnb").tolist() == [2, 11]


def test_af4_by_hand():
    """Yoshida, 2023: from 1 down to -1."""
    values = qcore.decode(np.arange(16), "af4")
    expected = [1, 0.72424863, 0.55496234, 0.42563882, 0.31675666, 0.21961274, 0.12934483, 0.04273164, 0, -0.04934812]
    assert_same_bits(values[:10], np.float32(expected))
    assert (np.diff(values) < 0).all()
    assert values[15] == -1
