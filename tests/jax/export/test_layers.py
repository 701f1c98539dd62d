"""Layers and functions of quantized arrays as ONNX: onnxruntime has the library's integers."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax_export_support import check

import qjax.nnx as qnn
from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qcore.affine import functional as affine
from qjax._models import modules_of
from qjax.nnx import quantized
from qjax.nnx.quantized import dynamic
from qjax.quantization import fake_quantize, functional, quantize_per_channel, quantize_per_tensor
from qjax.quantization.functional import CellWeights

NOISE = np.random.default_rng(0)
INT4, INT13 = AffineInteger(-8, 7), AffineInteger(-3000, 3000)
TO, NEAR = QParams.of(0.2, 120), QParams.of(0.02, 120)


def floats(*shape):
    return NOISE.normal(size=shape).astype(np.float32)


def weight(*shape, form=INT8, axis=0):
    scale = NOISE.uniform(0.01, 0.03, shape[axis]).astype(np.float32)
    return quantize_per_channel(floats(*shape), scale, np.zeros(shape[axis], np.int32), axis, form)


def quantized_input(x, scale=0.1, zero_point=100, form=UINT8):
    return quantize_per_tensor(x, scale, zero_point, form)


ROWS, IMAGES, BIAS = 3 * floats(3, 5, 4), 3 * floats(2, 8, 8, 4), floats(6)
LAYERS = {  # made where they are tested: XLA compiles for their weights
    "linear": (ROWS, lambda: [quantized.Linear(weight(6, 4), BIAS, TO, UINT8)]),
    "linear of other widths": (
        ROWS,
        lambda: [
            quantized.Linear(weight(6, 4, form=INT4), None, TO, UINT8, relu=True),
            quantized.Linear(weight(6, 4, form=INT13), BIAS, TO, UINT8),
        ],
    ),
    "convolutions": (
        IMAGES,
        lambda: [
            quantized.Conv(weight(6, 2, 3, 3), BIAS, TO, UINT8, feature_group_count=2, strides=2),
        ],
    ),
    "convolutions of other paddings": (
        IMAGES,
        lambda: [
            quantized.Conv(weight(6, 4, 3, 3), None, TO, UINT8, padding="REFLECT", relu=True),
            quantized.Conv(weight(6, 4, 3, 3), None, TO, UINT8, padding="VALID", kernel_dilation=2),
        ],
    ),
    "transposed": (IMAGES, lambda: [quantized.ConvTranspose(weight(4, 6, 3, 3, axis=1), BIAS, TO, UINT8, strides=2)]),
    "convolutions of rows": (
        ROWS,
        lambda: [
            quantized.Conv(weight(6, 4, 3), BIAS, TO, UINT8, padding="CAUSAL"),
            quantized.Conv(weight(6, 4, 3, form=INT13), BIAS, TO, UINT8),
        ],
    ),
    "activations": (
        ROWS,
        lambda: [
            *(quantized.Activation(law, NEAR, UINT8) for law in ("elu", "leaky_relu", "hardswish", "sigmoid")),
            quantized.PReLU(weight(4), TO, UINT8),
            quantized.DeQuantize(),
        ],
    ),
    "norms": (
        IMAGES,
        lambda: [
            quantized.BatchNorm(BIAS[:4], BIAS[1:5], BIAS[2:], abs(BIAS[:4]), 1e-5, TO, UINT8, relu=True),
            quantized.LayerNorm(BIAS[:4], BIAS[1:5], 1e-5, NEAR, UINT8),
            quantized.GroupNorm(BIAS[:4], None, 1e-5, NEAR, UINT8, num_groups=2),
        ],
    ),
}
ARITHMETIC = quantized.QFunctional(QParams.of(0.3, 110), UINT8)
HEAVY = "linear of other widths", "convolutions of other paddings", "transposed", "convolutions of rows", "norms"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.heavy] * (name in HEAVY)) for name in LAYERS])
def test_layers(name, tmp_path):
    x, make = LAYERS[name]
    layers = make()
    made = check(lambda x: [layer(quantized_input(x)) for layer in layers], (x,), tmp_path)
    assert "convolution" not in name or "ConvInteger" in {node.op_type for node in made.graph.node}


def linear(outputs, features, **settings):
    return dynamic.Linear(weight(outputs, features), floats(outputs), **settings)


class Each(nnx.Module):
    """The results of several layers; flax's loops refuse layers that a function has from outside."""

    def __init__(self, layers):
        self.layers = nnx.List(layers)

    def __call__(self, x):
        return [layer(x) for layer in self.layers]


OF_FLOATS = {
    "linear": lambda: [quantized.Quantize(TO, UINT8), linear(6, 4), linear(6, 4, relu=True)],
    "cells": lambda: [
        dynamic.RNN(dynamic.LSTMCell(linear(12, 4), linear(12, 3))),
        dynamic.RNN(dynamic.GRUCell(linear(9, 4), linear(9, 3)), reverse=True),
        dynamic.RNN(dynamic.SimpleCell(linear(3, 4), linear(3, 3), "relu")),
    ],
    "recurrent": lambda: [
        dynamic.LSTM([linear(12, 4), linear(12, 4)], [linear(12, 3), linear(12, 3)], bidirectional=True),
        dynamic.GRU([linear(9, 4), linear(9, 3)], [linear(9, 3), linear(9, 3)]),
    ],
}


