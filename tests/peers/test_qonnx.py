"""Operators of QONNX beside the executor in the package qonnx: the same bits."""

from itertools import product

import numpy as np
import pytest
from onnx import helper

from qcore.exchange import run_onnx

pytestmark = pytest.mark.heavy
qonnx = pytest.importorskip("qonnx.custom_op.general.quant")
bipolar_quant = pytest.importorskip("qonnx.custom_op.general.bipolar_quant")
floatquant = pytest.importorskip("qonnx.custom_op.general.floatquant")
multithreshold = pytest.importorskip("qonnx.custom_op.general.multithreshold")
trunc = pytest.importorskip("qonnx.custom_op.general.trunc")

F = np.float32
SCALES = F(1), F(0.25), F(0.3), F([[0.5, 0.3]])
DOMAIN = "qonnx.custom_op.general"


def numbers():
    """Random numbers, ties, ends, powers of two and their lower neighbours; two columns."""
    powers = np.ldexp(F(1), np.arange(-126, 124)).astype(F)
    ends = F([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -1e38, 1e-40, 2.0**-126])
    random = np.random.default_rng(0).standard_normal(2000).astype(F) * 10
    found = np.concatenate([random, np.arange(-40, 40).astype(F) / 4, ends, powers, np.nextafter(powers, F(0))])
    return np.resize(found, (1300, 2))


X = numbers()


def compared(op, constants, wanted, **attributes):
    arrays = {f"i{place}": np.asarray(one, F) for place, one in enumerate(constants)}
    node = helper.make_node(op, ["x", *arrays], ["y"], domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "one node",
        [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info("y", 1, X.shape)],
        [helper.make_tensor(name, 1, one.shape, one.reshape(-1)) for name, one in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)])
    ours, theirs = run_onnx(model, {"x": X})["y"], np.asarray(wanted).astype(F)
    same = (ours.view(np.int32) == theirs.view(np.int32)) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all(), (op, attributes, X[~same][:4], theirs[~same][:4], ours[~same][:4])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mode", ["ROUND", "half_even", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN"])
def test_quant(mode):
    for signed, narrow, scale, zero, bits in product((0, 1), (0, 1), SCALES, (0, 0.5, 3), (1, 4, 8, 16, 24)):
        constants = scale, F(zero), F(bits)
        wanted = qonnx.quant(X, *constants, signed, narrow, mode)
        for op in ("Quant", "IntQuant"):
            compared(op, constants, wanted, signed=signed, narrow=narrow, rounding_mode=mode)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mode", ["ROUND", "HALF_UP", "HALF_DOWN"])
def test_float_quant(mode):
    forms = [(5, 2, 15), (4, 3, 7), (8, 7, 127), (5, 10, 15), (2, 1, 1), (3, 0, 3), (4, 3, 8)]
    flags = [(0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 1)]
    for form, scale, (has_inf, has_nan, saturation), most in product(forms, SCALES, flags, (1e30, 100)):
        constants = scale, *map(F, form), F(most)
        *values, bias, largest = constants
        wanted = floatquant.float_quant(X, *values, bias, True, largest, has_inf, has_nan, 0, mode, saturation)
        attributes = {"has_inf": has_inf, "has_nan": has_nan, "saturation": saturation, "rounding_mode": mode}
        compared("FloatQuant", constants, wanted, **attributes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mode", ["FLOOR", "ROUND", "CEIL", "HALF_UP"])
def test_trunc(mode):
    for zero, signed, narrow in product((F(0), F(3)), (0, 1), (0, 1)):
        wanted = trunc.trunc_v1(X, F(0.25), zero, F(8), F(4), mode)
        compared("Trunc", (0.25, zero, 8, 4), wanted, rounding_mode=mode)
        wanted = trunc.trunc_v2(X, F(0.25), zero, F(8), narrow, signed, F(2), F(4), mode)
        compared("Trunc", (0.25, zero, 8, 2, 4), wanted, rounding_mode=mode, signed=signed, narrow=narrow)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_signs_and_thresholds():
    compared("BipolarQuant", [F(0.3)], bipolar_quant.binary_quant(X, F(0.3)))
    steps = np.sort(np.random.default_rng(1).standard_normal((2, 7)).astype(F) * 5, 1)
    wanted = multithreshold.multithreshold(X, steps, F(0.3), F(-1))
    compared("MultiThreshold", [steps], wanted, out_dtype="FLOAT32", out_scale=0.3, out_bias=-1.0)
    compared("MultiThreshold", [steps[:1]], multithreshold.multithreshold(X, steps[:1]), out_dtype="UINT3")


@pytest.mark.parametrize("weight", ["e4m3fn", "mxfp8_e4m3", "mxfp4", "nvfp4"])
def test_models_of_narrow_floats(tmp_path, weight):
    """What `to_qonnx` writes of weights and activations with scales."""
    torch = pytest.importorskip("torch")
    execution = pytest.importorskip("qonnx.core.onnx_exec")
    shapes = pytest.importorskip("qonnx.transformation.infer_shapes")
    wrapper = pytest.importorskip("qonnx.core.modelwrapper")
    from qtorch.export import to_qonnx
    from qtorch.quant import Quantizer
    from qtorch.quantization import QConfig, quantize_model

    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(32, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()
    x = torch.randn(1, 32)
    rounded = quantize_model(layers, QConfig("e4m3fn", weight), calibrate=[x])
    model = torch.nn.Sequential(Quantizer("e4m3fn", forward_rounding="nearest"), rounded).eval()
    to_qonnx(model, (x,), tmp_path / "model.onnx")
    made = wrapper.ModelWrapper(str(tmp_path / "model.onnx")).transform(shapes.InferShapes())
    (given,) = made.graph.input
    (found,) = execution.execute_onnx(made, {given.name: x.numpy()}).values()
    np.testing.assert_array_equal(found, model(x).detach().numpy())
