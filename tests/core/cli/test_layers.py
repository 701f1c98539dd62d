"""`python -m qcore layer` and `check`: each element of a layer's result is one sum of its operands' codes."""

import io
import json
import os
import re
import zipfile
from itertools import product

import numpy as np
import pytest
from cli_support import refused

import qcore
from qcore.__main__ import main
from qcore.cli.layers import Layer
from qcore.cli.layouts import read_rows
from qcore.cli.sum_files import read
from qcore.cli.sums import Operands
from qcore.linalg import Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import geometry_of
from qcore.linalg.geometry import FORWARD

HOPPER, FP8 = "hopper.wgmma.e4m3", "accumulator(float(6,9),chunk=16)"
STOCHASTIC = "accumulator(float(6,9),chunk=8,rounding=stochastic)"
LINEAR = "--input", "9,40", "--weight", "6,40"
CONVOLUTION = "--input", "2,4,9,7", "--weight", "6,2,3,2", "--groups", "2", "--stride", "2,1", "--padding", "1"


def write(path, *arguments):
    assert main(["layer", *arguments, "-o", str(path)]) == 0
    return path


def gathered(layer, given):
    """The operands of each element of the result, restated with loops."""
    rows = []
    numbers = iter(())
    if not layer.is_convolution:
        places = product(*map(range, layer.shape))
        rows = [(given.a[place[:-1]], given.b[place[-1]], place[-1]) for place in places]
    else:
        numbers = (tuple(map(int, text.split(","))) for text in layer.form.split(" ")[1:])
        stride, padding, dilation, (groups,) = numbers
        outputs, channels, *taps = layer.weight
        for n, o, *place in product(*map(range, layer.shape)):
            terms = []
            for c, *tap in product(range(channels), *map(range, taps)):
                at = [p * s - q + t * d for p, s, q, t, d in zip(place, stride, padding, tap, dilation, strict=True)]
                inside = all(0 <= x < size for x, size in zip(at, layer.input[2:], strict=True))
                channel = o // (outputs // groups) * channels + c
                terms.append(given.a[(n, channel, *at)] if inside else 0)
            rows.append((np.array(terms, given.a.dtype), given.b[o].reshape(-1), o))
    a, b, outputs = zip(*rows, strict=True)
    starts = layer.bias == "start"
    c = given.c[list(outputs)] if starts else np.zeros(len(rows), np.float32)
    return Operands(np.stack(a), np.stack(b), None, c), list(outputs)


@pytest.mark.parametrize(
    ("arguments", "operands"),
    [
        ([HOPPER, *LINEAR, "--bias", "start"], None),
        ([HOPPER, *CONVOLUTION, "--result", "e4m3fn:saturate", "--dilation", "1,2"], None),
        ([FP8, *LINEAR, "--result", "int8", "--rounding", "up"], ("e5m2", "e4m3fn")),
        ([STOCHASTIC, *LINEAR, "--bias", "none", "--key", "7"], ("e5m2", "e4m3fn")),
        ([STOCHASTIC, *CONVOLUTION], ("int8", "fixed(8,4)")),
        (["accumulator()", "--input", "3,5,8", "--weight", "4,5,3"], None),
        (["cdna3.mfma.fp8", "--input", "2,3,64", "--weight", "5,64", "--bias", "start"], None),
    ],
)
def test_rows_are_sums_and_results_are_those_of_products(capsys, tmp_path, arguments, operands):
    given = ["--operands", *operands] if operands else []
    path = write(tmp_path / "layer.csv", *arguments, *given)
    vectors = read(read_rows(path))
    layer, found = vectors.law, {name: column.values for name, column in vectors.found.items()}
    rows, outputs = gathered(layer, vectors.given)
    sums, _ = layer.unit.columns(rows)
    assert all((found[name] == column).all() for name, column in sums.items())
    x, w = (
        qcore.decode(codes, number)
        for codes, number in zip((vectors.given.a, vectors.given.b), layer.unit.numbers, strict=True)
    )
    law = geometry_of(layer.form), FORWARD, Product(*(operands or (None, None)), layer.accumulator), x, w, w.shape
    c = rows.c.reshape(layer.shape) if layer.bias == "start" else None
    result = multiply_arrays(*law, layer.key, addend=c).reshape(-1)
    assert (found["result"] == result.view(np.uint32)).all()
    if layer.bias == "added":
        with np.errstate(all="ignore"):
            result = result + vectors.given.c[outputs]
        numbers = ~np.isnan(result)
        assert (found["biased"] == result.view(np.uint32))[numbers].all()
        assert numbers.sum() > len(numbers) / 2
    if layer.result:
        assert (found["output"] == qcore.encode(result, layer.result, layer.rounding)).all()
    assert main(["check", str(path)]) == 0
    assert f"0 of {len(result)} rows differ" in capsys.readouterr().out


