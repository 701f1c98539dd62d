"""`qbits vectors` and `check`: what is written is accepted, and one wrong bit is not."""

import json
import re
from importlib.metadata import version

import ml_dtypes
import numpy as np
import pytest
from cli_support import refused
from support import words

import qcore
from qcore import parse
from qcore.__main__ import main
from qcore.cli.layouts import read_rows
from qcore.cli.vectors import Header, read


def write(tmp_path, name, mode, *options):
    """The file of vectors."""
    path = tmp_path / "vectors.txt"
    assert main(["vectors", name, "--rounding", mode, "-o", str(path), *options]) == 0
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
        ("p3109(6,3,signed=False)", "stochastic", "float32", ["--key", str(2**64 - 1)]),
        ("tf32", "stochastic", "float64", ["--key", "7"]),
        ("e3m4", "stochastic_b", "float16", []),
        ("nf4", "stochastic_c", "float32", []),
        ("p3109(8,4)", "nearest", "float32", ["--overflow", "propagate"]),
        ("uint8", "toward_zero", "bfloat16", []),
        ("float(9,23)", "stochastic", "float32", []),
        ("float(11,52)", "nearest", "float64", []),
        ("fixed(40,10,signed=False)", "away", "float64", []),
    ],
)
def test_vectors_are_the_law_and_check_accepts_them(capsys, tmp_path, name, mode, dtype, options):
    path = write(tmp_path, name, mode, "--dtype", dtype, "--count", "50", *options)
    header, columns = table(path)
    given = dict(zip(options[::2], options[1::2], strict=True))
    key = int(given.get("--key", 0)) if mode.startswith("stochastic") else None
    overflow = given.get("--overflow")
    assert header == {
        "format": name,
        "rounding": mode,
        "dtype": dtype,
        "overflow": overflow,
        "key": key,
        "version": version("qbits"),
        "rows": len(columns[0]),
    }
    unsigned = np.dtype(f"u{np.dtype(DTYPES[dtype]).itemsize}")
    x, outputs = (np.array([int(text, 16) for text in column], unsigned) for column in columns[:2])
    x, law = x.view(DTYPES[dtype]), {"key": key, "overflow": overflow}
    number = parse(name)
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
{"format": "e2m1fn", "rounding": "nearest", "dtype": "float32", "overflow": null, "key": null, "version": "1", \
"rows": 5}
3fa00000,3f800000,2,1,0,0
3fa00001,3fc00000,3,1,0,1
bfa00000,bf800000,a,1,0,0
7f800000,40c00000,7,0,0,0
80000000,80000000,8,0,0,0
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
        HAND.replace("3f800000,2", "3fc00000,3").replace("40c00000,7", "7f800000,7").replace('"1"', '"0.0.1"')
    )
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "2 of 5 lines differ (e2m1fn, nearest, float32; 25 fields compared)" in out
    assert "line 2: input 3fa00000 = 1.25\n" in out
    assert "output: expected 3f800000 = 1.0, found 3fc00000 = 1.5\n  code: expected 2 = 1.0, found 3 = 1.5\n" in out
    assert f"written by version 0.0.1, checked by {version('qbits')}" in out


def test_any_nan_without_codes(tmp_path):
    path = write(tmp_path, "float(9,23)", "nearest", "--count", "0")
    assert main(["check", str(path), "--any-nan"]) == 0
    path.write_text(path.read_text().replace("\n7fc00000,7fc00000,,", "\n7fc00000,ffffffff,,"))
    assert main(["check", str(path)]) == 1
    assert main(["check", str(path), "--any-nan"]) == 0


def test_a_column_may_be_empty(capsys, tmp_path):
    path = tmp_path / "hand.txt"
    path.write_text(re.sub(r",\w{8},", ",,", HAND))
    assert main(["check", str(path)]) == 0
    assert "20 fields compared" in capsys.readouterr().out
    path.write_text(re.sub(r"(,\w){4}$", ",,,,", HAND, flags=re.M).replace("40c00000", "40c00001"))
    assert main(["check", str(path)]) == 1
    assert "1 of 5 lines differ (e2m1fn, nearest, float32; 5 fields compared)" in capsys.readouterr().out


def test_a_column_that_is_partly_empty(capsys, tmp_path):
    path = tmp_path / "hand.txt"
    path.write_text(HAND.replace(",2,1,", ",,1,"))
    assert main(["check", str(path)]) == 0
    assert "24 fields compared)\n  code is empty in 1 of 5 rows" in capsys.readouterr().out


