"""Delayed scales of quantizers against a loop in NumPy's floats, in PyTorch and in JAX."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from delayed_support import expected_row, rounded
from support import assert_all_same_bits, assert_same_bits
from torch.utils.checkpoint import checkpoint

import qcore
import qjax
from qtorch.quant import Quantizer
from qtorch.quantization import QConfig
from qtorch.recipes import lower, sequential_lower

FORWARD, BACKWARD = (f"scaled({name},{{...:None}},scale=float32,history=3)" for name in ("e4m3fn", "e5m2"))


def steps():
    random = np.random.default_rng(0)
    for step in range(6):
        x, g = (random.standard_normal((5, 7)) * 2.0 ** random.integers(-30, 9) for _ in "xg")
        yield np.float32(x if step != 2 else 0 * x), np.float32(g)


def test_equals_a_loop():
    q = Quantizer(FORWARD, BACKWARD, "nearest", "nearest")
    f = qjax.quantizer(FORWARD, BACKWARD, "nearest", "nearest")
    step = jax.jit(lambda x, state, g: (f(x, scaling=state), jax.vjp(lambda x, s: f(x, scaling=s), x, state)[1](g)))
    state, of_x, of_g = jnp.float32([[1, 0, 0, 0]] * 2), (np.float32(1), [0.0] * 3), (np.float32(1), [0.0] * 3)
    for x, g in steps():
        y, dx = rounded(x, "e4m3fn", of_x[0]), rounded(g, "e5m2", of_g[0])
        of_x, of_g = expected_row(of_x[1], x, 448, of_x[0]), expected_row(of_g[1], g, 57344, of_g[0])
        row = np.float32([[of_x[0], *of_x[1]], [of_g[0], *of_g[1]]])
        given = torch.from_numpy(x).requires_grad_()
        found = q(given)
        assert_same_bits(q.eval()(given).detach(), y)  # which changes no state
        q.train()
        found.backward(torch.from_numpy(g))
        of_jax, (grad, state) = step(x, state, g)
        for one, other in ((found.detach(), y), (given.grad, dx), (q.scaling, row)):
            assert_same_bits(one, other)
        for one, other in ((of_jax, y), (grad, dx), (state, row)):
            assert_same_bits(np.asarray(one), other)
    again = Quantizer(FORWARD, BACKWARD, "nearest", "nearest")
    again.load_state_dict(q.state_dict())
    for one in (again, copy.deepcopy(q)):
        assert_same_bits(one.scaling, row)
    again.to_empty(device="cpu").reset_parameters()
    assert again.scaling.tolist() == [[1, 0, 0, 0]] * 2
    again.load_state_dict({})


@pytest.mark.heavy
def test_stochastic_rounding_has_the_keys_of_other_quantizers():
    x, g = next(steps())
    q, f = Quantizer(FORWARD, BACKWARD), qjax.quantizer(FORWARD, BACKWARD)
    given = torch.from_numpy(x).requires_grad_()
    y = q(given, key=5)
    y.backward(torch.from_numpy(g))
    of_jax, back = jax.vjp(lambda x, s: f(x, 5, s), jnp.asarray(x), jnp.float32([[1, 0, 0, 0]] * 2))
    grad, state = back(jnp.asarray(g))
    for one, other in ((y.detach(), of_jax), (given.grad, grad), (q.scaling, state)):
        assert_same_bits(one, np.asarray(other))


def test_a_compiled_step():
    torch.compiler.reset()
    models = [Quantizer(FORWARD, BACKWARD, "nearest", "nearest") for _ in range(2)]
    program = torch.compile(models[0], backend="aot_eager", fullgraph=True)
    for x, g in steps():
        pair = [torch.from_numpy(x.copy()).requires_grad_() for _ in range(2)]
        results = [run(one) for run, one in zip((program, models[1]), pair, strict=True)]
        for y in results:
            y.backward(torch.from_numpy(g))
        assert_same_bits(results[0].detach(), results[1].detach())
        assert_same_bits(pair[0].grad, pair[1].grad)
        assert_same_bits(models[0].scaling, models[1].scaling)


def lowered(way=lower):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    return way(model, ["linear"], FORWARD, BACKWARD, "nearest", "nearest")


def pass_through(model, x, call=None):
    model.zero_grad()
    y = (call or model)(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]


def test_lowered_models():
    """Each layer has its quantizer's state, which is saved, copied, pickled and compiled with it."""
    low, pairs = lowered(), lowered(sequential_lower)
    assert [name for name in low.state_dict() if "scaling" in name] == ["0.rounding.scaling", "2.rounding.scaling"]
    twins = [copy.deepcopy(low), pickle.loads(pickle.dumps(low)), pairs]
    torch.compiler.reset()
    program = torch.compile(twins[0], backend="aot_eager", fullgraph=True)
    for factor in (1, 8, 1, 0.5):
        x = factor * torch.linspace(-1, 1, 12).reshape(3, 4)
        expected = pass_through(low, x)
        for twin, call in zip(twins, (program, None, None), strict=True):
            assert_all_same_bits(pass_through(twin, x, call), expected)
    states = [layer.rounding.scaling.clone() for layer in (low[0], low[2])]
    assert states[0][0, 0] != states[1][0, 0] != 1
    assert_all_same_bits([layer.rounding.scaling for layer in (low.bfloat16()[0], low[2])], states)
    low.load_state_dict({name: p for name, p in low.state_dict().items() if "scaling" not in name})


