"""Recipes: the same layers lowered in torch and JAX have the same bits, forward and in both gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import usually
from support import assert_same_bits

import qjax.recipes
import qtorch.recipes
from qcore import RECIPES, BlockScaled, Entry, Product, Recipe
from qjax import linalg as jax_linalg
from qtorch import linalg as torch_linalg

_NF4 = "nf4(block=64,nested=4)"
_FP4 = BlockScaled("fp4_bnb", {-1: 16}, scale="e4m3fn", tensor_scale="float32")
TABLES = Recipe([Entry("*", None, Product("e4m3fn", _NF4), Product("e5m2", _FP4), Product("e5m2", "af4"))])
CONV = {name: Recipe(RECIPES[name].entries[-1:]) for name in ("fp8_chunked", "bf16_mixed")}


def normal(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def by_torch(layer, weight, x, gradient, bias=None):
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(bias))
    x = torch.from_numpy(x.copy()).requires_grad_()
    y = layer(x)
    return y, *torch.autograd.grad(y, (x, layer.weight), torch.from_numpy(gradient))


def by_jax(function, weight, x, gradient):
    y, pull = jax.vjp(jax.jit(function), jnp.asarray(weight), jnp.asarray(x))
    of_weight, of_x = pull(jnp.asarray(gradient))
    return y, of_x, of_weight


# Entries of the recipes with convolutions are those of the others.
EXACT = ["tables", *(name for name, one in RECIPES.items() if not (one.stochastic or name.endswith("_conv")))]
# XLA compiles the first for a minute; convolutions have the last.
SLOW = ("nvfp4_four_over_six", "tables", "hfp8", "wage", "bf16_mixed", "mxfp8", "fp8_chunked")


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.heavy] * (one in SLOW)) for one in EXACT])
def test_linear_layers(name):
    """The last entry: others are for the first and the last layers. Keys differ between the frameworks."""
    recipe = TABLES if name == "tables" else Recipe(RECIPES[name].entries[-1:])
    x, gradient = normal(2, 33, 70, seed=1), normal(2, 33, 40, seed=2)
    weight, bias = normal(40, 70, seed=3), normal(40, seed=4)
    layer = qtorch.recipes.lower(torch.nn.Linear(70, 40), recipe)
    expected = by_torch(layer, weight, x, gradient, bias)
    wide = by_torch(torch.nn.Linear(70, 40), weight, x, gradient, bias)
    assert all((a != b).any() for a, b in zip(expected, wide, strict=True))
    lowered = qjax.recipes.lower(lambda w, x: x @ w["kernel"].T + bias, recipe)
    if recipe.delayed:
        states = qjax.recipes.first_scaling(lowered, {"kernel": weight}, x)
        lowered = partial(lowered, scaling=states)
    for one, other in zip(by_jax(lambda w, x: lowered({"kernel": w}, x), weight, x, gradient), expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize(
    "equation",
    usually(("in,io->no",), ("oi,ni->no", "in,io->no", "ni,oi->no", "ni,oi->on")),
)
def test_products_in_any_layout(equation):
    recipe, (first, rest) = RECIPES["mxfp8"], (equation.split(",")[0], equation)
    x, weight, gradient = normal(35, 40, seed=1), normal(33, 40, seed=2), normal(35, 33, seed=3)
    expected = by_torch(qtorch.recipes.lower(torch.nn.Linear(40, 33, bias=False), recipe), weight, x, gradient)

    def function(w, x):
        if rest == "in,io->no":
            return jnp.einsum(rest, x.T, w["w"].T)
        y = jnp.einsum(rest, w["w"], x) if first == "oi" else jnp.einsum(rest, x, w["w"])
        return y.T if rest.endswith("on") else y

    lowered = qjax.recipes.lower(function, recipe)
    for one, other in zip(by_jax(lambda w, x: lowered({"w": w}, x), weight, x, gradient), expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.heavy  # test_convolution_blocks.py has one in JAX
@pytest.mark.parametrize("layout", ["NCHW OIHW NCHW", "NHWC HWIO NHWC"])
@pytest.mark.parametrize("name", CONV)
def test_convolutions(name, layout):
    layout = tuple(layout.split())
    x, weight = normal(2, 4, 6, 5, seed=1), normal(6, 2, 3, 3, seed=2)
    layer = qtorch.recipes.lower(torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False), CONV[name])
    gradient = normal(2, 6, 3, 3, seed=3)
    expected = by_torch(layer, weight, x, gradient)
    last = layout[0] == "NHWC"

    def function(w, x):
        x, w = (jnp.moveaxis(x, 1, -1), jnp.transpose(w["w"], (2, 3, 1, 0))) if last else (x, w["w"])
        y = jax.lax.conv_general_dilated(
            x, w, (2, 2), [(1, 1), (1, 1)], dimension_numbers=layout, feature_group_count=2
        )
        return jnp.moveaxis(y, -1, 1) if last else y

    lowered = qjax.recipes.lower(function, CONV[name])
    for one, other in zip(by_jax(lambda w, x: lowered({"w": w}, x), weight, x, gradient), expected, strict=True):
        assert_same_bits(one, other)


def test_uneven_padding_is_zeros():
    x, weight = normal(1, 2, 5, 5, seed=1), normal(3, 2, 2, 2, seed=2)
    lowered = qjax.recipes.lower(
        lambda w, x: jax.lax.conv_general_dilated(x, w["w"], (1, 1), [(0, 1), (1, -1)]), CONV["fp8_chunked"]
    )
    layer = qtorch.recipes.lower(torch.nn.Conv2d(2, 3, 2, bias=False), CONV["fp8_chunked"])
    padded = np.pad(x, ((0, 0), (0, 0), (0, 1), (1, 0)))[..., :-1]
    expected = by_torch(layer, weight, padded, np.zeros((1, 3, 5, 4), np.float32))[0]
    assert_same_bits(lowered({"w": weight}, x), expected)


def test_stochastic_layers_count():
    """Torch draws a key for each call; JAX folds the number of the layer into the key."""
    accumulator = "accumulator(float(6,9),rounding=stochastic)"
    products = (Product("operand(block(8),rounding=stochastic)", "int8", accumulator),) * 3
    recipe = Recipe([Entry("*", None, *products)])
    x, weight = normal(5, 40, seed=1), normal(40, 40, seed=2)
    told = {"operands": products[0].operands, "accumulator": products[0].accumulator}
    model = qtorch.recipes.lower(torch.nn.Linear(40, 40, bias=False), recipe)
    torch.manual_seed(3)
    y, *_ = by_torch(model, weight, x, x)
    torch.manual_seed(3)
    assert_same_bits(y, torch_linalg.linear(torch.from_numpy(x), torch.from_numpy(weight), **told))
    lowered = qjax.recipes.lower(lambda w, x: (x @ w["w"].T) @ w["w"].T, recipe)
    keys = [jax.random.fold_in(jax.random.key(3), number) for number in range(2)]
    expected = jnp.asarray(x)
    for key in keys:
        expected = jax_linalg.linear(expected, weight, **told, key=key)
    assert_same_bits(lowered({"w": weight}, x, key=jax.random.key(3)), expected)
    with pytest.raises(ValueError, match="key"):
        lowered({"w": weight}, x)
