"""A convolution and its batch norm as a pure function: torch's folding bit by bit, qtorch's training to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import AffineInteger
from qjax.quantization import functional
from qjax.quantization.functional import ConvBnParams, ConvBnState, conv_bn, fold_conv_bn
from qjax.quantization.functional.conv_bn import folded_in_training
from qtorch.nn.intrinsic.qat import ConvBn2d


def statistics(rng, channels):
    """Gamma, beta, mean and variance; the last channels have hard ones."""
    gamma, beta, mean = (rng.normal(size=channels).astype(np.float32) for _ in range(3))
    var = np.exp(rng.normal(size=channels) * 4).astype(np.float32)
    gamma[:3], var[:4] = [0, -0.0, 1e30], [0, 1e-38, 1e30, 4]
    return gamma, beta, mean, var


@pytest.mark.parametrize("linear", [False, True])
def test_folding_has_the_bits_of_torch(linear):
    rng = np.random.default_rng(0)
    gamma, beta, mean, var = statistics(rng, 200)
    weight = rng.normal(size=(200, 5) if linear else (200, 3, 3, 2)).astype(np.float32)
    bias = rng.normal(size=200).astype(np.float32)
    fold = jax.jit(lambda *x: fold_conv_bn(ConvBnParams(*x[:4]), *x[4:], 1e-3, linear))
    for own in (bias, None):
        others = [None if x is None else torch.from_numpy(x) for x in (own, mean, var)]
        fuse = fuse_linear_bn_weights if linear else fuse_conv_bn_weights
        norm = map(torch.from_numpy, (gamma, beta))
        expected = fuse(torch.from_numpy(weight), *others, 1e-3, *norm)
        arguments = weight, own, gamma, beta, mean, var
        eager = fold_conv_bn(ConvBnParams(*arguments[:4]), *map(jnp.asarray, arguments[4:]), 1e-3, linear)
        for actual in (fold(*arguments), eager):
            for one, other in zip(actual, expected, strict=True):
                assert_same_bits(np.asarray(one), other.detach().numpy())


SETTINGS = tq.default_per_channel_weight_fake_quant
EVEN = {
    "dtype": AffineInteger(-127, 127)
}  # the greatest weight is no tie, whose rounding the last bits of a sum decide


class Pair:
    """The same layer in PyTorch and in JAX, with the same numbers."""

    def __init__(self, bias=True, channels_last=False):
        torch.manual_seed(0)
        self.last, settings = channels_last, {"stride": 2, "padding": (1, 0), "groups": 2}
        qconfig = tq.QConfig(tq.default_fake_quant, SETTINGS.with_args(**EVEN))
        self.torch = ConvBn2d(4, 6, 3, bias=bias, qconfig=qconfig, eps=1e-3, momentum=0.2, **settings)
        with torch.no_grad():
            for value in (self.torch.bn.weight, self.torch.bn.bias):
                value.uniform_(-1, 1)
            self.torch.bn.weight[0] = 0
        self.fake_quant = jq.default_per_channel_weight_fake_quant.with_args(**EVEN)
        self.settings = {**settings, "eps": 1e-3, "momentum": 0.2, "channels_last": channels_last}
        layer, bn = self.torch, self.torch.bn
        self.params = ConvBnParams(*(x if x is None else jnp.asarray(x.detach().numpy()) for x in self._trained(layer)))
        shape = self.params.weight.shape
        self.state = ConvBnState(*map(jnp.array, (bn.running_mean, bn.running_var)), self.fake_quant.init(shape))

    @staticmethod
    def _trained(layer):
        return layer.weight, layer.bias, layer.bn.weight, layer.bn.bias

    def run(self, x, **more):
        """Results, gradients and the next state of both."""
        self.torch.zero_grad()
        y = self.torch(torch.from_numpy(x))
        (y * y.sin()).sum().backward()
        gradients = [None if p is None else p.grad.numpy() for p in self._trained(self.torch)]

        def loss(params, x):
            images = jnp.moveaxis(x, 1, -1) if self.last else x
            y, state = conv_bn(images, params, self.state, self.fake_quant, **self.settings, **more)
            y = jnp.moveaxis(y, -1, 1) if self.last else y
            return (y * jnp.sin(y)).sum(), (y, state)

        (_, (own, self.state)), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(self.params, x)
        np.testing.assert_allclose(own, y.detach().numpy(), rtol=1e-4, atol=1e-5)
        for one, other in zip(found, gradients, strict=True):
            if other is not None:
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * max(1, np.abs(other).max()))
        return own

    def check_state(self):
        bn, fake = self.torch.bn, self.torch.weight_fake_quant
        seen = self.state.weight_fake_quant.activation_post_process
        pairs = [(self.state.mean, bn.running_mean), (self.state.var, bn.running_var)]
        pairs += [
            (self.state.weight_fake_quant.scale, fake.scale),
            (seen.max_val, fake.activation_post_process.max_val),
        ]
        for one, other in pairs:
            np.testing.assert_allclose(one, other.detach().numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_training_is_that_of_qtorch(bias):
    """Three steps of training, then with frozen statistics, then evaluation, which leaves all states."""
    pair = Pair(bias, channels_last=bias)
    images = np.random.default_rng(1).normal(size=(3, 8, 4, 7, 6)).astype(np.float32)
    for x in images[:2]:
        pair.run(x)
        pair.check_state()
    assert np.abs(pair.state.mean).min() > 0
    pair.torch.freeze_bn_stats()
    kept = pair.state
    pair.run(images[2], freeze_bn=True)
    pair.check_state()
    assert_same_bits(pair.state.var, kept.var)
    assert (pair.state.weight_fake_quant.scale != kept.weight_fake_quant.scale).any()
    kept = pair.state
    pair.torch.eval()
    pair.run(2 * images[2], training=False)
    for one, other in zip(jax.tree.leaves(pair.state), jax.tree.leaves(kept), strict=True):
        assert_same_bits(np.asarray(one), np.asarray(other))


def test_formats_and_floats():
    """In evaluation it is the convolution with the rounded folded weight; without rounding, what torch computes."""
    pair, x = Pair(), jnp.asarray(np.random.default_rng(2).normal(size=(2, 4, 5, 5)), jnp.float32)
    state = pair.state._replace(weight_fake_quant=None, mean=jnp.ones(6), var=jnp.full(6, 2.0))
    plain, same = conv_bn(x, pair.params, state, training=False, **pair.settings)
    assert same is state
    with torch.no_grad():
        layer = pair.torch.eval()
        layer.bn.running_mean.fill_(1), layer.bn.running_var.fill_(2)
        expected = layer.bn(
            torch.nn.functional.conv2d(torch.tensor(np.array(x)), layer.weight, layer.bias, 2, (1, 0), 1, 2)
        )
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-5)
    settings = jq.QConfig("e5m2", "e5m2").weight
    rounded, _ = conv_bn(x, pair.params, state, settings, training=False, **pair.settings)
    assert 0 < np.abs(rounded - plain).max() < 1


def some(x=(1, 2, 4), weight=(3, 2, 2), **settings):
    params = ConvBnParams(jnp.ones(weight), None, jnp.ones(weight[0]), jnp.zeros(weight[0]))
    return functional.conv_bn(jnp.ones(x), params, ConvBnState(jnp.zeros(3), jnp.ones(3)), **settings)


PARAMS = ConvBnParams(jnp.ones((3, 2, 2)), None, jnp.ones(3), jnp.zeros(3))
STATE = ConvBnState(jnp.zeros(3), jnp.ones(3))


def some_fold(mean=3, eps=1e-5, linear=False, **params):
    return fold_conv_bn(PARAMS._replace(**params), jnp.zeros(mean), jnp.ones(3), eps, linear)


def some_state(**changed):
    return functional.conv_bn(jnp.ones((1, 2, 4)), PARAMS, STATE._replace(**changed))


BAD = {
    r"gamma has shape \(1,\); allowed is \(3,\)": lambda: some_fold(gamma=jnp.ones(1)),
    r"beta has shape \(2,\); allowed is \(3,\)": lambda: some_fold(beta=jnp.ones(2)),
    r"bias has shape \(1,\); allowed is \(3,\)": lambda: some_fold(bias=jnp.ones(1)),
    r"mean has shape \(1,\); allowed is \(3,\)": lambda: some_fold(mean=1),
    "eps=-1.0; allowed is a number >= 0": lambda: some_fold(eps=-1.0),
    "eps='1' is a str": lambda: some_fold(eps="1"),
    "linear='no' is a str": lambda: some_fold(linear="no"),
    r"var has shape \(1,\); allowed is \(3,\)": lambda: some_state(var=jnp.ones(1)),
    "eps=None is a NoneType": lambda: some(eps=None),
    "momentum=2.0; allowed is a number from 0 to 1": lambda: some(momentum=2.0),
    "groups=0; allowed is an int >= 1": lambda: some(groups=0),
    "params is a NoneType; allowed is a ConvBnParams": lambda: functional.conv_bn(jnp.ones((1, 2, 4)), None, STATE),
    "state is a NoneType; allowed is a ConvBnState": lambda: functional.conv_bn(jnp.ones((1, 2, 4)), PARAMS, None),
    r"x has shape \(1, 3, 4\); allowed are 3 axes with 2 channels second": lambda: some((1, 3, 4)),
    r"weight has shape \(3, 2\)": lambda: some(weight=(3, 2)),
    "stride=0": lambda: some(stride=0),
    "fake_quant is a str": lambda: some(fake_quant="e5m2"),
    "training=1": lambda: some(training=1),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()


def test_batches_of_float16_have_statistics_in_float32():
    weight, one = jnp.full((2, 1, 1, 1), 0.5, jnp.float16), jnp.ones(2, jnp.float16)
    params, state = ConvBnParams(weight, None, one, 0 * one), ConvBnState(0 * one, one)
    x = jnp.float16([1000, -1000, 1000, -1000]).reshape(4, 1, 1, 1)  # whose squares are infinite

    def loss(params, x):
        y = conv_bn(x, params, state)[0]
        return y.astype(jnp.float32).sum(), y

    gradients, y = jax.jit(jax.grad(loss, has_aux=True))(params, x)
    np.testing.assert_allclose(abs(y.astype(jnp.float32)), 1, atol=0.01)
    constant = jax.jit(jax.grad(loss, has_aux=True))(params, jnp.full_like(x, 3))[0]
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((gradients, constant)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_of_16_bits_are_folded_alike(dtype):
    """A variance that float16 does not hold is its infinity, and divides as the largest number does."""
    layer = ConvBn2d(2, 3, 1, bias=False, qconfig=tq.get_default_qat_qconfig()).to(dtype)
    var = torch.tensor([0.3, 7.0, float("inf")])
    values = {
        "running_mean": torch.tensor([0.7, -3.0, 11.0]),
        "running_var": var,
        "weight": torch.tensor([1.5, 0.3, 2]),
    }
    for name, value in values.items():
        getattr(layer.bn, name).data.copy_(value)
    arrays = [
        jnp.asarray(x.detach().float().numpy()).astype(str(dtype).removeprefix("torch."))
        for x in (layer.weight, layer.bn.weight, layer.bn.bias, layer.bn.running_mean, layer.bn.running_var)
    ]
    weight, gamma, beta, mean, var = arrays
    folded = folded_in_training(ConvBnParams(weight, None, gamma, beta), mean, var, layer.bn.eps)
    for theirs, ours in zip(layer.folded(), folded, strict=True):
        assert np.isfinite(np.float32(ours)).all()
        assert_same_bits(np.float32(ours), theirs.detach().float().numpy())
