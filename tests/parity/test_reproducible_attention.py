"""Attention modules and parts of tensors with defined bits: beside their functions, and the same in torch and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import layer_of, module_of
from numerics_support import numbers, with_gradient
from support import assert_same_bits
from torch import nn

import qjax
import qtorch
from qcore import RECIPES
from qcore.reproducible import Names
from qtorch.reproducible.modules.guard import paused

RNG = np.random.default_rng(12)
SIZE, HEADS = 8, 2
X, MEMORY = numbers(RNG, 2, 5, SIZE), numbers(RNG, 2, 3, SIZE)


class TorchModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.MultiheadAttention(SIZE, HEADS, batch_first=True)
        self.other = nn.MultiheadAttention(SIZE, HEADS, bias=False, batch_first=True)

    def forward(self, x, memory):
        y = x + self.own(x, x, x, is_causal=True, need_weights=False)[0]
        return self.other(y[:, 1:], memory, memory)[0][:, 0] + y[:, -1]


class FlaxModel(nnx.Module):
    def __init__(self):
        self.own = nnx.MultiHeadAttention(HEADS, SIZE, rngs=nnx.Rngs(0))
        self.other = nnx.MultiHeadAttention(HEADS, SIZE, use_bias=False, rngs=nnx.Rngs(0))

    def __call__(self, x, memory):
        room = qjax.reproducible
        y = room.add(x, self.own(x, is_causal=True))
        z = self.other(room.narrow(y, 1, 1, 4), memory)
        return room.add(room.narrow(z, 1, 0, 1)[:, 0], room.narrow(y, 1, 4, 1)[:, 0])


def by_torch(model):
    x = torch.from_numpy(X.copy()).requires_grad_()
    y = model(x, torch.from_numpy(MEMORY))
    y.backward(torch.from_numpy(with_gradient(tuple(y.shape))))
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return y, x.grad, gradients


@pytest.mark.heavy
def test_models_with_attention_modules():
    """Results, and gradients of parameters and inputs."""
    torch.manual_seed(0)
    first, second = qtorch.reproducible.convert(TorchModel()), qjax.reproducible.convert(module_of(FlaxModel))
    with torch.no_grad():
        first.own.in_proj_bias.copy_(torch.from_numpy(numbers(RNG, 3 * SIZE)))
    start = {name: p.detach().numpy() for name, p in first.state_dict().items()}
    qjax.reproducible.load_state_dict(second, start)
    for name, p in qjax.reproducible.state_dict(second).items():
        assert_same_bits(p, start[name], name)
    graph, params, rest = nnx.split(second, nnx.Param, ...)

    @jax.jit
    def program(params, x):
        y, pull = jax.vjp(lambda params, x: nnx.merge(graph, params, rest)(x, MEMORY), params, x)
        return y, *pull(jnp.asarray(with_gradient(y.shape)))

    z, gradients, of_x = program(params, X)
    y, expected_of_x, expected = by_torch(first)
    assert_same_bits(z, y)
    assert_same_bits(of_x, expected_of_x)
    found = qjax.reproducible.state_dict(nnx.merge(graph, gradients, rest))
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        assert_same_bits(found[name], gradient, name)


def test_attention_modules_beside_torchs():
    """Masks, weights and layouts: near torch's own numbers."""
    torch.manual_seed(1)
    plain, x = nn.MultiheadAttention(SIZE, HEADS), torch.from_numpy(X)
    ours = qtorch.reproducible.convert(nn.MultiheadAttention(SIZE, HEADS))
    ours.load_state_dict(plain.state_dict())
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    turned = x.transpose(0, 1)
    for options in (
        {"attn_mask": mask},
        {"attn_mask": mask, "key_padding_mask": padding},
        {"attn_mask": mask.expand(2 * HEADS, 5, 5), "average_attn_weights": False},
    ):
        for found, expected in zip(
            ours(turned, turned, turned, **options), plain(turned, turned, turned, **options), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    causal = ours(turned, turned, turned, is_causal=True)[0]
    assert_same_bits(causal, ours(turned, turned, turned, attn_mask=mask)[0])
    assert_same_bits(ours(turned[:, 0], turned[:, 0], turned[:, 0])[0], ours(turned, turned, turned)[0][:, 0])


PARTS = [
    np.index_exp[:, 0],
    np.index_exp[..., -1],
    np.index_exp[1],
    np.index_exp[:, 2:4, None],
    np.index_exp[:, -2:],
    np.index_exp[None, 0, ..., 1:9],
    np.index_exp[:, 3:3],
    np.index_exp[...],
    np.index_exp[:, ::2],
    np.index_exp[[1, 0]],
]


class Parts(nn.Module):
    def forward(self, x):
        return [x[index[0] if len(index) == 1 else index] for index in PARTS] + [x.select(1, -1), x.narrow(0, 1, 1)]


def test_parts_of_tensors():
    numbers_ = np.asarray(Names.settled(X))
    x = torch.from_numpy(numbers_.copy()).requires_grad_()
    expected = [numbers_[index] for index in PARTS] + [numbers_[:, -1], numbers_[1:2]]
    places = np.arange(X.size).reshape(X.shape)
    chosen = [places[index] for index in PARTS] + [places[:, -1], places[1:2]]
    for part, right, where in zip(qtorch.reproducible.convert(Parts())(x), expected, chosen, strict=True):
        assert_same_bits(part, right)
        gradient = np.full(right.shape, -0.0, np.float32)
        (found,) = torch.autograd.grad(part, x, torch.from_numpy(gradient))
        whole = np.zeros(X.size, np.float32)
        whole[where.ravel()] = -0.0
        assert_same_bits(found, whole.reshape(X.shape))


class Index(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index

    def forward(self, x):
        return x[self.index]


def test_what_has_no_law_raises():
    with pytest.raises(IndexError, match="out of bounds"):
        qtorch.reproducible.convert(Index(2))(torch.from_numpy(X))
    numbers_ = torch.arange(6)
    assert qtorch.reproducible.convert(Index(slice(None, None, 2)))(numbers_).tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match="allowed are parts"):
        qtorch.reproducible.narrow(torch.from_numpy(X), 0, 1, 2)
    for options in ({"dropout": 0.5}, {"add_zero_attn": True}, {"add_bias_kv": True}, {"kdim": 4}):
        with pytest.raises(ValueError, match=f"layer '0' has {next(iter(options))}.*allowed"):
            qtorch.reproducible.convert(nn.Sequential(nn.MultiheadAttention(SIZE, HEADS, **options)))
    for options in ({"dropout_rate": 0.5}, {"qkv_features": 4}):
        layer = layer_of(nnx.MultiHeadAttention, HEADS, SIZE, **options)
        with pytest.raises(ValueError, match=r"layer '0' has .*allowed is the default"):
            qjax.reproducible.convert(nnx.Sequential(layer))
    x, layer = torch.from_numpy(X), qtorch.reproducible.convert(nn.MultiheadAttention(SIZE, HEADS))
    with pytest.raises(TypeError, match="attn_mask has dtype"):
        layer(x, x, x, attn_mask=torch.zeros(2, 2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return nn.functional.relu(self.norm(x))


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.layer = Block(), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.block(x))


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_part_of_a_model_may_be_compiled_by_itself(backend):
    """It is switched too, and the model's guard pauses while it runs."""
    model, x = Outer(), torch.from_numpy(numbers(np.random.default_rng(3), 12).reshape(3, 4))
    qtorch.reproducible.convert(model)
    expected = model(x)
    (wanted,) = torch.autograd.grad(expected.sum(), [model.block.norm.weight])
    qtorch.reproducible.convert(model.block)
    assert_same_bits(model(x), expected)
    part = torch.compile(model.block.forward, backend=backend, fullgraph=True)

    def forward(x):
        with paused():
            return part(x)

    model.block.forward = forward
    found = model(x)
    assert_same_bits(found, expected)
    assert_same_bits(torch.autograd.grad(found.sum(), [model.block.norm.weight])[0], wanted)


class TorchBlock(nn.Module):
    """A whole attention block: linear layers, softmax between two products, normalization and an MLP."""

    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.query, self.key, self.value = (nn.Linear(SIZE, SIZE) for _ in "qkv")
        self.out, self.up, self.down = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 16), nn.Linear(16, SIZE)

    def forward(self, x):
        h = self.norm(x)
        heads = [layer(h).view(2, 5, HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(2, 5, SIZE))
        return x + self.down(nn.functional.gelu(self.up(self.inner(x))))


class FlaxBlock(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.norm, self.inner = (nnx.LayerNorm(SIZE, epsilon=1e-5, rngs=rngs) for _ in "ab")
        self.query, self.key, self.value = (nnx.Linear(SIZE, SIZE, rngs=rngs) for _ in "qkv")
        self.out, self.up = nnx.Linear(SIZE, SIZE, rngs=rngs), nnx.Linear(SIZE, 16, rngs=rngs)
        self.down = nnx.Linear(16, SIZE, rngs=rngs)

    def __call__(self, x):
        room = qjax.reproducible
        h = self.norm(x)
        heads = [layer(h).reshape(2, 5, HEADS, -1).swapaxes(1, 2) for layer in (self.query, self.key, self.value)]
        y = room.scaled_dot_product_attention(*heads, is_causal=True)
        x = room.add(x, self.out(y.swapaxes(1, 2).reshape(2, 5, SIZE)))
        return room.add(x, self.down(room.gelu(self.up(self.inner(x)))))


@pytest.mark.heavy
@pytest.mark.parametrize("recipe", ["mxfp8", "bf16_mixed"])
def test_an_attention_block_under_a_recipe(recipe):
    """The softmax is the library's, so the block has the same bits in both, with its gradients."""
    torch.manual_seed(0)
    first = qtorch.reproducible.convert(TorchBlock(), RECIPES[recipe])
    second = qjax.reproducible.convert(module_of(FlaxBlock), RECIPES[recipe])
    qjax.reproducible.load_state_dict(second, {name: p.detach().numpy() for name, p in first.state_dict().items()})
    x = torch.from_numpy(X.copy()).requires_grad_()
    y = first(x)
    y.backward(torch.from_numpy(with_gradient(tuple(y.shape))))
    graph, params, rest = nnx.split(second, nnx.Param, ...)

    @jax.jit
    def program(params, x):
        z, pull = jax.vjp(lambda params, x: nnx.merge(graph, params, rest)(x), params, x)
        return z, *pull(jnp.asarray(with_gradient(z.shape)))

    z, gradients, of_x = program(params, X)
    assert_same_bits(z, y)
    assert_same_bits(of_x, x.grad)
    found = qjax.reproducible.state_dict(nnx.merge(graph, gradients, rest))
    for name, p in first.named_parameters():
        assert_same_bits(found[name], p.grad, name)
    wide = qtorch.reproducible.convert(TorchBlock())
    wide.load_state_dict(first.state_dict())
    assert not torch.equal(wide(x), y)