@pytest.mark.parametrize(
    "name", ["linear", *(pytest.param(one, marks=pytest.mark.heavy) for one in OF_FLOATS if one != "linear")]
)
def test_layers_of_floats(name, tmp_path):
    check(Each(OF_FLOATS[name]()), (ROWS,), tmp_path)


@pytest.mark.heavy
def test_each_layer_has_a_case():
    """A new layer of the public rooms needs a line above; the other names are of base classes and parts of layers."""
    others = {"IntegerVariable", "Quantized", "QuantizedWeight", "dynamic", "Cell", "Recurrent"}
    rooms = quantized, dynamic
    wanted = {getattr(room, name) for room in rooms for name in room.__all__ if name not in others}
    layers = [
        *(one for _, make in LAYERS.values() for one in make()),
        *(one for make in OF_FLOATS.values() for one in make()),
        ARITHMETIC,
        quantized.Embed(weight(10, 4)),
    ]
    found = {type(module) for layer in layers for module in modules_of(layer).values()}
    assert sorted(f"{one.__module__}.{one.__name__}" for one in wanted - found) == []


def test_signed_inputs(tmp_path):
    layer = quantized.Linear(weight(6, 4), BIAS, QParams.of(0.2, 3), INT8)
    check(lambda x: layer(quantized_input(x, 0.1, 3, INT8)), (ROWS,), tmp_path)


@pytest.mark.heavy
def test_arithmetic(tmp_path):
    module = ARITHMETIC

    def function(x, y):
        a, b = quantized_input(x), quantized_input(y, 0.07, 90)
        same = b.transpose(0, 2, 1)
        sums = [module.add(a, same), module.add_relu(a, same), module.mul(a, same), module.mul_relu(a, same)]
        products = module.matmul(a, b), module.einsum("bij,bjk->ik", a, b)
        return [*sums, *products, module.cat([a, same], 1), module.add_scalar(a, 0.7), module.mul_scalar(a, -1.3)]

    check(function, (ROWS, floats(3, 4, 5)), tmp_path)


@pytest.mark.heavy
def test_functions_of_one_array(tmp_path):
    def function(x):
        q = quantized_input(x)
        clipped = q.relu(), qnn.relu6(q), qnn.hard_tanh(q), affine.threshold(q, 0.1, 0.2), affine.clamp(q, -1)
        smooth = qnn.softmax(q), affine.tanh(q), affine.sigmoid(q), affine.celu(q, TO), qnn.leaky_relu(q)
        moved = q[0], q.reshape(15, 4), q.flip(1), q.sort(), q.topk(2)[0]
        return [*clipped, *smooth, *moved, q.mean(1), q.max(), affine.masked_fill(q, x > 0, 1.5), q > 0]

    check(function, (ROWS,), tmp_path)


@pytest.mark.heavy
def test_pools(tmp_path):
    def function(x):
        q = quantized_input(x)
        pools = qnn.max_pool(q, (2, 2), (2, 2)), qnn.avg_pool(q, (3, 3), (1, 1), "SAME"), qnn.max_pool(q, (3, 3))
        sizes = (
            functional.interpolate(q, scale_factor=2, mode=mode, channels_last=True) for mode in ("nearest", "bilinear")
        )
        return [*pools, functional.adaptive_avg_pool(q, (3, 3), channels_last=True), *sizes]

    check(function, (IMAGES,), tmp_path)


@pytest.mark.parametrize(("form", "opset", "dtype"), [(INT8, 19, 3), (INT4, 21, 22)])
def test_tables(form, opset, dtype, tmp_path):
    """Weights leave as integers, of 4 bits where they have as many, in the smallest opset."""
    made = check(quantized.Embed(weight(10, 4, form=form)), (np.int32([[1, 2], [9, 0]]),), tmp_path)
    assert [one.version for one in made.opset_import] == [opset]
    assert dtype in {one.data_type for one in made.graph.initializer}


def test_fake_quantization(tmp_path):
    def function(x):
        rows = fake_quantize(x[0], QParams.of([0.1] * 5, [0] * 5, 0), INT4)
        return fake_quantize(x, QParams.of(0.1, 7)), rows, fake_quantize(x.astype(jnp.float16), QParams.of(0.1, 7))

    check(function, (np.concatenate([ROWS, np.full((1, 5, 4), np.nan, np.float32), -ROWS * 1e-40]),), tmp_path)


def test_dynamic_layers(tmp_path):
    """Their parameters are those of the input's range; a NaN or an infinity makes all results NaN."""
    linear, x = weight(6, 4), ROWS[:2]
    special = np.stack([x, x, x])
    special[1, 0, 1, 2], special[2, 1, 3, 1] = np.nan, np.inf
    made = check(lambda *xs: [functional.dynamic_linear(x, linear, BIAS) for x in xs], tuple(special), tmp_path)
    assert "MatMulInteger" in {node.op_type for node in made.graph.node}


@pytest.mark.heavy
def test_recurrent_functions(tmp_path):
    """Two directions; sigmoid and tanh are computed in float64."""
    lstm = CellWeights(weight(12, 4), weight(12, 3), floats(12), floats(12))
    gru = CellWeights(weight(9, 4), weight(9, 3), floats(9), floats(9))
    check(lambda x: (functional.lstm(x, [[lstm, lstm]]), functional.gru(x, [[gru]])), (ROWS,), tmp_path)
