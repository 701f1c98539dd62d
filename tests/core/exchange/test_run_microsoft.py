"""Operators that onnxruntime's quantizer writes, beside onnxruntime: its integers, but next to ties of its sums."""

from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from qcore.exchange import run_onnx

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(0)
SCALES = [(0.1, 0.2, 0.3), (0.013, 0.7, 0.41), (0.5, 0.25, 0.125), (0.0123, 0.0345, 0.021)]


def integers(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def compared(op, arrays, exact=None, **attributes):
    """The results of both are equal; where their `exact` values before rounding are next to ties, they may be apart."""
    named = {f"i{place}": np.asarray(one) for place, one in enumerate(arrays) if one is not None}
    names = [f"i{place}" if one is not None else "" for place, one in enumerate(arrays)]
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for k, x in named.items()
    ]
    node, out = (
        helper.make_node(op, names, ["y"], domain=DOMAIN, **attributes),
        helper.make_empty_tensor_value_info("y"),
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "one", infos, [out]), opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, named)
    kind = helper.np_dtype_to_tensor_dtype(theirs.dtype)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, theirs.shape))
    ours = run_onnx(model, named)["y"]
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    apart = abs(ours.astype(np.int64) - theirs.astype(np.int64)) if theirs.dtype.kind in "iu" else ours != theirs
    assert apart.max() <= (exact is not None), (op, attributes)
    if exact is not None:
        assert (abs(exact % 1 - 0.5)[apart > 0] < 1e-4).all(), (op, attributes)
        assert apart.mean() < 0.05


def means(x, strides=(1, 1), pads=(0, 0, 0, 0), count_include_pad=0):
    """The exact means in windows of 3 x 3."""
    around = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
    ones = np.pad(np.ones_like(x), around, constant_values=float(count_include_pad))
    sums, counts = (
        np.lib.stride_tricks.sliding_window_view(one, (3, 3), (2, 3)).sum((-1, -2))[..., :: strides[0], :: strides[1]]
        for one in (np.pad(x, around), ones)
    )
    return sums / counts


CASES = [*product((np.uint8, np.int8), SCALES)]


@pytest.mark.parametrize(("dtype", "scales"), CASES)
def test_integers_are_onnxruntimes(dtype, scales):
    (a, b, c), (p, q, r) = map(np.float32, scales), integers(dtype, 3) // 2
    x, y = integers(dtype, 20, 300), integers(dtype, 300)
    everything = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    left, right = a * (x.astype(np.float64) - p), b * (y.astype(np.float64) - q)
    compared("QLinearAdd", [x, a, p, y, b, q, c, r], (left + right) / c)
    compared("QLinearMul", [x, a, p, y, b, q, c, r], left * right / c)
    compared("QLinearSigmoid", [everything, a, p, np.float32(1 / 256), dtype(np.iinfo(dtype).min)])
    compared("QLinearLeakyRelu", [everything, a, p, c, r], alpha=0.1)
    compared("QLinearConcat", [c, r, x, a, p, x[:3], b, q], axis=0)
    compared("QLinearConcat", [c, r, x, a, p, x[:, :3], b, q], axis=-1)
    images = integers(dtype, 2, 3, 5, 7)
    for last in (0, 1):
        compared("QLinearGlobalAveragePool", [images, a, p, c, r], channels_last=last)
    for settings in ({}, {"strides": [1, 2], "pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1}):
        exact = means(a * (images.astype(np.float64) - p), **settings) / c
        compared("QLinearAveragePool", [images, a, p, c, r], exact, kernel_shape=[3, 3], **settings)
    compared("QuantizeLinear", [RNG.standard_normal(99).astype(np.float32), a, p])
    compared("DequantizeLinear", [everything, a, p])


def test_products_are_onnxruntimes():
    a, b = integers(np.uint8, 5, 7), integers(np.int8, 7, 3)
    scales, zeros = np.float32([0.02, 0.03, 0.011]), np.zeros(3, np.int8)
    bias = RNG.integers(-5000, 5000, 3).astype(np.int32)
    x, y = np.float32(0.05), [np.float32(0.3), np.uint8(90)]
    for w, per, zero in ((b, scales, zeros), (b, scales[0], np.int8(0))):
        compared("QGemm", [a, x, np.uint8(9), w, per, zero, bias, *y])
        compared("QGemm", [a, x, np.uint8(9), w, per, zero, bias])
        compared("QGemm", [a, x, np.uint8(9), w, per, zero, None, *y])
        compared("QGemm", [a, x, np.uint8(9), w.T.copy(), per, zero, bias, *y], transB=1)
    compared("QGemm", [a.T.copy(), x, np.uint8(9), b, scales[0], np.int8(0), bias, *y], transA=1, alpha=0.5)


class Rows:
    """A reader of calibration data."""

    def __init__(self, rows):
        self.rows = iter(rows)

    def get_next(self):
        return next(self.rows, None)


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_the_quantizer(tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    weights = {"w": RNG.standard_normal((4, 3, 3, 3)), "b": RNG.standard_normal(4), "m": RNG.standard_normal((4, 5))}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["c"], ["l"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["l", "s"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["a"]),
        helper.make_node("Concat", ["a", "l"], ["t"], axis=2),
        helper.make_node("MaxPool", ["t"], ["k"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("AveragePool", ["k"], ["v"], kernel_shape=[2, 2]),
        helper.make_node("GlobalAveragePool", ["v"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [2, 3, 8, 8]), ("y", [2, 5]))]
    constants = [onnx.numpy_helper.from_array(one.astype(np.float32), name) for name, one in weights.items()]
    graph = helper.make_graph(nodes, "network", infos[:1], infos[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "f.onnx")
    rows = [{"x": RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    for form in (quantization.QuantFormat.QOperator, quantization.QuantFormat.QDQ):
        path = tmp_path / f"{form}.onnx"
        quantization.quantize_static(tmp_path / "f.onnx", path, Rows(rows), quant_format=form)
        model = onnx.load(path)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        (theirs,) = onnxruntime.InferenceSession(str(path), options).run(None, rows[0])
        (ours,) = run_onnx(path, rows[0]).values()
        step = max(one.float_data[0] for one in model.graph.initializer if one.name.startswith("y_scale"))
        assert abs(ours - theirs).max() <= 1.5 * step
        if form is quantization.QuantFormat.QOperator:
            assert {"QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearSigmoid"} <= {
                one.op_type for one in model.graph.node
            }
