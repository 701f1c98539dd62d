"""Transposed convolutions in integers beside JAX's own of the same integers, whose sums float32 holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from flax import nnx
from flax_support import layer_of, run
from support import assert_same_bits

from qcore import affine
from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qjax import nnx as qnn
from qjax.nnx import quantized
from qjax.quantization import QTensor, default_qconfig, quantize_per_tensor

CASES = {
    "line": ((2, 7, 4), (3,), {"strides": 2, "padding": "SAME"}),
    "wide steps": ((2, 7, 4), (2,), {"strides": (3,), "padding": "SAME"}),
    "image": ((1, 5, 3, 4), (2, 3), {"strides": (2, 1), "padding": "VALID", "kernel_dilation": (1, 2)}),
    "pairs": ((1, 5, 3, 4), (3, 2), {"strides": (1, 2), "padding": ((2, 1), (0, 1)), "use_bias": False}),
    "volume": ((1, 2, 3, 2, 2), (2, 2, 2), {"strides": 2, "padding": 1}),
}
HEAVY_BUT_ONE = usually(("image",), CASES)
FORMS = [INT8, AffineInteger.of_width(4), AffineInteger.of_width(12)]


@pytest.mark.parametrize("forms", [FORMS[:1], pytest.param(FORMS, marks=pytest.mark.heavy)], ids=["int8", "all"])
@pytest.mark.parametrize("name", HEAVY_BUT_ONE)
def test_sums(name, forms):
    shape, kernel, settings = CASES[name]
    rng = np.random.default_rng(3)
    layer = layer_of(nnx.ConvTranspose, shape[-1], 5, kernel, **settings)
    bias = None if layer.bias is None else rng.normal(size=5).astype(np.float32)
    x, output = rng.integers(0, 256, shape), QParams.of(np.float32(0.4), 120)
    q = QTensor(jnp.asarray(x, jnp.uint8), QParams(jnp.float32(0.05), jnp.int32(100)), UINT8)
    for form in forms:
        kernels = rng.integers(form.qmin, form.qmax + 1, layer.kernel.shape)
        weight = np.moveaxis(kernels[(slice(None, None, -1),) * len(kernel)], (-1, -2), (0, 1))  # torch mirrors
        scales = rng.uniform(0.01, 0.02, 5).astype(np.float32)
        qparams = QParams(jnp.asarray(scales), jnp.zeros(5, jnp.int32), 0)
        quantized_weight = QTensor(jnp.asarray(weight, form.storage), qparams, form)
        own = quantized.ConvTranspose.of(layer, quantized_weight, bias, output, UINT8)
        padding = settings["padding"] if settings["padding"] != 1 else ((1, 1),) * len(kernel)
        strides, dilation = own.strides, own.kernel_dilation
        images, filters = (jnp.asarray(part, jnp.float32) for part in (x - 100, kernels))
        sums = jax.lax.conv_transpose(images, filters, strides, padding, rhs_dilation=dilation)
        expected = affine.requantize(np.asarray(sums), np.float32(0.05), scales, bias, output, UINT8)
        assert_same_bits(jax.jit(lambda own, q: own(q).values)(own, q), expected)
    assert_same_bits(jax.jit(lambda own, q: own(q).values)(own, q[0]), expected[0])


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_near_the_layer_of_floats(name):
    shape, kernel, settings = CASES[name]
    model = qnn.QuantWrapper(layer_of(nnx.ConvTranspose, shape[-1], 5, kernel, **settings))
    x = jnp.asarray(np.random.default_rng(4).normal(size=shape), jnp.float32)
    prepared = qnn.prepare(model, default_qconfig)
    run(prepared, x)
    own = qnn.convert(prepared)
    assert np.abs(np.asarray(run(own, x)) - run(model, x)).max() < 4 * own.module.scale[...]
    assert qnn.report(own)["module"].state == "quantized"


RNGS = nnx.Rngs(0)
LEFT = {
    "it has transpose_kernel=True": lambda: nnx.ConvTranspose(2, 2, (2,), transpose_kernel=True, rngs=RNGS),
    "it has padding='CIRCULAR'": lambda: nnx.ConvTranspose(2, 2, (2,), padding="CIRCULAR", rngs=RNGS),
    "it has a mask": lambda: nnx.ConvTranspose(2, 2, (2,), mask=jnp.ones((2, 2, 2)), rngs=RNGS),
    "qjax.nnx.PReLU is its quantized twin": nnx.PReLU,
}


@pytest.mark.parametrize("reason", LEFT)
def test_layers_that_are_left_say_why(reason):
    assert reason in qnn.report(nnx.Sequential(LEFT[reason]()))["0"].reason


def test_wrong_calls():
    weight = quantize_per_tensor(jnp.ones((2, 3, 2)), 0.1, 0, "qint8")
    layer = quantized.ConvTranspose(weight, None, QParams.of(1.0, 0), UINT8)
    with pytest.raises(
        ValueError, match=r"ConvTranspose: input has shape \(1, 4, 3\); allowed are 1 sizes before 2 channels"
    ):
        layer(quantize_per_tensor(jnp.ones((1, 4, 3)), 0.1, 0, "quint8"))
    with pytest.raises(ValueError, match="padding='FULL'; allowed are SAME, VALID"):
        quantized.ConvTranspose(weight, None, QParams.of(1.0, 0), UINT8, padding="FULL")
    with pytest.raises(TypeError, match="insert a QuantStub"):
        layer(jnp.ones((1, 4, 2)))
