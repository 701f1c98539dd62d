"""Roundings as nodes of QONNX, executed by `run_onnx`: the law's results on all codes, midpoints, ends and more."""

import numpy as np
import pytest

import qcore
from qcore.affine import AffineInteger, QParams, fake_quantize
from qcore.exchange import qonnx, run_onnx
from qcore.exchange.accumulators import finished
from qcore.exchange.graph import Graph
from qcore.exchange.symbols import Symbol

FORMATS = ["fixed(8,4)", "fixed(8,8)", "fixed(6,-2)", "fixed(2,0)", "fixed(16,10)", "fixed(25,20)", "int8", "uint4"]
FORMATS += ["fixed(8,4,symmetric=True)", "fixed(8,4,signed=False)", "fixed(1,0,signed=False)"]
FLOATS = ["float(5,2)", "float(4,3)", "float(3,4)", "float(6,9)", "float(2,1)", "float(5,10,bias=20)", "float16"]
FLOATS += ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1fn", "e2m3fn", "e3m2fn", "p3109(8,4)"]
SATURATED = ["e4m3fn", "e5m2", "float16"]


def written(write, inputs):
    """The results of the node that `write` adds to a graph."""
    graph = Graph("one node")
    x = Symbol(graph, graph.input("x", "float32", inputs.shape), "float32", inputs.ndim)
    graph.output(write(graph, x).name, "float32", inputs.shape, name="y")
    return run_onnx(graph.model(), {"x": inputs})["y"], graph.model()


def hard(number):
    """All numbers of a format with their midpoints and their neighbours in float32, and ends; floats are finite."""
    bits = min(qcore.parse(number).bits, 16)
    codes = np.arange(2**bits, dtype=np.uint32) << (qcore.parse(number).bits - bits)
    found = np.unique(qcore.decode(codes, number))
    found = found[np.isfinite(found)]
    middles = (found[1:] + found[:-1]) / 2
    ends = np.float32([0.0, 1e-38, 2.0**-126, 2.0**-149, 1e9, 1e38, 3.4e38, found[-1] * 1.1])
    x = np.concatenate([found, middles, ends, -ends, np.random.default_rng(0).standard_normal(999).astype(np.float32)])
    return np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])


def assert_same(x, found, wanted):
    """The same bits, but for zeros: Quant adds a zero point of 0 to them."""
    same = (
        (found.view(np.int32) == wanted.view(np.int32))
        | (np.isnan(found) & np.isnan(wanted))
        | ((found == 0) & (wanted == 0))
    )
    assert same.all(), (x[~same][:5], found[~same][:5], wanted[~same][:5])


@pytest.mark.parametrize("mode", ["nearest", "nearest_zero", "toward_zero", "away", "up", "down"])
@pytest.mark.parametrize("number", FORMATS)
def test_fixed_point_is_quant(number, mode):
    if (number == "fixed(6,-2)" and mode in ("away", "up", "down")) or (
        number == "fixed(25,20)" and mode == "nearest_zero"
    ):
        with pytest.raises(ValueError, match="QONNX has no node"):
            written(lambda graph, x: qonnx.rounded(graph, x, number, mode), np.zeros(1, np.float32))
        return
    x = np.concatenate([hard(number), np.float32([np.inf, -np.inf, np.nan])])
    found, model = written(lambda graph, x: qonnx.rounded(graph, x, number, mode), x)
    assert_same(x, found, qcore.quantize(x, number, mode))
    assert [node.op_type for node in model.graph.node] == ["Quant", "Identity"]


@pytest.mark.parametrize("mode", ["nearest", "nearest_zero"])
@pytest.mark.parametrize(
    ("number", "overflow"), [*((one, None) for one in FLOATS), *((one, "saturate") for one in SATURATED)]
)
def test_floats_are_float_quant(number, overflow, mode):
    x = hard(number)
    x = np.concatenate([x[np.isfinite(x)], np.float32([np.nan])])
    found, _ = written(lambda graph, x: qonnx.rounded(graph, x, number, mode, overflow), x)
    assert_same(x, found, qcore.quantize(x, number, mode, overflow=overflow))


@pytest.mark.parametrize(
    "form", [AffineInteger(*ends) for ends in [(-128, 127), (-127, 127), (0, 255), (0, 14), (-2, 1)]]
)
def test_symmetric_integers_are_quant(form):
    x = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32) * 9
    x = np.concatenate([x, np.arange(-60, 60, dtype=np.float32).reshape(-1, 3) / 8])
    for scale, axis in ((np.float32(0.25), None), (np.float32([0.5, 0.125, 2]), 1)):
        zeros = np.zeros(scale.shape, np.int32)
        found, _ = written(lambda graph, x: qonnx.fake_quantize(graph, x, scale, zeros, axis, form), x)  # noqa: B023
        assert_same(x, found, fake_quantize(x, QParams(scale, zeros, axis), form)[0])


