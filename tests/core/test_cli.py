"""`python -m qcore`: what it prints is true, what it writes is accepted, and one wrong bit is not."""

import json
import os
import re
import subprocess
import sys
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import matplotlib.image
import ml_dtypes
import numpy as np
import pytest
from rich.console import Console

import qcore
from qcore import NAMED, BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint, p3109
from qcore.__main__ import main
from qcore.cli import tables
from qcore.cli.facts import Dyadic, facts
from qcore.cli.names import parse_format
from qcore.cli.plots import draw
from qcore.cli.vectors import Header

ROOT = Path(__file__).parent.parent.parent
SPELLINGS = {
    "e4m3fn": BinaryFloat(4, 3, specials="fn"),
    "p3109:8,3": p3109(8, 3),
    "p3109:8,3,unsigned": p3109(8, 3, signed=False),
    "p3109:6,4,finite,unsigned": p3109(6, 4, signed=False, extended=False),
    "float:5,2": FloatingPoint(5, 2),
    "fixed:8,-3": FixedPoint(8, -3),
    "fixed:8,4,unsigned": FixedPoint(8, 4, signed=False),
}
OTHERS = ("p3109:8,8", "p3109:3,1", "p3109:5,5,unsigned", "p3109:4,2,finite", "fixed:12,20", "fixed:1,0", "float:1,3")


