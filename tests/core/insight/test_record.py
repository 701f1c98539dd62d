"""Records, comparisons and what is wrong with their arguments."""

import json

import numpy as np
import pytest

from qcore.insight import Entry, Record, Site, Statistics, compare, statistics_between, statistics_of
from qcore.insight.statistics import MAGNITUDES, hashes
from qcore.version import NUMERICS

SITE = Site("features.0", "output")


def record(values, model="digits"):
    made = Record(model)
    for step, x in enumerate(values):
        made.add(step, SITE, statistics_of(np.float32(x), "e4m3fn"))
    return made


def test_merge_has_no_order():
    x = np.random.default_rng(0).normal(size=300).astype(np.float32) * 100
    parts = [statistics_of(part, "e4m3fn") for part in np.split(x, (7, 120, 250))]
    whole = statistics_of(x, "e4m3fn")
    assert parts[2].merge(parts[0], parts[3], parts[1]) == whole == parts[0].merge(*parts[1:])
    assert hash(whole) == hash(whole.pack())
    assert whole.pack() == whole
    assert Statistics.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    assert statistics_of(x[:0], "e4m3fn").elements == 0
    stacked = Statistics("e4m3fn", np.stack([part.lanes for part in parts]))
    assert stacked == whole
    assert stacked.parts() == parts


def test_derived():
    found = statistics_of(np.float32([1, -3, 1.0625]), "e4m3fn")
    assert found.bias == -0.0625 / 3
    assert found.sqnr == pytest.approx(10 * np.log10((1 + 9 + 1.0625**2) / 0.0625**2))
    assert (found.smallest_after, found.largest_after, found.exponent_bits_used) == (1, 3, 2)
    assert found.exponents == {0: 2, 1: 1}
    assert found.rate("zeros") == 0
    nothing = statistics_of(np.float32([np.nan, np.inf]), "e4m3fn")
    assert [getattr(nothing, name) for name in MAGNITUDES] == [0.0] * 4
    assert (nothing.finite, nothing.exponents, nothing.exponent_bits_used, nothing.bias) == (0, {}, 0, 0.0)


def test_round_trip(tmp_path):
    made = record([[1, 500], [0.001, 3]])
    made.save(tmp_path / "run.json")
    read = Record.load(tmp_path / "run.json", model="digits")
    assert read == made
    assert compare(made, read) is None
    row = read.rows()[0]
    assert (row["step"], row["path"], row["kind"], row["number"], row["overflowed"]) == (
        0,
        "features.0",
        "output",
        "e4m3fn",
        1,
    )
    assert read.merge(made).at(0, SITE).statistics.elements == 4
    assert read.site(SITE).elements == 4


def test_rows_are_a_table():
    """As parquet has it: the same columns in each row, each of one type; ints of 64 bits."""
    made = record([[1, 500], [0, 0], [np.nan, 1e38], [2, 4]])
    made.add(4, Site("features.0", "state", "exp_avg"), statistics_of(np.float32([1e-40, 3]), "e5m2"), "0" * 16)
    rows = made.rows()
    assert len({tuple(row) for row in rows}) == 1
    for name in rows[0]:
        kinds = {type(row[name]) for row in rows}
        assert kinds in ({int}, {float}, {str}, {str, type(None)}), name
        assert all(abs(row[name]) < 1 << 63 for row in rows if type(row[name]) is int)


def test_provenance():
    made = record([[1, 500], [0.001, 3]])
    made.settings["key"] = 7
    found = made.provenance()
    assert found["formats"] == {"features.0:output": ["e4m3fn"]}
    assert (found["model"], found["steps"], found["settings"], found["digests"]) == ("digits", 2, {"key": 7}, False)
    assert (found["versions"]["numerics"], found["versions"]["numpy"]) == (NUMERICS, np.__version__)
    changed = record([[1, 500], [0.001, 3.5]])
    assert found["sha256"] != changed.provenance()["sha256"]
    assert found["sha256"] == Record.from_json(json.loads(json.dumps(made.to_json()))).provenance()["sha256"]
    with pytest.raises(ValueError, match=r"other has settings \{\}; allowed are \{'key': 7\}"):
        made.merge(changed)
    with pytest.raises(TypeError, match=r"settings has 'recipe': \[1\]; allowed is"):
        Record("digits", settings={"recipe": [1]})


