"""Preparing, fusing, training and converting models of flax: what happens to which layer, and what is said."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from carrying_support import jax_results
from flax import nnx
from flax_support import layer_of, module_of
from support import assert_same_bits

import qjax.nnx as qnn
from qcore.affine import UINT8, AffineInteger, QParams
from qjax.nnx.quantization.reasons import why_float
from qjax.quantization import (
    default_dynamic_qconfig,
    default_qconfig,
    get_default_qat_qconfig,
    quantize_per_tensor,
)


class Net(nnx.Module):
    """Convolutions with batch norms, a sum and linear layers."""

    def __init__(self, rngs=None, bias=True):
        rngs = rngs or nnx.Rngs(0)
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        self.conv1, self.bn1 = nnx.Conv(1, 4, (3, 3), use_bias=bias, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.relu1 = qnn.ReLU()
        self.conv2, self.bn2 = nnx.Conv(4, 4, (3, 3), strides=2, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.sum = qnn.FloatFunctional()
        self.head = nnx.Sequential(nnx.Linear(64, 8, rngs=rngs), qnn.ReLU(), nnx.Linear(8, 3, rngs=rngs))

    def __call__(self, x):
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        x = qnn.relu(self.bn2(self.conv2(x)))
        x = self.sum.add(x, x)
        return self.dequant(self.head(x.reshape(x.shape[0], -1)))


ROWS = [["conv1", "bn1", "relu1"], ["conv2", "bn2"], ["head.0", "head.1"]]
IMAGES = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype(np.float32)


@cache
def made():
    model = module_of(Net)
    nnx.jit(lambda model, x: model(x))(model, IMAGES)
    return model


def net():
    """With statistics that are not the first ones."""
    return nnx.clone(made())


def state_bits(model):
    leaves = jax.tree.leaves(nnx.state(model))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


@nnx.jit
def run(model, x):
    return model(x)


def test_fuse_prepare_and_convert():
    model = net()
    model.eval()
    before = state_bits(model)
    fused = qnn.fuse_modules(model, ROWS)
    assert [type(getattr(fused, name)).__name__ for name in ("conv1", "bn1", "relu1", "conv2")] == (
        "ConvReLU Identity Identity Conv"
    ).split()
    np.testing.assert_allclose(run(fused, IMAGES), run(model, IMAGES), rtol=1e-4, atol=1e-5)
    prepared = qnn.prepare(fused, {"": default_qconfig, "head.2": None, qnn.FloatFunctional: default_qconfig})
    assert type(prepared.head.layers[2]) is nnx.Linear
    with pytest.raises(
        ValueError,
        match=r"layer 'conv1', layer 'conv2', .* have an observer that has seen nothing; run the prepared",
    ):
        qnn.convert(prepared)
    assert_same_bits(run(prepared, IMAGES), run(fused, IMAGES))
    assert state_bits(model) == before


@cache
def observed():
    model = net()
    model.eval()
    prepared = qnn.prepare(qnn.fuse_modules(model, ROWS), default_qconfig)
    run(prepared, IMAGES)
    return prepared


def calibrated():
    return nnx.clone(observed())


@pytest.mark.heavy
def test_one_example_has_the_bits_of_the_batch():
    converted = qnn.convert(calibrated())
    y, ones = (nnx.jit(jax_results)(converted, x)[1] for x in (IMAGES, IMAGES[:1]))
    assert_same_bits(ones, y[:1])


def test_second_prepare_keeps_what_was_seen():
    prepared = calibrated()
    again = qnn.prepare(prepared, default_qconfig)
    assert state_bits(again) == state_bits(prepared)


@cache
def begun():
    model = qnn.prepare_qat(qnn.fuse_modules(net(), ROWS), get_default_qat_qconfig("qnnpack"))
    run(model, IMAGES)
    return model


def prepared_for_training():
    """After one batch, which all observers have seen."""
    return nnx.clone(begun())


@pytest.mark.heavy
def test_switches():
    model = prepared_for_training()
    frozen = qnn.freeze_bn_stats(qnn.disable_observer(model))
    before = state_bits(frozen)
    run(frozen, IMAGES)
    assert state_bits(frozen) == before
    moved = qnn.update_bn_stats(qnn.enable_observer(frozen))
    run(moved, IMAGES)
    assert state_bits(moved) != before
    floats = qnn.disable_fake_quant(frozen)
    y = run(floats, IMAGES)
    assert len(np.unique(np.asarray(y))) > 90
    assert len(np.unique(np.asarray(run(qnn.enable_fake_quant(floats), IMAGES)))) < 90


PADDINGS = ["SAME", "VALID", ((1, 0), (0, 2)), (1, 0), "CIRCULAR", "REFLECT"]


KERNELS = [*((one, (3, 2)) for one in PADDINGS), ("CIRCULAR", (19, 1)), ("REFLECT", (4, 1))]
KERNELS += [pytest.param(*one, marks=pytest.mark.heavy) for one in (("CIRCULAR", (4, 1)), ("REFLECT", (19, 1)))]


@pytest.mark.heavy
@pytest.mark.parametrize(("padding", "kernel"), KERNELS, ids=str)
def test_paddings(padding, kernel):
    """Against the float convolution of exact integers; a wide kernel sees integers of an image several times."""
    rng = np.random.default_rng(3)
    conv = layer_of(nnx.Conv, 3, 5, kernel, strides=(2, 1), padding=padding, kernel_dilation=(1, 2))
    conv.kernel.set_value(jnp.asarray(rng.integers(-9, 10, conv.kernel.shape), jnp.float32))
    conv.bias.set_value(jnp.asarray(rng.integers(-9, 10, 5), jnp.float32))
    x = rng.integers(0, 16, (2, 2, 9, 8, 3)).astype(np.float32)
    weight = quantize_per_tensor(jnp.moveaxis(conv.kernel[...], (-1, -2), (0, 1)), 1.0, 0, "qint8")
    form = AffineInteger.of_width(16)
    assert not why_float(conv)
    layer = qnn.quantized.Conv.of(conv, weight, conv.bias[...], QParams.of(1.0, 0), form, False)
    q = layer(quantize_per_tensor(x, 1.0, 7, UINT8))
    np.testing.assert_array_equal(q.int_repr(), conv(x))


BAD = {
    r"the entry '' has a qconfig that is a .*QConfigDynamic; allowed are qjax\.quantization's QConfig, and None": (
        lambda: qnn.prepare(module_of(Net), default_dynamic_qconfig)
    ),
    r"layer '.*' has a QConfig whose activation is MinMaxObserver": lambda: qnn.prepare_qat(
        module_of(Net), default_qconfig
    ),
    r"there is no fused layer of \(Linear, BatchNorm\).* in evaluation a Linear": lambda: qnn.fuse_modules(
        nnx.Sequential(layer_of(nnx.Linear, 2, 4), nnx.BatchNorm(4, rngs=nnx.Rngs(0))), ["0", "1"]
    ),
    "no batch norm that is fused": lambda: qnn.freeze_bn_stats(module_of(Net)),
    "model has no fake quantization": lambda: qnn.disable_observer(module_of(Net)),
    "quant: x is a QTensor": lambda: (lambda model: model.quant(model.quant(IMAGES)))(qnn.convert(calibrated())),
    "tensors has no 'weight'": lambda: qnn.from_torch(layer_of(nnx.Linear, 2, 2), {}),
    "becomes kernel of shape": lambda: qnn.from_torch(
        layer_of(nnx.Linear, 2, 2), {"weight": np.ones((3, 2)), "bias": np.ones(2)}
    ),
    "tensors has other.weight, for which model has no module": lambda: qnn.from_torch(
        qnn.QuantStub(), {"other.weight": np.ones(2)}
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()