@pytest.mark.parametrize("end", ["csv", "json", "mem"])
def test_scaled_operands_in_each_layout(tmp_path, end):
    path = write(tmp_path / f"l.{end}", "blackwell.tcgen05.mxe4m3", "--input", "8,64", "--weight", "3,64")
    vectors = read(read_rows(path))
    given, (first, second) = vectors.given, vectors.unit.numbers
    assert (tmp_path / f"l.input_scale.{end}").exists()
    x, w = (
        qcore.decode(codes, number) * np.repeat(qcore.decode(scales, vectors.unit.scale), 32, -1)
        for codes, number, scales in zip((given.a, given.b), (first, second), given.scales, strict=True)
    )
    sums = Operands(np.repeat(given.a, 3, 0), np.tile(given.b, (8, 1)), None, np.zeros(24, np.float32))
    scales = np.repeat(given.scales[0], 3, 0), np.tile(given.scales[1], (8, 1))
    columns, _ = vectors.unit.columns(Operands(sums.a, sums.b, scales, sums.c))
    assert (vectors.found["result"].values == columns["result"]).all()
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    close = vectors.found["result"].values.astype(np.uint32).view(np.float32).reshape(8, 3)
    assert np.allclose(
        close, exact, rtol=1e-3, atol=1e-3 * np.nanmax(np.abs(exact[np.isfinite(exact)])), equal_nan=True
    )
    assert main(["check", str(path)]) == 0


def test_tensors_of_a_trained_layer(capsys, tmp_path):
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 32), (5, 32), (5,)))
    np.savez(tmp_path / "layer.npz", input=x, weight=w, bias=bias)
    path = write(tmp_path / "v.csv", HOPPER, "--tensors", str(tmp_path / "layer.npz"))
    vectors = read(read_rows(path))
    expected = qcore.linalg.matmul(x, w.T.copy(), accumulator=HOPPER) + bias
    assert (vectors.found["biased"].values == expected.view(np.uint32).ravel()).all()
    np.savez(tmp_path / "layer.npz", input=x, weight=w.astype(np.float64))
    error = refused(capsys, "layer", HOPPER, "--tensors", str(tmp_path / "layer.npz"), "-o", str(path))
    assert "weight has dtype float64; allowed is float32" in error


def test_differences_name_the_element(capsys, tmp_path):
    path = write(tmp_path / "v.csv", HOPPER, "--input", "16,64", "--weight", "12,64", "--result", "e4m3fn:saturate")
    header, *lines = path.read_text().splitlines()
    for row in (17, *range(30, 43)):
        fields = lines[row].split(",")
        fields[-1] = f"{int(fields[-1], 16) ^ 1:02x}"
        lines[row] = ",".join(fields)
    path.write_text("\n".join([header, *lines]))
    capsys.readouterr()
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "14 of 192 rows differ" in out
    assert len(re.findall(r"^line \d+", out, re.M)) == 10
    assert re.search(
        r"line 19, output\[1, 5\]:\n  step 0: exponent \w{4}, cut .*\n  step 1: .*\n  result .*, output \w\w \(f", out
    )
    assert re.search(r"    alignments that cut off bits: \d+ of \d+\n", out)


