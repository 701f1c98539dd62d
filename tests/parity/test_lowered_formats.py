"""Lowered models take formats with shared scales and posits: what layers return, and the gradients that come back."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import usually
from support import assert_all_same_bits, assert_same_bits

import qcore
import qjax.recipes
import qtorch.recipes
from qcore import RECIPES, Entry, Product, Recipe, Rule

PAIRS = [("mxfp8_e4m3", "mxfp8_e5m2"), ("nvfp4", "mxfp4"), ("posit16", "posit16")]
# Of so few bits that float32 holds all sums: XLA moves transposes into products, which then sum in another order.
RANDOM = np.random.default_rng(0)
X, W, G = (
    (RANDOM.integers(-(1 << bits), 1 << bits, shape) / np.float32(1 << fraction)).astype(np.float32)
    for shape, bits, fraction in (((6, 40), 3, 3), ((70, 40), 12, 10), ((6, 70), 15, 8))
)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_torch(forward, backward):
    layer = torch.nn.Linear(40, 70, bias=False)
    layer.weight.data = torch.from_numpy(W.copy())
    plain = layer(torch.from_numpy(X)).detach()
    qtorch.recipes.lower(layer, ["linear"], forward, backward, "nearest", "nearest")
    y = layer(torch.from_numpy(X))
    y.backward(torch.from_numpy(G))
    assert_same_bits(y, qcore.quantize(plain.numpy(), forward, "nearest"))
    assert_same_bits(
        layer.weight.grad, torch.from_numpy(qcore.quantize(G, backward, "nearest")).mT @ torch.from_numpy(X)
    )


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_jax(forward, backward):
    def product(w):
        return jnp.asarray(X) @ w.T

    lowered = qjax.recipes.lower(product, ["linear"], forward, backward, "nearest", "nearest")
    y, pull = jax.vjp(lowered, jnp.asarray(W))
    assert_same_bits(y, qcore.quantize(np.asarray(product(jnp.asarray(W))), forward, "nearest"))
    _, plain = jax.vjp(product, jnp.asarray(W))
    assert_same_bits(pull(jnp.asarray(G))[0], plain(jnp.asarray(qcore.quantize(G, backward, "nearest")))[0])


def test_overflow_is_an_argument_of_lower():
    """No NaN from inputs beyond 448, of outputs or of weights, in both packages; rules have their own policies."""
    x, w = np.float32([[600.0, 1.0]]), np.float32([[1.0, 0.0], [900.0, 1.0]])
    expected = np.float32([[448, 448]])
    names = {"forward_number": "e4m3fn", "forward_rounding": "nearest", "weight_number": "e4m3fn"}
    for lower in (qtorch.recipes.lower, qtorch.recipes.sequential_lower):
        layer = torch.nn.Linear(2, 2, bias=False)
        layer.weight.data = torch.from_numpy(w.copy())
        lowered = lower(torch.nn.Sequential(layer), ["linear"], **names, overflow="saturate")
        assert_same_bits(lowered(torch.from_numpy(x)), expected)
    f = qjax.recipes.lower(lambda w, x: x @ w.T, ["linear"], **names, overflow="saturate")
    assert_same_bits(np.asarray(f(jnp.asarray(w), jnp.asarray(x))), expected)
    plain = qjax.recipes.lower(lambda w, x: x @ w.T, ["linear"], **names)
    assert np.isnan(plain(jnp.asarray(w), jnp.asarray(x))).all()


class Own(torch.nn.Module):
    """A program that multiplies by its own weights."""

    def __init__(self):
        super().__init__()
        shapes = {"right": (64, 48), "left": (48, 64), "taps": (64, 24, 3), "transposed": (64, 24, 3)}
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))

    def forward(self, x):
        convolved = torch.nn.functional.conv1d(x[:, :48], self.taps, groups=2)
        transposed = torch.nn.functional.conv_transpose1d(x, self.transposed, None, 1, 0, 0, 2)
        return [x[:, :, 0] @ self.right, self.left @ x[0], convolved, transposed]


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.image = torch.nn.Linear(64, 48, bias=False), torch.nn.Conv2d(64, 8, (1, 3), bias=False)
        self.groups = torch.nn.Conv1d(48, 64, 3, groups=2, bias=False)
        self.transposed = torch.nn.ConvTranspose1d(64, 48, 3, groups=2, bias=False)
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(64, 8, 3, bias=False))

    def forward(self, x):
        convolved = [self.groups(x[:, :48]), self.transposed(x), self.normed(x), self.image(x[:, :, None])]
        return [self.linear(x[:, :, 0]), *convolved]


def alone_and_in_products(number):
    """Rules with a format for weights, and a recipe whose products round the second operand to it."""
    exact = Product()
    by_weight = Product(None, number)
    return {"rules": [Rule(weight_number=number)]}, {"recipe": Recipe([Entry("*", None, by_weight, exact, exact)])}


# Integers times numbers with two bits: all sums are exact, in torch's products as well.
BLOCKS = [pytest.param("mxfp4", marks=pytest.mark.heavy), "scaled(e2m1fn,{-2:4,-1:16},rule=rceil)"]


@pytest.mark.parametrize("number", BLOCKS)
@pytest.mark.parametrize("model", [pytest.param(Own, marks=pytest.mark.heavy), Layers])
@pytest.mark.filterwarnings("ignore:the recipe lowers")
def test_blocks_of_weights_lie_as_in_products(number, model):
    torch.manual_seed(0)
    x, model = torch.randint(-4, 5, (2, 64, 10)).float(), model()
    low, expected = (qtorch.recipes.lower(copy.deepcopy(model), **said) for said in alone_and_in_products(number))
    for one in (low, copy.deepcopy(low), torch.compile(low, backend="aot_eager", fullgraph=True)):
        assert_all_same_bits(one(x), expected(x))
    names = [name for name, layer in model.named_children() if "parametrizations" not in name] or [""]
    low.load_state_dict(model.state_dict())
    with qtorch.insight.watch(low) as watching:
        low(x)
        watching.step()
    assert {str(site) for site in watching.record.sites} == {f"{name}:weight".lstrip(":") for name in names}


PROGRAMS = {
    "right": lambda w, x: x @ w["right"],
    "taps": lambda w, x: jax.lax.conv_general_dilated(
        x[..., :48], w["taps"], (1,), "VALID", dimension_numbers=("NHC", "HIO", "NHC"), feature_group_count=2
    ),
    "heads": lambda w, x: jnp.einsum("btk,okh->btoh", x, w["heads"]),
    "first": lambda w, x: jnp.einsum("hok,nhk->hno", w["first"], x.reshape(2, 4, 160)),
}


@pytest.mark.parametrize("number", BLOCKS)
@pytest.mark.parametrize("name", usually(("heads",), PROGRAMS))
@pytest.mark.filterwarnings("ignore:the recipe lowers")
def test_blocks_of_weights_lie_as_in_products_of_jax(name, number):
    rng = np.random.default_rng(0)
    shapes = {"right": (64, 48), "taps": (3, 24, 64), "heads": (6, 64, 2), "first": (4, 6, 160)}
    w = {name: jnp.asarray(rng.standard_normal(shape, np.float32)) for name, shape in shapes.items()}
    x = jnp.asarray(rng.integers(-4, 5, (2, 10, 64)), jnp.float32)

    lowered = [qjax.recipes.lower(PROGRAMS[name], **said) for said in alone_and_in_products(number)]
    assert_same_bits(*jax.jit(lambda w, x: [one(w, x) for one in lowered])({name: w[name]}, x))


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (["mxfp9"], TypeError, "layer_types='mxfp9'.*; did you mean mxfp8. names of RECIPES are mxfp8, "),
        ([RECIPES["mxfp8"].entries], TypeError, "; entries are the argument of a Recipe"),
        ([], UserWarning, "nothing is lowered: there is no recipe, rule or format"),
        ([["linear"]], UserWarning, "nothing is lowered"),
        ([["linear"], None, None, "nearest"], UserWarning, "nothing is lowered"),
    ],
)
def test_what_a_newcomer_may_write(given, error, text):
    for lower, model in ((qtorch.recipes.lower, torch.nn.Linear(2, 2)), (qjax.recipes.lower, lambda x: x @ x)):
        with pytest.warns(error, match=text) if error is UserWarning else pytest.raises(error, match=text):
            lower(model, *given)


def test_the_name_of_a_recipe_is_not_a_layer_type():
    for lower, model in ((qtorch.recipes.lower, torch.nn.Linear(2, 2)), (qjax.recipes.lower, lambda x: x @ x)):
        with pytest.raises(TypeError, match=r"layer_types='mxfp8'.*the recipe is RECIPES\[\"mxfp8\"\]"):
            lower(model, "mxfp8")