def test_a_sign_is_bipolar_quant():
    found, _ = written(lambda graph, x: qonnx.bipolar(graph, x, 0.5), np.float32([-3, -0.0, 0, 2]))
    assert found.tolist() == [-0.5, 0.5, 0.5, 0.5]


REFUSED = {
    "nearest_away": ("fixed(8,4)", "nearest_away", None, "no such rounding"),
    "stochastic": ("fixed(8,4)", "stochastic", None, "no such rounding"),
    "wraps": ("fixed(8,4)", "nearest", "wrap", "wrapping"),
    "no range": ("fixed(8,4,clamp=False)", "nearest", None, "without a range"),
    "one bit": ("fixed(1,0)", "nearest", None, "a signed bit"),
    "many bits": ("fixed(32,4)", "nearest", None, "32 bits"),
    "floats toward zero": ("e5m2", "toward_zero", None, "directed rounding"),
    "bfloat16": ("bfloat16", "nearest", None, "steps below"),
    "unsigned": ("float8_e8m0fnu", "nearest", None, "without subnormal"),
    "posit": ("posit(8,1)", "nearest", None, "fixed point and floats"),
    "blocks": ("mxfp8_e4m3", "nearest", None, "fixed point and floats"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_qonnx_lacks_is_named(name):
    number, mode, overflow, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        written(lambda graph, x: qonnx.rounded(graph, x, number, mode, overflow), np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("scale", "zero_point", "ends", "message"),
    [(0.3, 0, (-8, 7), "powers of two"), (0.5, 3, (0, 15), "zero points of 0"), (0.5, 0, (-3, 7), "such a range")],
)
def test_other_integers_are_named(scale, zero_point, ends, message):
    with pytest.raises(ValueError, match=message):
        written(
            lambda graph, x: qonnx.fake_quantize(graph, x, scale, zero_point, None, AffineInteger(*ends)),
            np.zeros(1, np.float32),
        )


def test_accumulators_are_annotated_with_every_value_that_they_can_take():
    graph, rng = Graph("two layers"), np.random.default_rng(0)
    x = Symbol(graph, graph.input("x", "float32", (2, 2, 4, 4)), "float32", 4)
    filters = qonnx.rounded(graph, rng.standard_normal((3, 2, 3, 3)).astype(np.float32), "fixed(6,4)")
    shifts = qonnx.rounded(graph, rng.standard_normal(3).astype(np.float32), "fixed(8,6)")
    y = qonnx.rounded(graph, x, "fixed(8,4)")
    y = Symbol(graph, graph.node("Conv", y.name, filters.name, shifts.name, pads=[1, 1, 1, 1]), "float32", 4)
    convolved = y.name
    y = qonnx.rounded(graph, y._made("Relu"), "fixed(8,3,signed=False)").reshape((2, 48))
    matrix = qonnx.rounded(graph, rng.standard_normal((48, 2)).astype(np.float32), "fixed(6,4)")
    y = Symbol(graph, graph.node("MatMul", y.name, matrix.name), "float32", 2)
    y.rename("y")
    graph.output("y", "float32", (2, 2))
    model = finished(graph.model())
    found = {one.tensor_name: one.quant_parameter_tensor_names[0].value for one in model.graph.quantization_annotation}
    assert set(found) == {convolved, "y"}
    weights = run_onnx(model, {"x": np.zeros((2, 2, 4, 4), np.float32)}, [filters.name, shifts.name, matrix.name])
    # Two inputs are the extremes of an output's sum in its middle: those that agree with the weights' signs, and not.
    for name, kernel, extra, ends in (
        (convolved, weights[filters.name].reshape(3, -1).T, weights[shifts.name], (-8, 8 - 2**-4)),
        ("y", weights[matrix.name], 0, (0, 32 - 2**-3)),
    ):
        sums = [np.where(kernel > 0, kernel * high, kernel * low).sum(0) + extra for low, high in (ends, ends[::-1])]
        bits, whole = map(int, found[name].removeprefix("FIXED<").rstrip(">").split(","))
        most = 2.0 ** (whole - 1)
        assert -most <= sums[1].min() <= sums[0].max() < most
        assert sums[1].min() < -most / 2 or sums[0].max() >= most / 2  # no narrower type has all
        assert bits - whole == {convolved: 8, "y": 7}[name]  # the fractions of both factors
