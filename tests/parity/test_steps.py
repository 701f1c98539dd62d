"""Functions whose steps have formats, in lowered models: the bits of NumPy in PyTorch and JAX, with gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import qjax
import qtorch
from qcore import Entry, Recipe
from qcore.arithmetic.composed import LAWS, Stepwise, check_steps
from qjax.arithmetic.composed import Arrays
from qtorch.arithmetic.composed import Tensors

FORMATS = {"*": "bfloat16", "sum": "accumulator(float16,chunk=2)"}
OPTIONS = {"layer_norm": {"eps": 1e-5}, "rms_norm": {"eps": 1e-5}, "gelu": {"approximate": "tanh"}}


def arrays_of(name, rows=3):
    rng = np.random.default_rng(3)
    count = {"layer_norm": 2, "rms_norm": 1}.get(name, 0)
    x = (2 * rng.standard_normal((rows, 6))).astype(np.float32)
    return x, *rng.standard_normal((count, 6)).astype(np.float32), rng.standard_normal((rows, 6)).astype(np.float32)


def steps_of(name):
    formats = {step: text for step, text in FORMATS.items() if step in (*LAWS[name].steps, "*")}
    return check_steps(name, formats)


def with_gradients_in_torch(name, wrap=lambda function: function):
    *arrays, gradient = map(torch.tensor, arrays_of(name))
    arrays = [x.requires_grad_() for x in arrays]
    steps = Tensors(name, steps_of(name))
    found = wrap(lambda *arrays: steps(*arrays, **OPTIONS.get(name, {})))(*arrays)
    return [x.detach().numpy() for x in (found, *torch.autograd.grad(found, arrays, gradient))]


def with_gradients_in_jax(name):
    *arrays, gradient = map(jnp.asarray, arrays_of(name))
    found, derivative = jax.vjp(lambda *x: Arrays(name, steps_of(name))(*x, **OPTIONS.get(name, {})), *arrays)
    return [np.asarray(x) for x in (found, *derivative(gradient))]


def assert_same(found, expected):
    assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]


@pytest.mark.parametrize(
    "name", [name if name == "softmax" else pytest.param(name, marks=pytest.mark.heavy) for name in LAWS]
)
def test_packages_agree(name):
    found = with_gradients_in_torch(name)
    *arrays, _ = arrays_of(name)
    assert_same(found[:1], [Stepwise(name, steps_of(name)).run(*arrays, **OPTIONS.get(name, {}))])
    assert_same(with_gradients_in_jax(name), found)


@pytest.mark.heavy
@pytest.mark.parametrize("name", LAWS)
def test_compiled_programs_agree(name):
    def compiled(function):
        return torch.compile(function, fullgraph=True)

    assert_same(with_gradients_in_torch(name, compiled), with_gradients_in_torch(name))
    assert_same(jax.jit(lambda: with_gradients_of(name))(), with_gradients_in_jax(name))


def with_gradients_of(name):
    *arrays, gradient = map(jnp.asarray, arrays_of(name))
    found, derivative = jax.vjp(lambda *x: Arrays(name, steps_of(name))(*x, **OPTIONS.get(name, {})), *arrays)
    return found, *derivative(gradient)


class Model(nn.Module):
    """A norm and an activation as modules, and a softmax as a function."""

    def __init__(self):
        super().__init__()
        self.norm, self.activation = nn.RMSNorm(6, eps=1e-5, elementwise_affine=False), nn.GELU()

    def forward(self, x):
        return torch.softmax(self.activation(self.norm(x)), -1)


NAMES = ("softmax", "gelu", "rms_norm")
RECIPE = Recipe([Entry("*", name, arithmetic="bfloat16") for name in NAMES])


def by_hand(x, names=NAMES):
    for name in reversed(names):
        options = {"rms_norm": {"eps": 1e-5}}.get(name, {})
        x = Stepwise(name, check_steps(name, "bfloat16")).run(x, *[None] * (name == "rms_norm"), **options)
    return x


def test_lowered_models():
    x = arrays_of("softmax")[0]
    model = qtorch.recipes.lower(Model(), RECIPE)
    assert_same([model(torch.tensor(x)).detach().numpy()], [by_hand(x)])
    found = qtorch.recipes.report(model, torch.tensor(x))
    assert [(one.path, one.kind, one.arithmetic, one.reason) for one in found.functions] == [
        ("norm", "rms_norm", "bfloat16", ""),
        ("activation", "gelu", "bfloat16", ""),
        ("", "softmax", "bfloat16", ""),
    ]
    assert "activation: gelu of 3x6 in bfloat16" in str(found)

    def fn(x):
        return jax.nn.softmax(jax.nn.gelu(x, approximate=False), axis=-1)

    lowered = qjax.recipes.lower(fn, RECIPE)
    assert_same([np.asarray(lowered(x))], [by_hand(x, NAMES[:2])])
    assert [(one.kind, one.shape) for one in qjax.recipes.report(lowered, x).functions] == [
        ("gelu", (3, 6)),
        ("softmax", (3, 6)),
    ]


@pytest.mark.heavy
def test_rows_of_short_dtypes():
    x = arrays_of("softmax")[0]
    recipe = Recipe([Entry("*", "softmax", arithmetic={"*": "bfloat16", "divide": "e4m3fn"})])
    model = qtorch.recipes.lower(nn.Softmax(0), recipe)
    lowered = qjax.recipes.lower(lambda x: jax.nn.softmax(x, 0), recipe)
    ours, theirs = model(torch.tensor(x).bfloat16()), lowered(jnp.asarray(x, jnp.bfloat16))
    assert ours.dtype is torch.bfloat16
    assert theirs.dtype == jnp.bfloat16
    assert_same([ours.float().numpy()], [np.asarray(theirs, np.float32)])
    wide = Recipe([Entry("*", "softmax", arithmetic={"*": "bfloat16", "divide": "float32"})])
    with pytest.raises(ValueError, match="which arrays of bfloat16 have not"):
        qtorch.recipes.lower(nn.Softmax(0), wide)(torch.ones(3, dtype=torch.bfloat16))


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x) + torch.sigmoid_(x.clone())


def test_functions_that_are_not_reached():
    recipe = Recipe([Entry("*", name, arithmetic="bfloat16") for name in ("softmax", "sigmoid")])
    model, x = qtorch.recipes.lower(Attention(), recipe), torch.ones(2, 3, 4)
    with (
        pytest.warns(UserWarning, match="softmax of scaled_dot_product_attention in the model itself stays in high"),
        pytest.warns(UserWarning, match="sigmoid of sigmoid_ in .*: it writes its result into a"),
    ):
        model(x)
    reasons = [one.reason for one in qtorch.recipes.report(model, x).functions]
    assert reasons[0].startswith("it is inside of scaled_dot_product_attention")
    assert len(reasons) == 2

    @jax.jit
    def layer_norm(x, y):
        return x + y

    lowered = qjax.recipes.lower(layer_norm, Recipe([Entry("*", "layer_norm", arithmetic="bfloat16")]))
    with pytest.warns(UserWarning, match="layer_norm.*: the meaning of the arguments"):
        lowered(jnp.ones(3), jnp.ones(3))


class Checkpointed(nn.Module):
    def forward(self, x):
        return checkpoint(lambda x: torch.softmax(x, -1), x, use_reentrant=False)


def test_a_function_of_a_checkpoint():
    """Its backward pass runs it again, where nothing would give it the steps."""
    model = qtorch.recipes.lower(Checkpointed(), RECIPE)
    with pytest.raises(RuntimeError, match=r"softmax in the model itself is in a function that torch\.utils"):
        model(torch.ones(3, requires_grad=True))


def test_a_recipe_without_a_function_of_the_model():
    recipe = Recipe([Entry("head", "softmax", arithmetic="bfloat16")])
    with pytest.raises(ValueError, match="which matches no layer"):
        qtorch.recipes.lower(Model(), recipe)
    with pytest.raises(ValueError, match="which matches no layer"):
        qjax.recipes.lower(lambda x: jax.nn.softmax(x), recipe)(jnp.ones(3))
