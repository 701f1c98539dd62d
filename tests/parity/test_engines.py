"""Attention of engines in the three packages: the same bits, eager and compiled, with gradients."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore.engines
import qjax.engines
import qtorch.engines
from qcore.engines import CACHES, ENGINES, Engine, KVCache
from qcore.engines.cache import stored
from qcore.engines.rotation import signs

f = np.float32
FP8 = "fa3.hopper.fp8"
EQUAL = replace(Engine.of("fa3.hopper.bf16").attention, tiles=(128, 64, 64))
CACHED = replace(Engine.of("exact"), cache=KVCache("e4m3fn:saturate", "token_head"))
PARTS = replace(Engine.of("fa3.hopper.bf16"), attention=replace(EQUAL, splits=2))
SCALED = replace(Engine.of(FP8), cache=KVCache("e4m3fn:saturate", k=0.3, v=1.7))
TWO_SUMS = Engine("attention(tiles=[64,16,32],levels=2,row_sum=exact,offset=3,split_size=32)", "kv_cache(mxfp8_e4m3)")
BY_TOKEN = replace(Engine.of("vllm.triton"), cache="int4_per_token_head")
ENGINES_OF_ALL = [*map(Engine.of, ENGINES), CACHED, PARTS, SCALED, TWO_SUMS, BY_TOKEN]


def arrays_of(queries, keys, size=32, batch=2):
    rng = np.random.default_rng(queries)
    shapes = [(batch, 4, queries, size), (batch, 2, keys, size), (batch, 2, keys, size)]
    found = [rng.standard_normal(shape).astype(f) for shape in shapes]
    found[0][0, 0, 0] *= 1e-39  # subnormal numbers
    found[1][0, 0, 1] *= 50
    return found


def padded(batch, keys):
    """The first text has five tokens of padding on its left side, the second four on its right side."""
    mask = np.ones((batch, 1, 1, keys), bool)
    mask[0, ..., :5] = mask[1, ..., -4:] = False
    return mask


def compare(engine, queries, keys, mask=None, **settings):
    arrays = arrays_of(queries, keys)
    if settings:  # the sinks of the heads
        arrays.append(np.linspace(-2, 5, 4, dtype=f))

    def run(package, *x, mask=mask):
        sinks = {"sinks": x[3]} if len(x) == 4 else {}
        return package.attention(*x[:3], engine, mask=mask, **sinks, **settings)

    expected = run(qcore.engines, *arrays)
    tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    found = run(qtorch.engines, *tensors, mask=None if mask is None else torch.from_numpy(mask))
    assert_same_bits(found.detach(), expected, "torch")
    gradient = np.random.default_rng(9).standard_normal(expected.shape).astype(f)
    found.backward(torch.from_numpy(gradient))
    result, back = jax.vjp(partial(run, qjax.engines), *arrays)
    assert_same_bits(result, expected, "jax")
    for name, x, y in zip(("q", "k", "v", "sinks"), tensors, back(gradient), strict=False):
        assert_same_bits(x.grad, y, f"the gradient of {name}")


def test_the_same_bits():
    compare(CACHED, 70, 100, padded(2, 100))


OWN = "tiles=[64,8,8],window_tiles=[64,4,8]"
WINDOWED = [
    Engine(f"attention({OWN},sink=first,softcap=exponentials,window_start=tile)"),
    *(pytest.param(Engine.of(name), marks=pytest.mark.heavy) for name in ENGINES),
]


@pytest.mark.parametrize("engine", WINDOWED, ids=lambda engine: engine.text)
def test_windows_softcaps_and_sinks(engine):
    compare(engine, 5, 8, window=3, softcap=2.0)
    if engine.attention.tiles[:3] != (64, 8, 8):
        compare(engine, 40, 100, window=20, softcap=2.0)


def test_the_signs_of_a_rotation_are_those_of_torch():
    for size in (8, 64, 256):
        generator = torch.Generator().manual_seed(0x9E3779B9)
        drawn = 2 * torch.bernoulli(torch.full((size,), 0.5), generator=generator) - 1
        assert signs(size) == tuple(drawn.tolist())


def test_a_rotated_cache():
    compare(replace(CACHED, cache="int4_per_token_head"), 3, 5)


def test_gradients_of_softcaps_and_sinks():
    """Beside float64's, which torch differentiates."""
    q, k, v, sinks = (torch.from_numpy(x) for x in (*arrays_of(6, 9), np.linspace(-2, 5, 4, dtype=f)))
    given = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
    wide = [x.double().requires_grad_() for x in (q, k, v, sinks)]
    near = torch.ones(6, 9, dtype=torch.bool).tril(3) & ~torch.ones(6, 9, dtype=torch.bool).tril(-1)
    scores = 2 * torch.tanh(wide[0] @ wide[1].repeat_interleave(2, 1).mT / 32**0.5 / 2)
    scores = torch.cat([scores.masked_fill(~near, -1e30), wide[3].reshape(1, 4, 1, 1).expand(2, 4, 6, 1)], 3)
    result = scores.softmax(-1)[..., :-1] @ wide[2].repeat_interleave(2, 1)
    result.square().sum().backward()
    found = qtorch.engines.attention(*given[:3], "exact", window=4, softcap=2.0, sinks=given[3])
    torch.testing.assert_close(found, result.float(), rtol=1e-5, atol=1e-6)
    found.backward(2 * result.detach().float())
    for x, y in zip(given, wide, strict=True):
        torch.testing.assert_close(x.grad, y.grad.float(), rtol=1e-4, atol=1e-5)