def test_lowered_functions():
    """The states of layers' outputs are an argument, and its derivative; bits are those of the lowered module."""
    low = lowered()
    w1, b1, w2, b2 = (jnp.asarray(p.detach().numpy()) for p in low.parameters())

    def function(x, w1, b1, w2, b2):
        return jnp.maximum(x @ w1.T + b1, 0) @ w2.T + b2

    f = qjax.recipes.lower(function, ["linear"], FORWARD, BACKWARD, "nearest", "nearest")
    weights, states = (w1, b1, w2, b2), qjax.recipes.first_scaling(f, jnp.ones((3, 4)), w1, b1, w2, b2)
    loss = jax.jit(jax.grad(lambda x, states: (f(x, *weights, scaling=states) ** 2).sum(), 1))
    for factor in (1, 8, 0.5):
        x = factor * torch.linspace(-1, 1, 12).reshape(3, 4)
        y, scaling = f(jnp.asarray(x.numpy()), *weights, scaling=states), jnp.stack(states)
        states = loss(jnp.asarray(x.numpy()), states)
        assert scaling.shape == (2, 2, 4)
        found, *_ = pass_through(low, x)
        assert_same_bits(found, np.asarray(y))
        for layer, state in zip((low[0], low[2]), states, strict=True):
            assert_same_bits(layer.rounding.scaling, np.asarray(state))
    with pytest.raises(ValueError, match=r"scaling is None; allowed are 2"):
        f(jnp.ones((3, 4)), *weights)
    loop = qjax.recipes.lower(
        lambda x: jax.lax.while_loop(lambda y: y.sum() > 9, lambda y: y @ x, x), ["linear"], FORWARD, None, "nearest"
    )
    with pytest.raises(ValueError, match="has delayed scales inside while"):
        qjax.recipes.first_scaling(loop, jnp.eye(3))
    inner = qjax.recipes.lower(jax.grad(lambda x: (x @ x).sum()), ["linear"], FORWARD, None, "nearest")
    with pytest.raises(ValueError, match="has delayed scales in a derivative"):
        qjax.recipes.first_scaling(inner, jnp.eye(3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_uses_in_one_pass_are_one_step(reentrant):
    """A layer that is used twice, with and without checkpoints that run it again, has one scale and one step."""
    results = []
    for checkpointed in (False, True):
        low = lowered()
        layer = torch.nn.Sequential(low[0], low[1], low[2])

        def call(x, layer=layer, checkpointed=checkpointed):
            for _ in range(2):
                x = checkpoint(layer, x, use_reentrant=reentrant) if checkpointed else layer(x)
            return x

        for factor in (1, 4, 0.25):
            x = (factor * torch.linspace(-1, 1, 12).reshape(3, 4)).requires_grad_()
            results.append(pass_through(low, x, call))
        past = low[0].rounding.scaling[0, 1:]
        assert (past > 0).all()  # three passes, of two uses each
    for one, other in zip(results[:3], results[3:], strict=True):
        assert_all_same_bits(one, other)


def second_derivative():
    x = torch.ones(3, requires_grad=True)
    y = Quantizer(FORWARD, forward_rounding="nearest")(x)
    torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_margin():
    """A scale with a margin leaves powers of two free."""
    text = FORWARD[:-1] + ",margin=2,reduce_amax=False)"
    assert qcore.parse(text).text == text
    q, x = Quantizer(text, None, "nearest"), torch.full((2,), 3.5, requires_grad=True)
    f = qjax.quantizer(text, None, "nearest")
    q(x).sum().backward()
    x = np.full(2, 3.5, np.float32)
    state = jax.jit(jax.grad(lambda s: f(x, scaling=s).sum()))(np.float32([[1, 0, 0, 0]] * 2))
    assert q.scaling[0, 0] == 448 / 3.5 / 4
    assert_same_bits(q.scaling, np.asarray(state))


class Taken(torch.nn.Linear):
    rounding = "its own"


def test_what_is_refused():
    x = np.ones((2, 3), np.float32)
    layer = torch.nn.Linear(3, 3)
    nearest = Quantizer(FORWARD, forward_rounding="nearest")
    for call, kind, words in (
        (lambda: qcore.quantize(x, FORWARD), ValueError, "delayed scale, which is state; allowed are Quantizer"),
        (lambda: qcore.encode(x, FORWARD), ValueError, "delayed scale"),
        (lambda: qjax.quantize(x, FORWARD), ValueError, "delayed scale"),
        (lambda: lower(Taken(3, 3), ["linear"], FORWARD), ValueError, "Taken has an attribute 'rounding'"),
        (lambda: lower(layer, ["linear"], weight_number=FORWARD), ValueError, "has a delayed scale"),
        (lambda: nearest(torch.ones(3)), ValueError, "x needs no gradient"),
        (lambda: nearest(torch.ones(3, dtype=torch.float16)), TypeError, "torch.float32 with a delayed scale"),
        (lambda: qjax.quantizer(FORWARD, None, "nearest")(x), ValueError, "scaling has shape and dtype None"),
        (lambda: QConfig(FORWARD, "e4m3fn"), ValueError, "has a delayed scale"),
        (second_derivative, NotImplementedError, "no second derivatives"),
        (lambda: Quantizer(FORWARD, BACKWARD.replace("=3", "=4")), ValueError, "allowed is one history"),
        (lambda: qcore.BlockScaled("e4m3fn", {-1: 8}, scale="float32", history=2), ValueError, "history=2 with"),
        (lambda: qcore.BlockScaled("e4m3fn", {...: None}, scale="float32", margin=2), ValueError, "history=None"),
    ):
        with pytest.raises(kind, match=words):
            call()
    assert qcore.parse(FORWARD).text == FORWARD
