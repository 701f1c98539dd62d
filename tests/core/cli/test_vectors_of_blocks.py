"""Conformance vectors of numbers that share scales: whole blocks of lines, with a column of scales."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from cli_support import refused

import qcore
from qcore import NAMED, BlockScaled, parse
from qcore.__main__ import main
from qcore.formats.block import RULES

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
SCALED = [name for name, (number, _) in NAMED.items() if isinstance(number, BlockScaled)]


def write(tmp_path, name, *options):
    path = tmp_path / "vectors.txt"
    assert main(["vectors", name, "-o", str(path), *options]) == 0
    return path


def columns(path):
    return list(zip(*(line.split(",") for line in path.read_text().splitlines()[1:]), strict=True))


@pytest.mark.parametrize(
    ("name", "mode", "dtype"),
    [*((name, "nearest", "float32") for name in [*SCALED, "nvfp4"]), ("mxfp4", "stochastic", "bfloat16")]
    + [(BlockScaled("e4m3fn", {-1: 16}, rule).text, "nearest_away", "float32") for rule in RULES]
    + [("mxfp6_e3m2", "up", "float16"), ("nvfp4", "stochastic", "float64"), ("mxint8", "odd", "float64")]
    + [("scaled(e2m1fn,{-1:16},scale=e5m2)", "stochastic_b", "float32")]
    + [("scaled(e4m3fn,{-1:32},scale=bfloat16)", "stochastic_c", "float32")],
)
def test_vectors_are_the_law_and_check_accepts_them(capsys, tmp_path, name, mode, dtype):
    key = ["--key", "7"] if mode.startswith("stochastic") else []
    path = write(tmp_path, name, "--rounding", mode, "--dtype", dtype, "--count", "50", *key)
    number, law = parse(name), {"key": 7 if key else None}
    size, unsigned = number.block_sizes(1)[0], np.dtype(f"u{np.dtype(DTYPES[dtype]).itemsize}")
    found = [np.array([int(text, 16) for text in column], np.uint64) for column in columns(path)]
    x, outputs, codes, scales = (column.astype(unsigned) for column in found[:4])
    assert len(found) == (5 if key else 4)  # the last column is the random word's
    x = x.view(DTYPES[dtype])
    assert len(x) % size == 0
    assert (outputs == qcore.quantize(x, number, mode, **law).view(unsigned)).all()
    expected, scale = qcore.encode(x, number, mode, **law)
    scale = scale[0] if isinstance(scale, tuple) else scale
    assert (codes == expected).all()
    assert (scales.reshape(-1, size) == scale[:, None]).all()
    assert main(["check", str(path)]) == 0
    assert f"; {(4 if key else 3) * len(x)} fields compared)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxint8", "nvfp4"])
def test_vectors_have_the_hard_inputs(tmp_path, name):
    path = write(tmp_path, name, "--rounding", "nearest", "--count", "64")
    found = [np.array([int(text, 16) for text in column], np.uint32) for column in columns(path)]
    x, codes, scales = found[0].view(np.float32), found[2], found[3]
    width = NAMED[name][0].bits
    # all codes of the elements, save NaN's and where there is none -0, and many scales, those of NaN and of zeros too
    assert len(np.unique(codes)) >= 2**width - 2
    assert len(np.unique(scales)) > 15
    assert np.isnan(x).any()
    assert np.isinf(x).any()
    if name != "nvfp4":
        assert {0, 255} < set(scales.tolist())
        assert np.float32(3.4028235e38) in x


def flipped(path, line, column):
    """Changes the last bit of a field; returns what was there."""
    lines = path.read_text().splitlines()
    fields = lines[line].split(",")
    right = fields[column]
    fields[column] = f"{int(right, 16) ^ 1:0{len(right)}x}"
    lines[line] = ",".join(fields)
    path.write_text("\n".join(lines) + "\n")
    return right, fields[column]


@pytest.mark.parametrize("column", [1, 2, 3])
@pytest.mark.parametrize(("name", "scale"), [("mxfp6_e2m3", "e8m0fnu"), ("nvfp4", "e4m3fn")])
def test_one_flipped_bit_is_found(capsys, tmp_path, name, scale, column):
    path = write(tmp_path, name, "--rounding", "nearest")
    right, wrong = flipped(path, 301, column)
    capsys.readouterr()
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert ": 1 of " in out
    assert "the first is line 302: " in out
    number = NAMED[name][0].element if column == 2 else scale
    if column == 1:
        values = [float(np.uint32([int(text, 16)]).view(np.float32)[0]) for text in (right, wrong)]
    else:
        values = [float(qcore.decode(np.uint8([int(text, 16)]), number)[0]) for text in (right, wrong)]
    what = ("output", "code", "scale")[column - 1]
    assert f"{what}: expected {right} = {values[0]!r}, found {wrong} = {values[1]!r}" in out


def test_a_column_may_be_empty_but_not_missing(capsys, tmp_path):
    path = write(tmp_path, "mxfp4", "--rounding", "nearest")
    text = path.read_text()
    path.write_text(re.sub(r",\w\w$", ",", text, flags=re.M))
    assert main(["check", str(path)]) == 0
    assert f"; {2 * len(columns(path)[0])} fields compared)" in capsys.readouterr().out
    path.write_text(re.sub(r",\w\w$", "", text, flags=re.M))
    error = refused(capsys, "check", str(path))
    assert "line 2" in error
    assert "has 3 fields; allowed are 4: input, output, code, scale" in error


@pytest.mark.parametrize(
    "text", ["scaled(p3109(6,3),{-1:8},rule=even)", "scaled(e2m1fn,{...:None})", "nvfp4({-1:None})"]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_blocks_of_every_size(capsys, tmp_path, text, dtype):
    path = write(tmp_path, text, "--rounding", "nearest", "--dtype", dtype)
    assert json.loads(path.read_text().partition("\n")[0])["format"] == text
    assert len({*columns(path)[2]}) > 8
    assert main(["check", str(path)]) == 0
    assert f"; {3 * len(columns(path)[0])} fields compared)" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["block(5,dim=-1)", "block(5,dim=0)", "scaled(fixed(40,2),{-1:8})"])
def test_blocks_without_codes(capsys, tmp_path, text):
    path = write(tmp_path, text, "--rounding", "nearest", "--count", "64")
    inputs, outputs, codes = columns(path)
    assert not any(codes)
    x = np.uint32([int(bits, 16) for bits in inputs]).view(np.float32)
    expected = qcore.quantize(x, text, "nearest")
    assert [int(bits, 16) for bits in outputs] == expected.view(np.uint32).tolist()
    assert len(np.unique(expected[np.isfinite(expected)])) > 8
    assert main(["check", str(path)]) == 0
    assert f"; {len(columns(path)[0])} fields compared)" in capsys.readouterr().out


def test_tiles_of_two_dimensions_are_refused(capsys, tmp_path):
    arguments = ["vectors", "scaled(e2m1fn,{-2:4,-1:4})", "--rounding", "nearest", "-o", str(tmp_path / "never")]
    assert "block={-2: 4, -1: 4} has axis -2; allowed are -1 <= axis < 1" in refused(capsys, *arguments)