def test_records_of_the_first_version_load():
    fields = record([[1]]).to_json()
    old = {"version": 1, "model": "digits", "entries": fields["entries"]}
    assert Record.from_json(old) == record([[1]])
    assert Record.from_json(old).versions == {}


def test_bad_records(tmp_path):
    fields = record([[1]]).to_json()
    for wrong, message in (
        ({"version": 3}, "record has version 3; allowed are 1 to 2"),
        ({"entries": [{"step": 0}]}, "entry=.*allowed is what Entry.to_json returns"),
        ({"entries": [fields["entries"][0] | {"statistics": {"zeros": 1}}]}, "statistics=.*allowed is what"),
    ):
        with pytest.raises(ValueError, match=message):
            Record.from_json(fields | wrong)
    with pytest.raises(ValueError, match="record is of model 'digits'; allowed is 'other'"):
        Record.from_json(fields, model="other")
    with pytest.raises(ValueError, match="allowed is a record"):
        Record.from_json([])
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        Record.load(tmp_path / "run.json")
    with pytest.raises(ValueError, match="kind='outputs'; allowed are"):
        record([]).add(0, Site("a", "outputs"), statistics_of(np.ones(1, np.float32), "e5m2"))
    with pytest.raises(ValueError, match="others has statistics of 'e5m2'; allowed is 'e4m3fn'"):
        record([[1]]).add(0, SITE, statistics_of(np.ones(1, np.float32), "e5m2"))
    with pytest.raises(ValueError, match="other is a record of model 'b'; allowed is 'a'"):
        record([], "a").merge(record([], "b"))


def test_bad_arguments():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(TypeError, match="x has dtype float64; allowed are float32, float16, bfloat16"):
        statistics_of(x.astype(np.float64), "e5m2")
    with pytest.raises(ValueError, match=r"y is float32.*allowed is x's"):
        statistics_between(x, x[0], "e5m2")
    with pytest.raises(ValueError, match="name='nans'; allowed are"):
        statistics_of(x, "e5m2").rate("nans")
    one = record([[1]])
    for arguments, kind, message in (
        ((one, {}), TypeError, "run_b is a dict; allowed is a Record"),
        ((Record("digits"), one), ValueError, "run_a has no entries"),
        ((one, record([[1]], "b")), ValueError, "run_b is of model 'b'; allowed is that of run_a, 'digits'"),
        ((one, one, -1), ValueError, "tolerance=-1; allowed is None, or a number from 0 on"),
        ((one, one, "1"), TypeError, "tolerance='1' is a str"),
    ):
        with pytest.raises(kind, match=message):
            compare(*arguments)


def test_compare():
    one, other = record([[1, 2], [1, 500], [0.3, 1]]), record([[1, 2], [1, 400], [0.4, 1]])
    found = compare(one, other)
    assert (found.step, found.site) == (1, SITE)
    assert {"overflowed", "nan_results", "errors"} <= set(found.fields)
    assert compare(one, record([[1, 2]])).fields == ("missing",)
    near = record([[1, 2.03125]])
    assert compare(record([[1, 2]]), near).fields
    assert compare(record([[1, 2]]), near, tolerance=1.0) is None


def test_names_of_other_frameworks():
    """An optimizer's states and parameters are the same tensors by other names."""
    sites = [
        ("fc.weight", "exp_avg_sq"),
        ("fc.weight", "momentum_buffer"),
        ("fc.bias", "weight"),
        ("norm.weight", "sum"),
    ]
    names = [("fc.kernel", "nu"), ("fc.kernel", "trace"), ("fc.bias", "weight"), ("norm.scale", "sum_of_squares")]
    runs = Record("net"), Record("net")
    for run, paths in zip(runs, (sites, names), strict=True):
        for i, (path, role) in enumerate(paths):
            run.add(0, Site(path, "state", role), statistics_of(np.float32([i]), "e5m2"))
    assert compare(*runs) is None
    assert compare(*reversed(runs)) is None
    runs[1].add(1, Site("a.kernel", "state", "mu"), statistics_of(np.float32([1]), "e5m2"))
    found = compare(*runs)
    assert (found.site.role, found.fields) == ("mu", ("missing",))


