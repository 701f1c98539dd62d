"""Norms and log-probabilities of engines in the three packages, beside sums of fractions."""

from fractions import Fraction
from math import sqrt

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from flax import linen, nnx
from support import assert_same_bits

import qjax.engines
import qtorch.engines
from qcore import parse
from qcore.engines import Engine
from qcore.engines.arrays import Attending
from qcore.engines.layers import log_softmax, rms_norm

f = np.float32
RNG = np.random.default_rng(3)
X, W = (RNG.standard_normal(shape).astype(ml_dtypes.bfloat16).astype(f) for shape in ((5, 48), (48,)))
SPACES = {"torch": (qtorch.engines.tensors.Attending, torch.from_numpy), "jax": (qjax.engines.arrays.Attending, None)}


def bf16(x):
    return x.astype(ml_dtypes.bfloat16).astype(f)


def normed(x, w, order, root, number):
    """One row: the mean of squares is exact, and all that follows is rounded by NumPy's float32."""
    total = f(float(sum(Fraction(float(one)) ** 2 for one in x)))  # float64 first: no sum here is near a tie
    mean = total / f(len(x)) + f(1e-6)
    inverse = f(1 / sqrt(float(mean))) if root == "rsqrt" else f(1) / np.sqrt(mean)
    return number(number(x * inverse) * w) if order == "twice" else number((x * inverse) * w)


@pytest.mark.parametrize("root", ["rsqrt", "reciprocal"])
@pytest.mark.parametrize("order", ["twice", "once"])
def test_norms(order, root):
    engine = Engine("attention()", activations="bfloat16", norm=order, root=root)
    found = rms_norm(Attending, X, W, 1e-6, engine)
    assert_same_bits(found, np.stack([normed(x, W, order, root, bf16) for x in X]), "numpy")
    for name, (space, tensor) in SPACES.items():
        with space.arithmetic():
            arrays = (X, W) if tensor is None else (tensor(X), tensor(W))
            law = lambda x, w, space=space: rms_norm(space, x, w, 1e-6, engine)  # noqa: E731
            assert_same_bits((jax.jit(law) if name == "jax" else law)(*arrays), found, name)


def of_flax(package, engine, x):
    """A norm of flax before attention."""
    sizes = (1, *x.shape[:1], 1, x.shape[1])
    if package == "nnx":
        layer = nnx.RMSNorm(x.shape[1], rngs=nnx.Rngs(0))
        layer.scale[...] = W
        norm = nnx.jit(lambda layer, x: layer(x))
        found = qjax.engines.apply(lambda x: attended(norm(layer, x), sizes), engine)
    else:
        program = jax.jit(lambda x: linen.RMSNorm().apply({"params": {"scale": W}}, x))
        program(x)  # traced before
        found = qjax.engines.apply(lambda x: attended(program(x), sizes), engine)
    return found(x)


def attended(x, sizes):
    jax.nn.dot_product_attention(*[x.reshape(sizes)] * 3)
    return x


class Before(torch.nn.Module):
    """The same in torch."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(48, eps=1e-6)
        self.norm.weight.data = torch.from_numpy(W)

    def forward(self, x):
        x = self.norm(x)
        torch.nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3)
        return x


@pytest.mark.parametrize("package", [pytest.param("nnx", marks=pytest.mark.heavy), "linen"])
def test_norms_of_flax_have_the_bits_of_torch_s(package):
    engine = Engine("attention(row_sum=exact,end=weights)", activations="bfloat16", norm="twice")
    expected = qtorch.engines.apply(Before(), engine)(torch.from_numpy(X)).detach()
    assert_same_bits(expected, rms_norm(Attending, X, W, 1e-6, engine), "torch")
    with pytest.warns(UserWarning, match="norms alone are rounded"):
        assert_same_bits(of_flax(package, engine, X), expected, package)
    plain = linen.RMSNorm().apply({"params": {"scale": W}}, X)
    assert not (plain == expected.numpy()).all()  # flax's own are as before

    def loss(x, run=lambda x: linen.RMSNorm().apply({"params": {"scale": W}}, x)):
        return attended(run(x), (1, 5, 1, 48)).sum()

    with pytest.warns(UserWarning, match="norms alone are rounded"):
        found = jax.grad(qjax.engines.apply(loss, engine))(X)
    assert_same_bits(found, jax.grad(loss)(X), "the gradient is flax's")


def test_a_layer_norm_is_rounded_and_said():
    engine = Engine("attention(row_sum=exact,end=weights)", activations="bfloat16", norm="twice")
    layer = nnx.LayerNorm(48, rngs=nnx.Rngs(0))
    said = (pytest.warns(UserWarning, match=match) for match in ("norms alone", "a LayerNorm, whose result alone"))
    with next(said), next(said):
        found = qjax.engines.apply(lambda x: attended(layer(x), (1, 5, 1, 48)), engine)(X)
    assert_same_bits(found, bf16(np.asarray(layer(X))), "rounded")


def test_each_field_of_a_norm_shows():
    made = [
        rms_norm(Attending, X, W, 1e-6, Engine("attention()", activations=number, norm=order, root=root))
        for number, order, root in (
            ("bfloat16", "twice", "rsqrt"),
            ("bfloat16", "once", "rsqrt"),
            (None, "once", "rsqrt"),
            (None, "once", "reciprocal"),
        )
    ]
    assert all((a != b).any() for i, a in enumerate(made) for b in made[:i])


def test_log_softmax_by_tiles():
    x = RNG.standard_normal((20, 37)).astype(f)
    found = log_softmax(Attending, x, 5)
    for row, y in zip(x, found, strict=True):
        shifted = row - row.max()
        total = f(0)
        for begin in range(0, 37, 5):
            part = np.exp(shifted[begin : begin + 5].astype(float)).astype(f)
            while len(part) > 1:
                part = np.pad(part, (0, len(part) % 2))
                part = part[::2] + part[1::2]
            total += part[0]
        assert (y == shifted - f(np.log(float(total)))).all()
    assert (found != log_softmax(Attending, x, 64)).any()


def test_text_and_what_contradicts():
    engine = Engine(
        "attention()", products="bf16_mixed", on="hopper", tables="bfloat16", rope="pairs", log_softmax=1024
    )
    assert parse(engine.text, Engine) == engine
    for wrong, message in (
        ({"on": "hopper"}, "on='hopper' with products=None"),
        ({"products": "bf16"}, "products='bf16'; allowed are mxfp8, "),
        ({"norm": "both"}, "norm='both'; allowed are twice, once"),
        ({"head": "mxfp8_e4m3"}, "head="),
        ({"log_softmax": 0}, "log_softmax=0"),
    ):
        with pytest.raises(ValueError, match=message):
            Engine("attention()", **wrong)