def test_any_nan(capsys, tmp_path):
    path = write(tmp_path, "e5m2", "nearest")
    text = path.read_text()
    assert "\n7fc00000,7fc00000,7e," in text
    path.write_text(text.replace("\n7fc00000,7fc00000,7e,", "\n7fc00000,ff800001,7d,"))
    assert main(["check", str(path)]) == 1
    assert main(["check", str(path), "--any-nan"]) == 0
    path.write_text(text.replace("\n7f800000,7f800000,7c,", "\n7f800000,7fc00000,7c,"))  # the law has infinity there
    assert main(["check", str(path), "--any-nan"]) == 1
    path.write_text(text.replace("\n7fc00000,7fc00000,7e,", "\n7fc00000,7f800000,7e,"))
    assert main(["check", str(path), "--any-nan"]) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HAND, "", r"line 1: '' is not a header; allowed is the first line of what `vectors` wrote"),
        (HAND, "[1]\n3fa00000,,2", r"line 1: '\[1\]' is not a header"),
        (HAND, HAND.partition("\n")[2], r"line 1: '3fa.*' is not a header"),
        ('"key": null, ', "", r"line 1: .*allowed is a JSON object with exactly"),
        ("e2m1fn", "e2m1x", r"line 1: format='e2m1x': e2m1x may mean e2m1"),
        ('"nearest"', '"closest"', r"line 1: rounding='closest'; allowed are"),
        ('"nearest"', '"stochastic"', r"line 1: key=None"),
        ('"nearest"', "3", r"line 1: rounding is 3; allowed is"),
        ('"key": null', '"key": true', r"line 1: key=True|line 1: key is True"),
        ("float32", "float8", r"line 1: dtype='float8'; allowed are float32"),
        ('"overflow": null', '"overflow": "inf"', r"line 1: overflow='inf'; allowed are saturate"),
        (HAND[HAND.index("\n") :], "", r"0 rows; allowed are 5, the number in the header"),
        ("3fa00001,3fc00000,3,1,0,1\n", "", r"4 rows; allowed are 5, the number in the header"),
        ("3fa00001,", "3fa0000x,", r"line 3: input is '3fa0000x'; allowed are 8 hexadecimal digits"),
        ("3fa00001,", "3fa000011,", r"line 3: input is .* 8 hexadecimal digits"),
        ("bf800000,a", "bf800000,1a", r"line 4: code is '1a'; allowed are 1 hexadecimal digits"),
        ("bf800000,a", "bf800000", r"line 4: .* has 5 fields; allowed are 6: input, output, code, guard,"),
        (HAND, re.sub(r"(?<=,)\w+$|(?<=,)\w+(?=,)", "", HAND, flags=re.M), r"no row has a result; allowed is at least"),
        ("bf800000,a", "bf800000,a,", r"line 4: .* has 7 fields"),
        ("3fa00001,3fc00000,3,1,0,1\n", "\n", r"line 3: '' has 1 fields"),
        ("3fa00001", "\udcff", r"line 3"),
    ],
)
def test_malformed_files(capsys, tmp_path, old, new, message):
    path = tmp_path / "hand.txt"
    assert old in HAND
    path.write_text(HAND.replace(old, new), encoding="utf-8", errors="surrogateescape")
    error = refused(capsys, "check", str(path))
    assert re.search(re.escape(str(path)) + "(, |: )(" + message + ")", error)


def test_a_code_where_the_format_has_none(capsys, tmp_path):
    path = write(tmp_path, "fixed(40,1)", "nearest", "--count", "0")
    path.write_text(path.read_text().replace(",,", ",0,", 1))
    assert "line 2" in refused(capsys, "check", str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["e5m2", "--rounding", "closest"], r"argument --rounding: 'closest'; allowed are nearest, "),
        (["e5m2", "--rounding", "nearest", "--key", "1"], r"--key 1; allowed is no key with --rounding nearest"),
        (
            ["e5m2", "--rounding", "stochastic", "--key", str(2**64)],
            r"argument --key: key=18446744073709551616; allowed is",
        ),
        (["e5m2", "--rounding", "nearest", "--count", "-1"], r"argument --count: '-1'; allowed is an int >= 0"),
        (["e5m2", "--rounding", "nearest", "--overflow", "wrap"], r"overflow='wrap'; allowed are inf, nan, saturate"),
        (["e5m2", "--rounding", "nearest", "--dtype", "int8"], r"argument --dtype: 'int8'; allowed are float32, "),
        (["float(5,30)", "--rounding", "nearest"], r"man=30; allowed is man <= 23"),
        (["fixed(8,2000)", "--rounding", "nearest"], r"fl=2000: the step 2\^-2000 is no float32 number"),
        (["e5m2"], r"the following arguments are required: --rounding"),
    ],
)
def test_vectors_refused(capsys, tmp_path, arguments, message):
    path = tmp_path / "never"
    assert re.search(message, refused(capsys, "vectors", *arguments, "-o", str(path)))
    assert not path.exists()


def test_headers_are_refused_before_work_begins():
    with pytest.raises(ValueError, match="overflow='nan'"):
        Header("int8", "nearest", "float32", "nan", None, "").law(np.empty(0, np.float32))


@pytest.mark.parametrize("end", ["json", "mem", "csv"])
def test_layouts_and_random_words(capsys, tmp_path, end):
    path = tmp_path / f"vectors.{end}"
    assert main(["vectors", "e5m2", "--rounding", "stochastic", "--key", "9", "--count", "40", "-o", str(path)]) == 0
    vectors = read(read_rows(path))
    word = vectors.found["word"].values
    assert (word == words(9, word.shape) >> 8).all()
    assert main(["check", str(path)]) == 0
    assert f"0 of {len(word)} lines differ (e5m2, stochastic, float32;" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["e2m3fn", "int4", "posit(6,1)", "uint8", "fixed(1,0)"])
def test_half_of_the_random_inputs_are_inside_the_range(tmp_path, name):
    vectors = read(read_rows(write(tmp_path, name, "nearest", "--count", "1000")))
    x = np.abs(vectors.given[-500:].view(np.float32))
    finite = np.abs(qcore.decode(np.arange(1 << parse(name).bits), name))
    finite = finite[np.isfinite(finite) & (finite > 0)]
    assert ((x >= finite.min()) & (x <= finite.max())).all()


def test_ten_differences_and_counts_by_kind(capsys, tmp_path):
    path = write(tmp_path, "e4m3fn", "nearest", "--count", "0")
    path.write_text(re.sub(r",7f(?=,.,.,.$)", ",7e", path.read_text(), flags=re.M))
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert len(re.findall("^(?:the first is|then) line", out, re.M)) == 10
    assert "\n  infinity: 1 of 2\n" in out
    assert "\n  beyond the largest exponent: 4 of 8\n" in out  # the positive ones
    assert "\n  numbers of the format: 0 of 252\n" in out
