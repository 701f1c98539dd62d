"""Products, modules and whole models with defined bits: beside loops, and the same in torch and JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import module_of
from numerics_support import numbers, with_gradient
from support import assert_all_same_bits, assert_same_bits
from torch import nn

import qjax
import qtorch
from qcore import Accumulator, Entry, Product, Recipe, reproducible
from qcore.reproducible import Names
from qjax._models import names_of
from qtorch.reproducible import optimizers

RNG = np.random.default_rng(11)


def one_after_the_other(a, b):
    """a @ b in float64, in ascending k, rounded once."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]))
    for k in range(a.shape[-1]):
        total = total + a[..., k, None].astype(np.float64) * b[..., k, None, :].astype(np.float64)
    return np.asarray(Names.settled(total.astype(np.float32)))


def patches(images, size):
    """(batch, height, width, channels * size * size) of images without padding."""
    views = np.lib.stride_tricks.sliding_window_view(images, (size, size), (2, 3))
    return np.moveaxis(views, 1, 3).reshape(*views.shape[:1], *views.shape[2:4], -1)


def linear(room, x, w, b):
    return room.linear(x, w, b)


def conv2d(room, x, w, b):
    return room.conv2d(x, w, b)


def attention(room, q, k, v):
    return room.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES = {
    "linear": (linear, (numbers(RNG, 9, 5), numbers(RNG, 4, 5), numbers(RNG, 4))),
    "conv2d": (conv2d, (numbers(RNG, 2, 3, 5, 6), numbers(RNG, 4, 3, 3, 3), numbers(RNG, 4))),
    "attention": (attention, tuple(numbers(RNG, 2, 6, 4) for _ in range(3))),
}


@pytest.fixture(scope="module")
def by_torch():
    found = {}
    for name, (function, arrays) in CASES.items():
        given = [torch.from_numpy(x.copy()).requires_grad_() for x in arrays]
        y = function(qtorch.reproducible, *given)
        found[name] = [y, *torch.autograd.grad(y, given, torch.from_numpy(with_gradient(tuple(y.shape))))]
    return found


def test_jax_has_the_bits_of_torch(by_torch):
    @jax.jit
    def program(given):
        found = {}
        for name, (function, _) in CASES.items():
            y, pull = jax.vjp(lambda *arrays, f=function: f(qjax.reproducible, *arrays), *given[name])
            found[name] = [y, *pull(jnp.asarray(with_gradient(y.shape)))]
        return found

    found = program({name: arrays for name, (_, arrays) in CASES.items()})
    for name, expected in by_torch.items():
        assert_all_same_bits(found[name], expected)


def test_linear_beside_loops(by_torch):
    x, w, b = CASES["linear"][1]
    g = with_gradient((9, 4))
    y = reproducible.add(one_after_the_other(x, w.T), b)
    expected = [y, one_after_the_other(g, w), one_after_the_other(g.T, x), reproducible.sum(g, 0)]
    assert_all_same_bits(by_torch["linear"], expected)


def test_convolution_beside_loops(by_torch):
    """Forward and the weight's gradient."""
    x, w, b = CASES["conv2d"][1]
    rows = patches(x, 3)
    y = reproducible.add(one_after_the_other(rows, w.reshape(4, -1).T), b)
    assert_same_bits(by_torch["conv2d"][0], np.moveaxis(y, -1, 1))
    g = np.moveaxis(with_gradient((2, 4, 3, 4)), 1, -1).reshape(-1, 4)
    assert_same_bits(by_torch["conv2d"][2], one_after_the_other(g.T, rows.reshape(len(g), -1)).reshape(w.shape))


def test_attention_beside_loops(by_torch):
    q, k, v = CASES["attention"][1]
    scores = one_after_the_other(reproducible.multiply(q, np.float32([0.5])), np.swapaxes(k, 1, 2))
    scores = np.where(np.tri(6, dtype=bool), scores, np.float32(-np.inf))
    assert_same_bits(by_torch["attention"][0], one_after_the_other(reproducible.softmax(scores), v))