def test_undefined_bits_are_differences(capsys, tmp_path):
    path = write(tmp_path / "v.mem", HOPPER, "--input", "3,32", "--weight", "2,32", "--bias", "none")
    comment, *lines = path.read_text().splitlines()
    digits = json.loads(comment[3:])["columns"]
    lines = ["x" * (sum(digits.values()) - 8) + line[-8:] for line in lines]
    text = "\n".join([comment, "// 0x00000000", *lines])
    path.write_text(text)
    assert main(["check", str(path)]) == 0
    lines[2], lines[4] = lines[2][:-8] + "x" * 8, lines[4][:-1] + "Z"
    path.write_text("\n".join([comment, "// 0x00000000", *lines]))
    capsys.readouterr()
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "2 of 6 rows differ" in out
    assert "result has undefined bits, x or z, in 2 rows" in out
    assert re.search(r"line 5, output\[1, 0\]:\n(?:.*\n)+?  result \w{8} \(found xxxxxxxx\)", out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.with_name("v.weight.csv").unlink(), r"v\.weight\.csv is missing, the weight of .*v\.csv"),
        (
            lambda path: path.with_name("v.input.csv").write_text(path.with_name("v.weight.csv").read_text()),
            r"v\.input\.csv, line 1: not the header of input of shape \[3, 32\]",
        ),
        (
            lambda path: path.with_name("v.input.csv").write_text(
                path.with_name("v.input.csv").read_text().rpartition("\n")[0].rpartition("\n")[0]
            ),
            r"v\.input\.csv: 95 rows; allowed are 96",
        ),
        (lambda path: path.write_text(path.read_text().replace('"linear"', '"lin"')), r"line 1: form='lin'; allowed"),
        (lambda path: path.write_text(path.read_text().replace("[2, 32]", "[2, 33]")), r"line 1: input has shape"),
        (
            lambda path: path.write_text(path.read_text().replace("[2, 32]", "[2, -1]")),
            r"weight has shape \(2, -1\); allowed",
        ),
        (
            lambda path: path.write_text(path.read_text().replace("[2, 32]", "[2, 1.5]")),
            r"weight is \[2, 1\.5\]; allowed",
        ),
        (
            lambda path: path.write_text(path.read_text().replace("[2, 32]", "[2, 1099511627776]")),
            r"input has shape \(3, 32\), weight has shape \(2, 1099511627776\)",
        ),
        (
            lambda path: path.write_text(path.read_text().replace("32]", "1099511627776]")),
            r"a sum has 34359738368 steps; allowed are at most [0-9]+, as many as a row has fields",
        ),
        (
            lambda path: path.write_text(path.read_text().replace("[2, 32]", "[1099511627776, 32]")),
            r"rows=6; allowed are 3298534883328",
        ),
        (lambda path: path.write_text(path.read_text().replace('"none"', '"some"')), r"line 1: bias='some'; allowed"),
    ],
)
def test_malformed_files(capsys, tmp_path, change, message):
    path = write(tmp_path / "v.csv", HOPPER, "--input", "3,32", "--weight", "2,32", "--bias", "none")
    change(path)
    assert re.search(message, refused(capsys, "check", str(path)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([HOPPER], r"--input and --weight are needed, or --tensors alone"),
        ([HOPPER, "--input", "3,x", "--weight", "2,32"], r"argument --input: 'x'; allowed is an int"),
        ([HOPPER, "--input", "3,32", "--weight", "2,33"], r"input has shape \(3, 32\), weight has shape \(2, 33\)"),
        ([HOPPER, "--input", "3,32", "--weight", "32"], r"weight has shape \(32,\); allowed are \(outputs, inputs\)"),
        ([HOPPER, "--input", "0,32", "--weight", "2,32"], r"input has shape \(0, 32\), .*; allowed are sizes >= 1"),
        ([HOPPER, "--tensors", __file__], r"test_layers\.py is not what np\.savez writes"),
        ([HOPPER, *LINEAR, "--stride", "2"], r"stride with a linear layer; allowed is it with a convolution"),
        ([HOPPER, *LINEAR, "--result", "mxfp4"], r"result='mxfp4'; allowed are formats with codes"),
        ([HOPPER, *LINEAR, "--result", "int8", "--rounding", "stochastic"], r"rounding='stochastic'; allowed are"),
        ([HOPPER, *LINEAR, "--key", "1"], r"key=1 with .*nothing is stochastic"),
        (
            ["blackwell.tcgen05.mxe4m3", "--input", "1,32,4,4", "--weight", "2,32,1,1"],
            r"with a convolution; allowed is a linear layer",
        ),
    ],
)
def test_refused(capsys, tmp_path, arguments, message):
    assert re.search(message, refused(capsys, "layer", *arguments, "-o", str(tmp_path / "never")))
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("shape", [(1 << 31, 1), (1 << 61, 1), (4, 4)])
def test_archives_that_lie(capsys, tmp_path, shape):
    """A header of an array that its bytes do not fill, before memory is taken; and files that are no archives."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name in ("input", "weight"):
            archive.writestr(f"{name}.npy", header.getvalue())
    np.save(tmp_path / "one.npy", np.zeros(3, np.float32))
    (tmp_path / "empty.npz").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.npz")
    for name in ("x.npz", "one.npy", "empty.npz", "pipe.npz"):
        error = refused(capsys, "layer", HOPPER, "--tensors", str(tmp_path / name), "-o", str(tmp_path / "never"))
        assert f"{name} is not what np.savez writes" in error


def test_inputs_of_all_kinds():
    """A convolution's rows of places are hard in several ways, and cancel with the weights that are made for it."""
    layer = Layer(HOPPER, None, None, None, "convolution 1,1 1,1 1,1 1", (1, 4, 64, 4), (4, 4, 3, 3))
    given = layer.draw(0)
    x, w = (qcore.decode(codes, "e4m3fn") for codes in (given.a, given.b))
    assert (x[:, :, 56:] == 0).all()
    assert np.isfinite(w).all()
    assert ((np.abs(x[:, :, 24:32]) < 2.0**-5).mean()) > 0.9
    assert len(np.unique(given.c)) == 4
