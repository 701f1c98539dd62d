"""Roundings to formats as graphs of ONNX: onnxruntime has the law's numbers for ties, ends, zeros and NaN."""

import numpy as np
import onnxruntime
import pytest

import qcore
from qcore.exchange.graph import Graph
from qcore.exchange.rounding import rounded
from qcore.exchange.symbols import Symbol

# Every sign, exponent and 7 bits behind it, with tails around the middle of two such numbers.
HEADS = np.arange(1 << 16, dtype=np.uint32) << 16
TAILS = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x1000, 0xFFFF]
X = np.concatenate([HEADS | np.uint32(tail) for tail in TAILS]).view(np.float32)

FORMATS = (
    "float16 bfloat16 e4m3fn e4m3fnuz e5m2 e5m2fnuz "  # casts
    "fixed(8,4) fixed(20,8) int4 "  # arithmetic
    "e2m1fn nf4 uint8 posit8 e8m0fnu p3109(8,4) dlfloat16"  # tables
).split()
CASES = [(name, "nearest", "") for name in FORMATS]
CASES += [("e5m2", "nearest", policy) for policy in ("saturate", "propagate", "inf", "nan")]
CASES += [
    (name, mode, "") for name in ("e4m3fn", "fixed(8,4)", "posit16") for mode in ("toward_zero", "up", "down", "odd")
]


@pytest.mark.parametrize(("name", "rounding", "overflow"), CASES)
def test_numbers_are_those_of_the_law(name, rounding, overflow):
    graph = Graph("rounding")
    y = rounded(Symbol(graph, graph.input("x", "float32", ["n"]), "float32", 1), name, rounding, overflow)
    graph.output(y.name, "float32", ["n"])
    expected = qcore.quantize(X, name, rounding, overflow=overflow or None)
    for level in (
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, 1
        (found,) = onnxruntime.InferenceSession(graph.model().SerializeToString(), options).run(None, {"x": X})
        same = (found.view(np.int32) == expected.view(np.int32)) | (np.isnan(found) & np.isnan(expected))
        assert same.all(), (X[~same][:3], found[~same][:3], expected[~same][:3])


@pytest.mark.parametrize(
    ("name", "rounding", "overflow"),
    [("tf32", "nearest", ""), ("e5m2", "stochastic", ""), ("mxfp4", "nearest", ""), ("fixed(8,4)", "nearest", "wrap")],
)
def test_what_cannot_be_said(name, rounding, overflow):
    graph = Graph("rounding")
    x = Symbol(graph, graph.input("x", "float32", ["n"]), "float32", 1)
    with pytest.raises(
        ValueError, match=r"cannot be said in ONNX; allowed are formats of at most 16 bits.*; to_qonnx writes"
    ):
        rounded(x, name, rounding, overflow)
    double = Symbol(graph, graph.input("y", "float64", ["n"]), "float64", 1)
    with pytest.raises(ValueError, match="rounding float64 to 'e5m2' cannot be said in ONNX; allowed are float32"):
        rounded(double, "e5m2", "nearest", "")