def test_rows_of_a_table_are_summed_in_pairs():
    rows, indices = numbers(RNG, 7, 2), torch.tensor([1, 0, 1, 1, 0, 1, 1])
    weight = torch.zeros(3, 2, requires_grad=True)
    qtorch.reproducible.embedding(indices, weight).backward(torch.from_numpy(rows))
    r = rows.astype(np.float64)
    expected = np.stack([r[1] + r[4], ((r[0] + r[2]) + (r[3] + r[5])) + r[6], np.zeros(2)]).astype(np.float32)
    assert_same_bits(weight.grad, np.asarray(Names.settled(expected)))


def test_dropout_takes_the_words_of_jax():
    words = jax.random.bits(jax.random.key(7), (50,), "uint32")
    expected = np.where(np.asarray(words) >> 8 >= round(0.25 * 2**24), np.float32(3) / np.float32(0.75), 0)
    assert_same_bits(reproducible.dropout(np.full(50, 3, np.float32), 0.25, 7), expected.astype(np.float32))


class TorchModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 12)
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.rms = nn.RMSNorm(4, eps=1e-6)
        self.dropout = nn.Dropout(0.25)
        self.layers = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))

    def forward(self, x):
        y = self.norm(self.conv(self.table(x).unsqueeze(1)))
        y = nn.functional.gelu(nn.functional.max_pool2d(y, 2)).mean((2, 3))
        return self.layers(self.dropout(self.rms(y) * 0.3 + y))


class FlaxModel(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.table = nnx.Embed(5, 12, rngs=rngs)
        self.conv = nnx.Conv(1, 4, (3, 3), padding="VALID", rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.rms = nnx.RMSNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.layers = nnx.Sequential(nnx.LayerNorm(4, epsilon=1e-5, rngs=rngs), nnx.Linear(4, 3, rngs=rngs))

    def __call__(self, x):
        room = qjax.reproducible
        y = jnp.moveaxis(self.norm(self.conv(self.table(x)[..., None])), -1, 1)
        y = room.mean(room.gelu(room.max_pool2d(y, 2)), (2, 3))
        scaled = room.multiply(self.rms(y), jnp.float32(0.3))
        return self.layers(self.dropout(room.add(scaled, y)))


RECIPE = Recipe([Entry("*", "linear", *[Product("e4m3fn", "e4m3fn", Accumulator("float(6,9)", 2, "stochastic"))] * 3)])


@pytest.mark.heavy
def test_models_switched_by_one_call():
    """All kinds of layers, a stochastic product and dropout: results, gradients and statistics."""
    torch.manual_seed(0)
    first, x = qtorch.reproducible.convert(TorchModel(), RECIPE), RNG.integers(0, 5, (6, 12))
    start = {name: p.detach().numpy().copy() for name, p in first.state_dict().items()}
    qtorch.reproducible.set_key(first, 5)
    y = first(torch.from_numpy(x))
    y.backward(torch.from_numpy(with_gradient((6, 3))))

    second = qjax.reproducible.convert(module_of(FlaxModel), RECIPE)
    assert set(qjax.reproducible.state_dict(second)) == {name for name in start if "num_batches" not in name}
    qjax.reproducible.load_state_dict(second, start)
    qjax.reproducible.set_key(second, 5)
    graph, params, rest = nnx.split(second, nnx.Param, ...)

    @jax.jit
    def program(params, rest):
        def forward(params):
            model = nnx.merge(graph, params, rest, copy=True)
            return model(x), nnx.split(model, nnx.Param, ...)[2]

        y, pull, rest = jax.vjp(forward, params, has_aux=True)
        return y, pull(jnp.asarray(with_gradient((6, 3))))[0], rest

    z, gradients, rest = program(params, rest)
    assert_same_bits(z, y)
    found = qjax.reproducible.state_dict(nnx.merge(graph, gradients, rest))
    for name, p in first.named_parameters():
        assert_same_bits(found[name], p.grad, name)
    for name, p in first.named_buffers():
        if "running" in name:
            assert_same_bits(found[name], p, name)


class Cumulative(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 0)


class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.up, self.down = nn.Linear(2, 2), nn.Linear(2, 2)
        self.inner = nn.ModuleList(Deep(depth - 1) for _ in range(11 if depth > 1 else depth))
        self.end = nn.Linear(2, 2)


class DeepNNX(nnx.Module):
    def __init__(self, depth):
        self.up, self.down = (nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(2))
        self.inner = nnx.List([DeepNNX(depth - 1) for _ in range(11 if depth > 1 else depth)])
        self.end = nnx.Linear(2, 2, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("ends", [{"first": 1}, {"last": 1}, {"first": 2, "last": 3}, {"first": 7}], ids=str)
def test_ends_of_a_recipe_are_the_same_layers(ends):
    """Layers count in the order of definition: neither by depth nor by name."""
    recipe = Recipe([Entry("*", "linear", Product("e4m3fn", "e4m3fn"), **ends)])
    switched = qtorch.reproducible.convert(Deep(2), recipe)
    want = {name for name, layer in switched.named_modules() if getattr(layer, "products", None)}
    made = qjax.reproducible.convert(DeepNNX(2), recipe)  # `module_of` loses the order
    found = {name for name, layer in names_of(made).items() if getattr(layer, "products", None)}
    assert found == want
    assert len(want) == sum(ends.values())


def test_what_has_no_law_raises_and_names_the_layer():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Cumulative()))
    with pytest.raises(ValueError, match=r"layer '1\.0' calls torch\.cumsum.*allowed"):
        qtorch.reproducible.convert(model)(torch.ones(1, 2))
    recurrent = nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 1))
    with pytest.raises(ValueError, match=r"layer '1' is a GRU.*allowed"):
        qtorch.reproducible.convert(recurrent)
    assert type(recurrent[0]) is nn.Linear
    for layer, words in (
        (nnx.ConvTranspose(2, 2, (3,), rngs=nnx.Rngs(0)), "is a ConvTranspose"),
        (nnx.Conv(2, 2, (3,), input_dilation=2, rngs=nnx.Rngs(0)), "has input_dilation=2"),
        (nnx.LinearGeneral(1, 2, axis=1, rngs=nnx.Rngs(0)), r"has axis=\(1,\)"),
    ):
        with pytest.raises(ValueError, match=rf"layer '0' {words}"):
            qjax.reproducible.convert(nnx.Sequential(layer))
    with pytest.raises(ValueError, match=r"dropout has no defined bits here"):
        qtorch.reproducible.convert(Dropping())(torch.ones(2))