def refused(capsys, *arguments):
    """What a refused command line prints."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err


def test_spellings():
    assert {text: parse_format(text) for text in SPELLINGS} == SPELLINGS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e9m9", r"format 'e9m9'; allowed are the names float16, .*, uint16, and p3109:BITS,PRECISION"),
        ("posit:8,1", r"format 'posit:8,1'; allowed are the names"),
        ("float:5", r"format 'float:5'; allowed are .*float:EXP,MAN"),
        ("float:5,x", r"format 'float:5,x': MAN is 'x'; allowed is an int"),
        ("float:5,2,unsigned", r"'unsigned' after the integers; allowed there, once: nothing"),
        ("fixed:8,4,finite", r"'finite' after the integers; allowed there, once: unsigned"),
        ("p3109:8,3,finite,finite", r"'finite' after the integers; allowed there, once: unsigned, finite"),
        ("p3109:99,3", r"format 'p3109:99,3': bits=99; allowed is an int from 2 to 16"),
        ("fixed:65,0", r"format 'fixed:65,0': wl=65; allowed is an int from 1 to 64"),
        ("float:65,0", r"exp=65; allowed is an int from 1 to 64"),
    ],
)
@pytest.mark.parametrize("command", [["show"], ["vectors", "--mode", "nearest", "-o", "never"]])
def test_wrong_spellings(capsys, command, text, message):
    assert re.search(message, refused(capsys, *command, text))


@pytest.mark.parametrize("text", [*NAMED, *OTHERS, *SPELLINGS])
def test_facts_are_those_of_all_codes(text):
    """The facts come from the fields of a format, what they are compared with from decoding every code."""
    number = parse_format(text)
    known = facts(number)
    values = qcore.decode(np.arange(1 << number.bits), number, np.float64)
    numbers = values[np.isfinite(values)]
    assert (float(known.largest), float(known.lowest)) == (numbers.max(), numbers.min())
    positive = numbers[numbers > 0]
    assert float(known.smallest or 0) == (positive.min() if len(positive) else 0)
    found = {
        "inf": np.isinf(values).any(),
        "NaN": np.isnan(values).any(),
        "-0": (np.signbit(values) & (values == 0)).any(),
        "no zero": not (values == 0).any(),
        "no sign": not np.signbit(numbers).any(),
    }
    assert known.specials == tuple(name for name, there in found.items() if there)
    assert sum(known.fields) == known.bits
    beyond = qcore.quantize(np.array([2 * float(known.largest) + 1]), number, "nearest")[0]
    assert known.overflow == ("inf" if np.isinf(beyond) else "nan" if np.isnan(beyond) else "saturate")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        *((name, getattr(ml_dtypes, f"float8_{name}")) for name in ("e4m3", "e4m3fn", "e4m3fnuz", "e5m2", "e3m4")),
        ("e2m1fn", ml_dtypes.float4_e2m1fn),
        ("e3m2fn", ml_dtypes.float6_e3m2fn),
    ],
)
def test_facts_are_those_of_ml_dtypes(name, dtype):
    known, info = facts(parse_format(name)), ml_dtypes.finfo(dtype)
    assert known.min_normal
    assert known.min_subnormal
    assert float(known.largest) == float(info.max)
    assert float(known.min_normal) == float(info.smallest_normal)
    assert float(known.min_subnormal) == float(info.smallest_subnormal)
    assert known.split == f"{info.nexp}, {info.nmant}"


def test_facts_where_something_is_missing():
    assert facts(parse_format("e8m0fnu")).min_normal == Dyadic(1, -127)
    for name in ("e8m0fnu", "dlfloat16", "p3109:3,1"):
        assert facts(parse_format(name)).min_subnormal is None
    assert facts(parse_format("p3109:8,8")).min_normal is None
    assert facts(parse_format("float:8,7")).overflow == "saturate, inf on float32"
    assert facts(parse_format("float:64,3")).largest.exact == "15 * 2^9223372036854775805"
    with pytest.raises(TypeError, match="is a BlockFloatingPoint; allowed are BinaryFloat"):
        facts(BlockFloatingPoint(8))


@pytest.mark.parametrize(
    ("number", "text", "exact"),
    [
        (Dyadic(7, 13), "57344", "7 * 2^13"),
        (Dyadic(0, 5), "0", "0"),
        (Dyadic(-3, -1), "-1.5", "-3 * 2^-1"),
        (Dyadic(12, 0), "12", "3 * 2^2"),
        (Dyadic(-8, 0), "-8", "-2^3"),
        (Dyadic(255, 120), "3.3895e+38", "255 * 2^120"),
        (Dyadic(1, -1074), "2^-1074", "2^-1074"),
        (Dyadic(1, 10**20), f"2^{10**20}", f"2^{10**20}"),
    ],
)
def test_dyadic_numbers_as_text(number, text, exact):
    assert (str(number), number.exact) == (text, exact)


def test_the_list_has_a_whole_row_for_every_name(capsys):
    assert main([]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines[-len(NAMED) :]] == list(NAMED)
    for line, (_, source) in zip(lines[-len(NAMED) :], NAMED.values(), strict=True):
        assert line.endswith(f"  {source}")
    row = next(line for line in lines if line.startswith("e4m3fn "))
    assert re.split(r"\s{2,}", row)[1:-1] == ["8", "4, 3", "7", "448", "2^-6", "2^-9", "NaN, -0", "nan"]


@pytest.mark.parametrize("width", [100, 140])
def test_the_list_fits_a_terminal(capsys, monkeypatch, width):
    monkeypatch.setattr(tables, "_console", lambda: Console(width=width, force_terminal=True, color_system=None))
    main([])
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    for name in NAMED:
        line = next(line for line in lines if line.startswith(f"{name} "))
        expected = [cell for cell in tables.row(name)[:-1] if cell not in ("-", "NaN, no zero, no sign")]
        assert all(cell in line for cell in expected)
        assert "…" not in line.removesuffix("…").rstrip(" …")


@pytest.mark.parametrize("text", [*NAMED, *OTHERS])
def test_show(capsys, text):
    assert main(["show", text]) == 0
    out = capsys.readouterr().out
    number, codes = (
        parse_format(text),
        re.findall(r"^.*?\b0x([0-9a-f]+)  ([01 ]+?)  +(\S+) *(.*?) *$", capsys_lines(out), re.M),
    )
    assert repr(number) in out
    assert NAMED.get(text, (None, ""))[1] in out
    assert len(codes) == 1 << number.bits if number.bits <= 8 else 4 <= len(codes) <= 15
    for code, binary, value, exact in codes:
        assert int(code, 16) == int(binary.replace(" ", ""), 2)
        expected = float(qcore.decode(np.array([int(code, 16)]), number, np.float64)[0])
        assert value == ("NaN" if np.isnan(expected) else f"{expected:.9g}")
        assert not exact or read_exactly(exact) == Fraction(expected)
        assert bool(exact) == (np.isfinite(expected) and expected != 0)


def capsys_lines(out):
    """The lines of the table of values."""
    return out.partition("───\n")[2]


def read_exactly(text):
    count, _, power = text.rpartition(" * ")
    sign = -1 if power.startswith("-") else 1
    base, _, exponent = power.removeprefix("-").partition("^")
    return sign * Fraction(count or 1) * (Fraction(2) ** int(exponent) if exponent else Fraction(base))


def test_show_several_and_those_without_a_list(capsys):
    assert main(["show", "e2m1fn", "float:64,3", "fixed:40,2"]) == 0
    out = capsys.readouterr().out
    assert "e2m1fn: BinaryFloat" in out
    assert "no list of values: dtype=float64; FloatingPoint (exponent=64, mantissa=3) has numbers of" in out
    assert "no list of values: FixedPoint (wl=40, fl=2) has codes of 40 bits" in out


def test_landmarks():
    named = {
        name: code for code, (names, _) in tables.landmarks(facts(parse_format("float16"))).items() for name in names
    }
    assert named == {
        "zero": 0,
        "smallest": 1,
        "largest subnormal": 0x3FF,
        "smallest normal": 0x400,
        "below one": 0x3BFF,
        "one": 0x3C00,
        "above one": 0x3C01,
        "largest": 0x7BFF,
        "inf": 0x7C00,
        "NaN": 0x7E00,
        "-0": 0x8000,
        "minus smallest": 0x8001,
        "minus one": 0xBC00,
        "lowest": 0xFBFF,
        "-inf": 0xFC00,
    }


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plots_are_made_and_repeat(capsys, tmp_path, suffix):
    names = ["e4m3fn", "e8m0fnu", "fixed:12,4", "p3109:6,6", "bfloat16"]
    for index in range(2):
        assert main(["show", *names, "--plot", str(tmp_path / f"{index}.{suffix}")]) == 0
    first, second = (tmp_path / f"{index}.{suffix}" for index in range(2))
    assert first.read_bytes() == second.read_bytes()
    if suffix == "png":
        assert matplotlib.image.imread(first).std() > 0.1
    else:
        assert all(f"<!-- {name}" in first.read_text() for name in names)


@pytest.mark.parametrize("name", ["fixed:4,1074", "fixed:2,-1022", "p3109:12,1", "fixed:2,0", "p3109:3,1", "float:1,0"])
def test_plots_at_the_ends_of_what_there_is(tmp_path, name):
    draw([name], tmp_path / "x.png")
    assert matplotlib.image.imread(tmp_path / "x.png").std() > 0.05


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("int8", "x.gif", r"plot file '.*x.gif'; allowed are names that end in .png or .svg"),
        ("float:12,2", "x.svg", r"FloatingPoint \(exponent=12, mantissa=2\) has numbers of"),
        ("fixed:1,0", "x.svg", r"format 'fixed:1,0' has no positive numbers to plot"),
    ],
)
def test_plots_refused(capsys, tmp_path, name, file, message):
    assert re.search(message, refused(capsys, "show", name, "--plot", str(tmp_path / file)))
    assert not list(tmp_path.iterdir())


def write(tmp_path, name, mode, *options):
    """The file of vectors."""
    path = tmp_path / "vectors.txt"
    assert main(["vectors", name, "--mode", mode, "-o", str(path), *options]) == 0
    return path


def table(path):
    """The header, and the columns of a file of vectors as lists."""
    header, *lines = path.read_text().splitlines()
    return json.loads(header), [list(column) for column in zip(*(line.split(",") for line in lines), strict=True)]


DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize(
    ("name", "mode", "dtype", "options"),
    [
        *((name, mode, "float32", []) for name in ("e4m3fn", "e8m0fnu", "int4") for mode in ("nearest", "odd", "up")),
        ("e5m2", "nearest", "float32", ["--overflow", "saturate"]),
        ("int8", "down", "float32", ["--overflow", "wrap"]),
        ("float16", "nearest_away", "float64", []),
        ("p3109:6,3,unsigned", "stochastic", "float32", ["--key", str(2**64 - 1)]),
        ("tf32", "stochastic", "float64", ["--key", "7"]),
        ("e3m4", "stochastic", "float16", []),
        ("uint8", "toward_zero", "bfloat16", []),
        ("float:9,23", "stochastic", "float32", []),
        ("float:11,52", "nearest", "float64", []),
        ("fixed:40,10,unsigned", "away", "float64", []),
    ],
)
def test_vectors_are_the_law_and_check_accepts_them(capsys, tmp_path, name, mode, dtype, options):
    path = write(tmp_path, name, mode, "--dtype", dtype, "--count", "50", *options)
    header, columns = table(path)
    given = dict(zip(options[::2], options[1::2], strict=True))
    key = int(given.get("--key", 0)) if mode == "stochastic" else None
    overflow = given.get("--overflow")
    assert header == {
        "format": name,
        "mode": mode,
        "dtype": dtype,
        "overflow": overflow,
        "key": key,
        "version": version("qbits"),
    }
    unsigned = np.dtype(f"u{np.dtype(DTYPES[dtype]).itemsize}")
    x, outputs = (np.array([int(text, 16) for text in column], unsigned) for column in columns[:2])
    x, law = x.view(DTYPES[dtype]), {"key": key, "overflow": overflow}
    number = parse_format(name)
    assert (outputs == qcore.quantize(x, number, mode, **law).view(unsigned)).all()
    if number.bits <= 32:
        assert [int(text, 16) for text in columns[2]] == qcore.encode(x, number, mode, **law).tolist()
    else:
        assert not any(columns[2])
    assert main(["check", str(path)]) == 0
    assert f": 0 of {len(x)} lines differ ({name}, {mode}, {dtype};" in capsys.readouterr().out


def test_vectors_have_the_hard_inputs(tmp_path):
    _, columns = table(write(tmp_path, "e4m3fn", "nearest", "--count", "123", "--seed", "5"))
    patterns = np.array([int(text, 16) for text in columns[0]], np.uint32)
    hard, random = patterns[:-123], patterns[-123:]
    assert (np.diff(hard.astype(np.int64)) > 0).all()
    numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = np.unique(numbers[np.isfinite(numbers)])
    middle = (finite[1:] + finite[:-1]) / 2
    threshold = np.float32([464, -464, 480])  # 448 and a half step, and a whole one
    wanted = np.concatenate([numbers, middle, threshold, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    bits = wanted.view(np.uint32)
    assert np.isin(np.concatenate([bits, bits + 1, bits - 1]), hard).all()
    assert len(np.unique(random)) > 120
    _, again = table(write(tmp_path, "e4m3fn", "down", "--count", "123", "--seed", "6"))
    assert again[0][:-123] == columns[0][:-123]
    assert again[0][-123:] != columns[0][-123:]


def test_large_formats_are_sampled(tmp_path):
    _, columns = table(write(tmp_path, "bfloat16", "nearest", "--count", "0"))
    assert 3000 < len(columns[0]) < 30000
    threshold = (0x7F7F << 16) + 0x8000
    assert {f"{threshold + step:08x}" for step in (-1, 0, 1)} < set(columns[0])


HAND = """\
{"format": "e2m1fn", "mode": "nearest", "dtype": "float32", "overflow": null, "key": null, "version": "0.1.0"}
3fa00000,3f800000,2
3fa00001,3fc00000,3
bfa00000,bf800000,a
7f800000,40c00000,7
80000000,80000000,8
"""


@pytest.mark.parametrize("spell", [str, str.upper, lambda text: text.replace(",", ",0x"), lambda text: text + "\n\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_vectors_by_hand(capsys, tmp_path, spell, end, mark):
    header, _, lines = HAND.partition("\n")
    path = tmp_path / "hand.txt"
    path.write_text(mark + header + "\n" + spell(lines), encoding="utf-8", newline=end)
    assert main(["check", str(path)]) == 0
    assert "0 of 5 lines differ" in capsys.readouterr().out


@pytest.mark.parametrize("column", [1, 2])
@pytest.mark.parametrize("index", [0, 1000, -1])
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_one_flipped_bit_is_found(capsys, tmp_path, column, index, mode):
    path = write(tmp_path, "e5m2", mode, "--dtype", "float16")
    header, *lines = path.read_text().splitlines()
    fields = lines[index].split(",")
    right = fields[column]
    fields[column] = f"{int(right, 16) ^ 1:0{len(right)}x}"
    lines[index] = ",".join(fields)
    path.write_text("\n".join([header, *lines]) + "\n")
    capsys.readouterr()
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"1 of {len(lines)} lines differ" in out
    assert f"the first is line {index % len(lines) + 2}: input {fields[0]} = " in out
    dtype = (np.float16, ml_dtypes.float8_e5m2)[column - 1]
    values = [
        float(np.array([int(text, 16)], f"u{np.dtype(dtype).itemsize}").view(dtype)[0])
        for text in (right, fields[column])
    ]
    name = ("output", "code")[column - 1]
    assert f"{name}: expected {right} = {values[0]!r}, found {fields[column]} = {values[1]!r}" in out


def test_all_differing_lines_are_counted_once(capsys, tmp_path):
    path = tmp_path / "hand.txt"
    path.write_text(
        HAND.replace("3f800000,2", "3fc00000,3").replace("40c00000,7", "7f800000,7").replace("0.1.0", "0.0.1")
    )
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "2 of 5 lines differ (e2m1fn, nearest, float32; 5 outputs and 5 codes compared)" in out
    assert "line 2: input 3fa00000 = 1.25\n" in out
    assert "output: expected 3f800000 = 1.0, found 3fc00000 = 1.5\n  code: expected 2 = 1.0, found 3 = 1.5\n" in out
    assert f"written by version 0.0.1, checked by {version('qbits')}" in out


def test_any_nan_without_codes(tmp_path):
    path = write(tmp_path, "float:9,23", "nearest", "--count", "0")
    assert main(["check", str(path), "--any-nan"]) == 0
    path.write_text(path.read_text().replace("\n7fc00000,7fc00000,\n", "\n7fc00000,ffffffff,\n"))
    assert main(["check", str(path)]) == 1
    assert main(["check", str(path), "--any-nan"]) == 0


def test_a_column_may_be_empty(capsys, tmp_path):
    path = tmp_path / "hand.txt"
    path.write_text(re.sub(r",\w{8},", ",,", HAND))
    assert main(["check", str(path)]) == 0
    assert "0 outputs and 5 codes compared" in capsys.readouterr().out
    path.write_text(re.sub(r",\w$", ",", HAND, flags=re.M).replace("40c00000", "40c00001"))
    assert main(["check", str(path)]) == 1
    assert "1 of 5 lines differ (e2m1fn, nearest, float32; 5 outputs and 0 codes compared)" in capsys.readouterr().out


def test_any_nan(capsys, tmp_path):
    path = write(tmp_path, "e5m2", "nearest")
    text = path.read_text()
    assert "\n7fc00000,7fc00000,7e\n" in text
    path.write_text(text.replace("\n7fc00000,7fc00000,7e\n", "\n7fc00000,ff800001,7d\n"))
    assert main(["check", str(path)]) == 1
    assert main(["check", str(path), "--any-nan"]) == 0
    path.write_text(text.replace("\n7f800000,7f800000,7c\n", "\n7f800000,7fc00000,7c\n"))  # the law has infinity there
    assert main(["check", str(path), "--any-nan"]) == 1
    path.write_text(text.replace("\n7fc00000,7fc00000,7e\n", "\n7fc00000,7f800000,7e\n"))
    assert main(["check", str(path), "--any-nan"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HAND, "", r"line 1: Expecting value"),
        (HAND, "[1]\n3fa00000,,2", r"line 1: '\[1\]'; allowed is a JSON object with exactly format, mode, dtype"),
        ('"key": null, ', "", r"line 1: .*allowed is a JSON object with exactly"),
        ("e2m1fn", "e2m1", r"line 1: format 'e2m1'; allowed are"),
        ('"nearest"', '"closest"', r"line 1: rounding='closest'; allowed are"),
        ('"nearest"', '"stochastic"', r"line 1: key=None"),
        ('"nearest"', "3", r"line 1: mode is 3; allowed is"),
        ('"key": null', '"key": true', r"line 1: key=True|line 1: key is True"),
        ("float32", "float8", r"line 1: dtype='float8'; allowed are float32"),
        ('"overflow": null', '"overflow": "inf"', r"line 1: overflow='inf'; allowed are saturate"),
        (HAND[HAND.index("\n") :], "", r"line 2: the file ends"),
        ("3fa00001,", "3fa0000x,", r"line 3: '3fa0000x,3fc00000,3'; allowed is input_bits,output_bits,code"),
        ("3fa00001,", "3fa000011,", r"line 3: .* 8 digits, 8 and 1"),
        ("bf800000,a", "bf800000,1a", r"line 4"),
        ("bf800000,a", "bf800000", r"line 4"),
        ("bf800000,a", ",", r"line 4"),
        ("bf800000,a", "bf800000,a,", r"line 4"),
        ("3fa00001,3fc00000,3\n", "\n", r"line 3: ''"),
        ("3fa00001", "\udcff", r"line 3"),
    ],
)
def test_malformed_files(capsys, tmp_path, old, new, message):
    path = tmp_path / "hand.txt"
    assert old in HAND
    path.write_text(HAND.replace(old, new), encoding="utf-8", errors="surrogateescape")
    error = refused(capsys, "check", str(path))
    assert re.search(re.escape(str(path)) + ", (" + message + ")", error)


def test_a_code_where_the_format_has_none(capsys, tmp_path):
    path = write(tmp_path, "fixed:40,1", "nearest", "--count", "0")
    header, first, *_ = path.read_text().splitlines()
    path.write_text(f"{header}\n{first}0\n")
    assert "line 2" in refused(capsys, "check", str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["e5m2", "--mode", "closest"], r"argument --mode: invalid choice: 'closest'"),
        (["e5m2", "--mode", "nearest", "--key", "1"], r"--key 1; allowed is no key with --mode nearest"),
        (
            ["e5m2", "--mode", "stochastic", "--key", str(2**64)],
            r"argument --key: key=18446744073709551616; allowed is",
        ),
        (["e5m2", "--mode", "nearest", "--count", "-1"], r"argument --count: '-1'; allowed is an int >= 0"),
        (["e5m2", "--mode", "nearest", "--overflow", "wrap"], r"overflow='wrap'; allowed are inf, nan, saturate"),
        (["e5m2", "--mode", "nearest", "--dtype", "int8"], r"argument --dtype: invalid choice: 'int8'"),
        (["float:5,30", "--mode", "nearest"], r"man=30; allowed is man <= 23"),
        (["fixed:8,2000", "--mode", "nearest"], r"fl=2000: the step 2\^-2000 is no float32 number"),
        (["e5m2"], r"the following arguments are required: --mode"),
    ],
)
def test_vectors_refused(capsys, tmp_path, arguments, message):
    path = tmp_path / "never"
    assert re.search(message, refused(capsys, "vectors", *arguments, "-o", str(path)))
    assert not path.exists()


def test_files_that_cannot_be(capsys, tmp_path):
    assert "No such file" in refused(capsys, "check", str(tmp_path / "none"))
    missing = str(tmp_path / "none" / "x")
    assert missing in refused(capsys, "vectors", "e5m2", "--mode", "nearest", "-o", missing)
    assert "invalid choice: 'shew'" in refused(capsys, "shew")


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("rich.console", [], "this needs rich, which is not installed: pip install 'qbits[cli]'"),
        ("matplotlib.figure", ["show", "e5m2", "--plot", "x.svg"], "this needs matplotlib, which is not installed"),
        (
            "ml_dtypes",
            ["vectors", "e5m2", "--mode", "up", "--dtype", "bfloat16", "-o", "x"],
            "this needs ml_dtypes, which is not installed: pip install ml_dtypes",
        ),
    ],
)
def test_what_is_not_installed(capsys, monkeypatch, tmp_path, module, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert message in refused(capsys, *arguments)


def test_as_a_process(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "qcore", "show", "e2m1fn"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(re.findall(r"^0x", run.stdout, re.M)) == 16


def test_imports_stay_light():
    code = "import sys, qcore, qcore.__main__, qcore.cli.vectors, qcore.cli.check; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"rich", "matplotlib", "ml_dtypes", "torch", "jax"} & set(run.stdout.split())


def test_the_page_is_fresh(capsys, tmp_path):
    """If it is not: `python -m qcore docs`."""
    assert main(["docs", str(tmp_path)]) == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in sorted(written, key=len)]
    assert (tmp_path / "formats.md").read_text() == (ROOT / "docs" / "formats.md").read_text()
    pinned = re.findall(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert len(written) == 3
    for name in written:
        assert name == "formats.md" or f"]({name})" in (tmp_path / "formats.md").read_text()
        if pinned == [version("matplotlib")]:
            assert (tmp_path / name).read_bytes() == (ROOT / "docs" / name).read_bytes(), name


def test_headers_are_refused_before_work_begins():
    with pytest.raises(ValueError, match="overflow='nan'"):
        Header("int8", "nearest", "float32", "nan", None, "").law(np.empty(0, np.float32))