def test_digests():
    """A digest is a sum of hashes of bits and places; that of parts is that of all, in any order."""

    def lowbias32(x):
        x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
        x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
        return x ^ x >> 16

    lanes = np.float32([0.0, -0.0, np.nan, 1, -1e-40]).view(np.int32)
    words = [
        int(sum(np.asarray(one).view(np.uint32).tolist())) & 0xFFFFFFFF
        for one in hashes(lanes, np.arange(5, dtype="i4"))
    ]
    bits = lanes.view(np.uint32).tolist()
    assert words == [
        sum(lowbias32(lowbias32(i + add) ^ one) for i, one in enumerate(bits)) & 0xFFFFFFFF for add in (0, 0x3C6EF372)
    ]
    one = statistics_of(np.float32([1]), "e5m2")
    with_words = [Statistics("e5m2", np.concatenate([one.lanes, np.int32(pair)])) for pair in ((1, -2), (7, 3))]
    made = Record("net")
    for each in with_words:
        made.add(0, SITE, each)
    assert made.at(0, SITE).digest == "0000000800000001"
    assert made.at(0, SITE).statistics == one.merge(one)
    halves = [Record("net", []) for _ in with_words]
    for half, each in zip(halves, with_words, strict=True):
        half.add(0, SITE, each)
    assert halves[1].merge(halves[0]) == made
    assert compare(made, Record.from_json(made.to_json())) is None
    halves[0].entries[0] = Entry(0, SITE, one, "0" * 16)
    halves[1].entries[0] = Entry(0, SITE, one, "f" * 16)
    assert compare(*halves).fields == ("digest",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"zeros": -1}, "zeros=-1; allowed is an int from 0"),
        ({"zeros": 1.5}, "zeros=1.5 is a float"),
        ({"elements": 2**70}, "elements=1180591620717411303424; allowed"),
        ({"largest_before": 2**31}, "largest_before=2147483648; allowed"),
        ({"numbers": [[127, [1]]]}, "numbers has [127, [1]]; allowed are 2 sums"),
        ({"numbers": [[127, [1, -1]]]}, "numbers[127]=-1; allowed"),
        ({"numbers": [[300, [1, 1]]]}, "an entry of numbers=300; allowed is an int from 0 to 255"),
        ({"numbers": [[127]]}, "numbers has [127]; allowed are pairs"),
        ({"errors": 3}, "errors has 3; allowed are pairs"),
        ({"errors": [[1, [1, 0.5, 1]]]}, "errors[1]=0.5 is a float"),
        ({"number": "e9m9"}, "number='e9m9': allowed here are"),
        ({"number": 3}, "number=3 is a int"),
    ],
)
def test_statistics_of_hostile_files(wrong, words):
    fields = statistics_of(np.float32([1, 500]), "e4m3fn").to_json()
    with pytest.raises(ValueError, match=r"^statistics=") as caught:
        Statistics.from_json(fields | wrong)
    assert words in str(caught.value)
    entry = {"step": 0, "kind": "output", "statistics": fields | wrong}
    with pytest.raises(ValueError, match=r"^statistics="):
        Record.from_json({"version": 1, "model": "x", "entries": [entry]})


@pytest.mark.parametrize("wrong", [{"entries": 3}, {"entries": [3]}, {"model": 3}, {"entries": [{"step": 0}]}])
def test_records_of_hostile_files(wrong):
    with pytest.raises(ValueError, match=r"^(record|entry)="):
        Record.from_json({"version": 1, "model": "x", "entries": []} | wrong)