class Dropping(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(nesterov):
    start, gradients = numbers(RNG, 40), [numbers(RNG, 40) for _ in range(3)]
    options = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    p, v = start, np.zeros_like(start)
    q = nn.Parameter(torch.from_numpy(start.copy()))
    torchs = qtorch.reproducible.SGD([q], lr=0.1, **options)
    own = qjax.reproducible.sgd(0.1, **options)
    r = jnp.asarray(start)
    state, step = own.init(r), jax.jit(own.step)
    for g in gradients:
        p, v = reproducible.sgd_step(p, g, v, np.float32(0.1), **options)
        q.grad = torch.from_numpy(g)
        torchs.step()
        r, state = step(r, jnp.asarray(g), state)
    assert_same_bits(q, p)
    assert_same_bits(torchs.state[q]["momentum_buffer"], v)
    assert_same_bits(r, p)
    assert_same_bits(state, v)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_parameters_are_updated_together_as_alone(kind, monkeypatch):
    """Also where one has no gradient at first, so that its step has another number, and where there are many."""
    monkeypatch.setattr(optimizers, "_MOST", 50)
    start = [numbers(RNG, 12).reshape(3, 4), numbers(RNG, 40), numbers(RNG, 6).reshape(2, 3), numbers(RNG, 6)]
    gradients = [[numbers(RNG, x.size).reshape(x.shape) for x in start] for _ in range(3)]
    options = {"weight_decay": 0.1} | ({"momentum": 0.9} if kind == "SGD" else {})
    make = partial(getattr(qtorch.reproducible, kind), lr=0.1, **options)
    together, alone = ([nn.Parameter(torch.from_numpy(x.copy())) for x in start] for _ in range(2))
    ours = [make(together), *(make([p]) for p in alone)]
    for i, each in enumerate(gradients):
        for p, q, g in zip(together, alone, each, strict=True):
            p.grad = q.grad = None if i == 0 and g.shape == (2, 3) else torch.from_numpy(g)
        for optimizer in ours:
            optimizer.step()
    for p, q in zip(together, alone, strict=True):
        assert_same_bits(p, q)
