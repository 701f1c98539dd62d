"""What has no defined bits raises in a switched model, and the message names the layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import layer_of
from support import assert_same_bits
from torch import nn

import qjax
import qtorch

X = np.float32([[1, -2, 3], [0.5, 0, 4]])
room = qjax.reproducible


class Block(nnx.Module):
    """A linear layer, and a function of it."""

    def __init__(self, function):
        self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.function = nnx.static(function)

    def __call__(self, x):
        return self.function(self.linear(x))


class Model(nnx.Module):
    def __init__(self, function):
        self.blocks = nnx.List([Block(room.relu), Block(function)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


UNDEFINED = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "add": lambda x: x + 1.0,
    "mul": lambda x: room.exp(x) * x,
    "dot_general": lambda x: jnp.einsum("ij,ik->jk", x, x),
    "slice": lambda x: x[:, :2],  # its gradient is added to others
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x[None], (2, *x.shape)),  # whose gradient is a sum
    "convert_element_type": lambda x: x.astype(jnp.bfloat16),
}

INSIDE = {
    "a body": jax.jit(lambda x: jax.lax.scan(lambda c, y: (c, c * y), x[0, 0], x)[1]),
    # The state of a loop begins as a constant and does not stay one.
    "a state": lambda x: jax.lax.scan(lambda c, y: (y, jnp.broadcast_to(c, (2, 3))), jnp.zeros(3), x)[1],
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_jax_names_the_layer(name):
    model = room.convert(Model(UNDEFINED[name]))
    with pytest.raises(ValueError, match=rf"layer 'blocks\.1' calls _?{name}.*allowed are"):
        model(X)


@pytest.mark.parametrize("name", INSIDE)
def test_jax_looks_into_inner_programs(name):
    with pytest.raises(ValueError, match=r"layer 'blocks\.1' calls .*not defined"):
        room.convert(Model(INSIDE[name]))(X)


def moved(x):
    """Numbers elsewhere, and integers."""
    y = jnp.concatenate([-x.T, x.T[::-1]], 0).reshape(2, -1)[None]
    return room.add(jnp.squeeze(y, 0), jnp.float32(jnp.argmax(y)))


@pytest.mark.heavy
def test_jax_lets_be_what_rounds_nothing():
    """Also under transformations and jit, where arrays have no values."""
    model, converted = Model(moved), room.convert(Model(moved))
    assert type(converted).__name__ == "Model"
    assert isinstance(converted, Model)
    y = converted(X)
    graph, state = nnx.split(converted)
    assert_same_bits(jax.jit(lambda state, x: nnx.merge(graph, state)(x))(state, X), y)
    gradient = jax.grad(lambda state: room.sum(nnx.merge(graph, state)(X)))(state)
    assert np.isfinite(np.asarray(jax.tree.leaves(gradient)[0])).all()
    assert model(X).shape == y.shape  # flax's own layers are nobody's concern


def test_jax_looks_at_shapes_once(monkeypatch):
    model, traced = room.convert(Model(room.gelu)), []
    monkeypatch.setattr(jax, "make_jaxpr", lambda f, real=jax.make_jaxpr: traced.append(1) or real(f))
    for rows in (2, 2, 1, 2):
        model(X[:rows])
    assert len(traced) == 2


def test_layers_with_a_state_and_keys():
    """The look changes no statistics, and takes options of any kind."""
    layers = [nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))]
    model = room.convert(nnx.Sequential(*layers))
    room.set_key(model, 5)
    model(X)
    once = room.convert(layers[0])
    once(X, use_running_average=False)
    assert_same_bits(model.layers[0].mean[...], once.mean[...])


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


WITHOUT_LAW = {
    "add: alpha": lambda x: torch.add(x, x, alpha=2),
    "dropout: dropout": lambda x: nn.functional.dropout(x, 0.5),
    "softplus: beta": lambda x: nn.functional.softplus(x, beta=2),
    "mean: x is": lambda x: x.double().mean(),
}


@pytest.mark.parametrize("name", [name for name in WITHOUT_LAW if name != "mean: x is"])
def test_torch_names_the_layer_of_options(name):
    model = qtorch.reproducible.convert(nn.Sequential(nn.Linear(3, 3), nn.Sequential(Calls(WITHOUT_LAW[name]))))
    with pytest.raises(ValueError, match=rf"layer '1\.0' calls [\w.]*{name} has no defined bits here"):
        model(torch.from_numpy(X))


def test_torch_names_the_layer_of_types():
    model = qtorch.reproducible.convert(nn.Sequential(Calls(torch.exp)))
    with pytest.raises(TypeError, match=r"layer '0' calls torch\.exp: x is a tensor of torch\.float64"):
        model(torch.from_numpy(X).double())


def test_parameters_of_another_type_are_refused():
    """By name, and before anything is changed."""
    for dtype in (torch.float64, torch.bfloat16):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, dtype=dtype))
        with pytest.raises(ValueError, match=rf"layer '1' has a parameter of {dtype}; allowed is torch\.float32"):
            qtorch.reproducible.convert(model)
        assert [type(layer) for layer in model.modules()] == [nn.Sequential, nn.Linear, nn.Linear]
    layer = nnx.Linear(3, 3, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"layer '0' has dtype=None, param_dtype=.*bfloat16.*; allowed is float32"):
        room.convert(nnx.Sequential(layer))


def test_a_model_may_be_switched_twice():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    y = qtorch.reproducible.convert(model)(torch.from_numpy(X))
    assert_same_bits(qtorch.reproducible.convert(model)(torch.from_numpy(X)), y)
    layer = qtorch.reproducible.convert(nn.Linear(3, 3))
    assert_same_bits(qtorch.reproducible.convert(layer)(torch.from_numpy(X)), layer(torch.from_numpy(X)))
    other = room.convert(nnx.Sequential(layer_of(nnx.Linear, 3, 3), room.relu))
    assert_same_bits(room.convert(other)(X), other(X))


own = qtorch.reproducible
REPLACED = {
    "pow": (
        lambda x: x**2 + 2**x + x.pow(3),
        lambda x: own.add(own.add(own.pow(x, t(2)), own.pow(t(2), x)), own.pow(x, t(3))),
    ),
    "var": (lambda x: x.var(0, unbiased=False), lambda x: own.var(x, 0, correction=0)),
    "var of all": (lambda x: torch.var(x, correction=2), lambda x: own.var(x, correction=2)),
    "var, unbiased": (lambda x: x.var(False), lambda x: own.var(x, correction=0)),
    "logsumexp": (lambda x: x.logsumexp(1, keepdim=True), lambda x: own.logsumexp(x, 1, True)),
    "amax": (lambda x: x.amax(1) + x.amax(), lambda x: own.add(own.max(x, 1), own.max(x))),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=0), lambda x: own.norm(x, 0)),
}


def t(number):
    return torch.tensor(float(number))


@pytest.mark.parametrize("name", REPLACED)
def test_functions_of_torch_are_replaced(name):
    function, expected = REPLACED[name]
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32))
    y = qtorch.reproducible.convert(Calls(function))(x)
    assert_same_bits(y, expected(x))
    torch.testing.assert_close(y, function(x), rtol=1e-5, atol=1e-6)


def test_a_converted_model_changes_nothing_of_torchs():
    """Compiled programs show functions to modes that torch's list leaves out, when they are traced."""
    before = {room: list(found) for room, found in torch.overrides.get_overridable_functions().items()}
    model = qtorch.reproducible.convert(nn.Sequential(nn.Linear(4, 4), nn.Hardswish(inplace=True)))
    x = torch.randn(3, 4)
    assert_same_bits(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
    assert {room: list(found) for room, found in torch.overrides.get_overridable_functions().items()} == before


@torch.library.custom_op("qtorch_tests::norm", mutates_args=())
def own_norm(x: torch.Tensor) -> torch.Tensor:
    return x + 100


own_norm.register_fake(torch.empty_like)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_operator_with_the_name_of_a_method_is_not_taken_for_it(compiled):
    """torch.Tensor.norm is written in Python, and is found by its name."""
    model = qtorch.reproducible.convert(Calls(lambda x: torch.ops.qtorch_tests.norm(x)))
    run = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    with pytest.raises(Exception, match=r"norm, whose order of operations is not defined"):
        run(torch.ones(3))