def test_what_caches_store():
    """By all caches with names, in one program of XLA."""
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 192)).astype(f)
    x *= f(2.0) ** np.random.default_rng(1).integers(-30, 12, (1, 2, 5, 1))
    namespaces = {"numpy": qcore.engines.arrays, "torch": qtorch.engines.tensors, "jax": qjax.engines.arrays}

    def all_of(package, x):
        namespace = namespaces[package].Attending
        with namespace.arithmetic():
            return [stored(namespace, one.cache, x, "k") for one in CACHES.values()]

    expected = all_of("numpy", x)
    by_torch, by_jax = all_of("torch", torch.from_numpy(x)), jax.jit(partial(all_of, "jax"))(x)
    for name, *found in zip(CACHES, expected, by_torch, by_jax, strict=True):
        assert_same_bits(found[1], found[0], f"torch, {name}")
        assert_same_bits(found[2], found[0], f"jax, {name}")


@pytest.mark.heavy
@pytest.mark.parametrize("engine", ENGINES_OF_ALL, ids=lambda engine: engine.text)
def test_the_same_bits_of_all(engine):
    for queries, keys, mask in ((1, 130, None), (130, 130, None), (7, 20, padded(2, 20))):
        if mask is None or engine.attention.splits is None:
            compare(engine, queries, keys, mask)


@pytest.mark.parametrize("engine", [PARTS, SCALED, TWO_SUMS], ids=lambda engine: engine.text)
def test_the_same_bits_in_torch(engine):
    arrays = arrays_of(70, 130)
    expected = qcore.engines.attention(*arrays, engine)
    assert_same_bits(qtorch.engines.attention(*map(torch.from_numpy, arrays), engine), expected, engine.text)


def test_compiled_programs():
    arrays = arrays_of(5, 40)
    expected = qcore.engines.attention(*arrays, CACHED)

    def loss(q, k, v):
        return qtorch.engines.attention(q * 1.0, k, v, CACHED) * 1.0

    tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(*tensors)
    assert_same_bits(found.detach(), expected, "torch.compile")
    compiled = torch.autograd.grad(found.sum(), tensors)
    eager = torch.autograd.grad(loss(*tensors).sum(), tensors)
    for x, y in zip(compiled, eager, strict=True):
        assert_same_bits(x, y, "gradients of torch.compile")
    program = jax.jit(lambda q, k, v: qjax.engines.attention(q * 1.0, k, v, CACHED))
    assert_same_bits(program(*arrays), expected, "jit")


def test_gradients_are_those_of_attention_at_the_rounded_operands():
    """Beside float64's, which torch differentiates."""
    q, k, v = (torch.from_numpy(x) for x in arrays_of(6, 9))
    mask = torch.from_numpy(padded(2, 9))
    rounded = [qtorch.quantize(x, "e4m3fn:saturate") for x in (q, k, v)]
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    wide = [x.double().requires_grad_() for x in rounded]
    causal = torch.ones(6, 9, dtype=torch.bool).tril(3) & mask
    scores = wide[0] @ wide[1].repeat_interleave(2, 1).mT / 32**0.5
    weights = scores.masked_fill(~causal, -1e30).softmax(-1) * causal
    (weights @ wide[2].repeat_interleave(2, 1)).square().sum().backward()
    gradient = 2 * (weights @ wide[2].repeat_interleave(2, 1)).detach().float()
    qtorch.engines.attention(*given, FP8, mask=mask).backward(gradient)
    for x, y in zip(given, wide, strict=True):
        torch.testing.assert_close(x.grad, y.grad.float(), rtol=1e-4, atol=1e-5)


def test_bfloat16_and_second_derivatives():
    q, k, v = (torch.from_numpy(x).bfloat16().requires_grad_() for x in arrays_of(6, 9))
    found = qtorch.engines.attention(q, k, v, "hf.eager")
    assert found.dtype is torch.bfloat16
    (gradient,) = torch.autograd.grad(found.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        gradient.sum().backward()


def test_transforms():
    q, k, v = map(torch.from_numpy, arrays_of(6, 9))

    def run(x):
        return qtorch.engines.attention(x, k, v, "exact")

    wanted = q.clone().requires_grad_()
    run(wanted).sum().backward()
    assert_same_bits(torch.func.grad(lambda x: run(x).sum())(q), wanted.grad, "torch.func.grad")
    with pytest.warns(UserWarning, match="batching rule"):  # one by one
        each = torch.func.vmap(lambda *x: qtorch.engines.attention(*x, "exact"))(q[:, None], k[:, None], v[:, None])
    assert_same_bits(each[:, 0], run(q), "torch.func.vmap")
    with pytest.raises(RuntimeError, match="forward mode AD"):  # a tangent of zeros would be silent
        torch.func.jvp(run, (q,), (q,))
    assert run(q.clone()).shape == q.shape
    with pytest.raises(ValueError, match=r"^q has shape"):
        qtorch.engines.attention(q.to("meta"), k.to("meta"), v[:, :, 1:].to("meta"), "exact")
