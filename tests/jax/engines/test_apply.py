"""Functions with `jax.nn.dot_product_attention`, and flax's attention, by an engine."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from qjax.engines import Engine, KVCache, apply, attention, report
from qjax.recipes import lower

ENGINE = "hf.eager"
f = np.float32


def arrays(queries=9, keys=9):
    rng = np.random.default_rng(0)
    shapes = [(2, queries, 4, 16), (2, keys, 2, 16), (2, keys, 2, 16)]
    return [jnp.asarray(rng.standard_normal(shape).astype(f)) for shape in shapes]


@jax.jit
def expected(q, k, v, mask):
    moved = [jnp.swapaxes(x, 1, 2) for x in (q, k, v)]
    return jnp.swapaxes(attention(*moved, ENGINE, False, mask=mask), 1, 2)


@pytest.mark.heavy
def test_a_jitted_function_that_was_traced_before():
    """A trap: its program has JAX's attention, and after the call it must have that again."""
    given, early = arrays(5), jnp.tril(jnp.ones((5, 9), bool))[None, None]
    program = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
    before, function = program(*given), jax.nn.dot_product_attention
    exchanged = apply(program, ENGINE)
    for _ in range(2):  # traced, and found again
        assert (exchanged(*given) == expected(*given, early)).all()
    assert (jax.jit(exchanged)(*given) == expected(*given, early)).all()
    assert not (before == expected(*given, early)).all()
    assert (program(*given) == before).all()
    assert jax.nn.dot_product_attention is function


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_shapes_and_dtypes(others):
    q, k, v = arrays()
    mask = jnp.ones((2, 1, 9, 9), bool).at[0, :, :, :3].set(False)
    run = jax.jit(apply(lambda *x: jax.nn.dot_product_attention(*x, mask=mask), ENGINE))
    assert (run(q, k, v) == expected(q, k, v, mask)).all()
    if not others:
        return
    halves = run(*(x.astype(jnp.bfloat16) for x in (q, k, v)))
    assert halves.dtype == jnp.bfloat16
    alone = apply(lambda *x: jax.nn.dot_product_attention(*x), ENGINE)(q[0], k[0], v[0])
    assert (alone == expected(q, k, v, None)[0]).all()


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flax, where weights are sown
def test_flax_attention():
    layer = nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 6, 16)).astype(f))
    mask = nnx.make_causal_mask(jnp.ones((2, 6)))
    found = apply(layer, ENGINE)(x, mask=mask)
    causal = jax.jit(lambda *x: attention(*x, ENGINE))
    inner = causal(*(jnp.swapaxes(part(x), 1, 2) for part in (layer.query, layer.key, layer.value)))
    assert (found == layer.out(jnp.swapaxes(inner, 1, 2))).all()
    dropping = nnx.MultiHeadAttention(4, 16, decode=False, dropout_rate=0.1, rngs=nnx.Rngs(0))
    for options, one in (({"deterministic": True}, dropping), ({"sow_weights": True}, layer)):
        with pytest.raises(ValueError, match="flax computes its attention without"):  # beside one that an engine has
            apply(lambda x, one=one, options=options: one(layer(x), mask=mask, **options), ENGINE)(x)
    assert one(x, mask=mask, sow_weights=True).shape == x.shape  # flax's own is as before


def test_linen():
    """Its own attention has einsums; that of nnx is the engine's there, too."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1, 3, 4)).astype(f))
    layer = linen.MultiHeadDotProductAttention(1, attention_fn=nnx.dot_product_attention)
    weights = layer.init(jax.random.key(0), x, x)
    found = apply(partial(layer.apply, weights), "exact")(x, x)
    np.testing.assert_allclose(found, layer.apply(weights, x, x), atol=1e-5)
    with pytest.raises(ValueError, match=r"in linen attention_fn=flax\.nnx\.dot_product_attention"):
        apply(partial(linen.MultiHeadDotProductAttention(1).apply, weights), "exact")(x, x)


def test_a_cache_of_flax_that_is_full():
    """Flax would write over its last token."""
    layer, x = nnx.MultiHeadAttention(1, 4, decode=True, rngs=nnx.Rngs(0)), jnp.ones((1, 1, 4))
    layer.init_cache((1, 2, 4))
    step = apply(layer, "exact")
    assert jnp.isfinite(step(x)).all()
    program = nnx.jit(lambda layer, x: apply(layer, "exact")(x))
    assert jnp.isfinite(program(layer, x)).all()
    with pytest.raises(ValueError, match="the cache of flax's attention has 2 tokens, and all are written"):
        step(x)
    assert jnp.isnan(program(layer, x)).all()
    layer = linen.MultiHeadDotProductAttention(1, decode=True, attention_fn=nnx.dot_product_attention)
    weights = layer.init(jax.random.key(0), jnp.ones((1, 2, 4)), jnp.ones((1, 2, 4)))
    step = apply(partial(layer.apply, mutable=["cache"]), "exact")
    for _ in range(2):
        found, changed = step(weights, x, x)
        weights |= changed
        assert jnp.isfinite(found).all()
    with pytest.raises(ValueError, match="the cache of flax's attention has 2 tokens, and all are written"):
        step(weights, x, x)
    assert jnp.isnan(jax.jit(step)(weights, x, x)[0]).all()


@pytest.mark.heavy
def test_decoding_by_flax():
    """Its cache is longer than the text, and what was not written is zeros beside a mask."""
    layer = nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 6, 16)).astype(f))
    engine = replace(Engine.of("exact"), cache="fp8_per_token_head")
    whole = apply(layer, engine)(x, mask=nnx.make_causal_mask(jnp.ones((2, 6))))
    layer.init_cache((2, 10, 16))
    step = apply(partial(layer, decode=True), engine)
    for place in range(6):
        assert (step(x[:, place : place + 1])[:, 0] == whole[:, place]).all()


@pytest.mark.heavy
def test_a_window_is_a_mask_where_keys_are_one_block():
    given = arrays()
    near = jnp.tril(jnp.ones((9, 9), bool)) & ~jnp.tril(jnp.ones((9, 9), bool), -4)
    found = apply(lambda *x: jax.nn.dot_product_attention(*x, is_causal=True, local_window_size=3), ENGINE)(*given)
    assert (found == expected(*given, near[None, None])).all()


@pytest.mark.heavy
def test_a_window_of_tiles():
    given, engine = arrays(), "engine(attention(tiles=[64,16,16],window_tiles=[64,4,4]))"

    def run(mask, **options):
        return apply(lambda *x: jax.nn.dot_product_attention(*x, mask=mask, **options), engine)(*given)

    for mask, causal in ((None, False), (jnp.ones((1, 1, 9, 9), bool), True)):
        with pytest.raises(ValueError, match="local_window_size=3 of dot_product_attention, and the engine has tiles"):
            run(mask, is_causal=causal, local_window_size=3)
    moved = [jnp.swapaxes(x, 1, 2) for x in given]
    expected = jnp.swapaxes(attention(*moved, engine, window=4), 1, 2)
    assert (run(None, is_causal=True, local_window_size=(3, 0)) == expected).all()


@pytest.mark.parametrize("options", [{"bias": jnp.zeros((1, 4, 9, 9))}])
def test_what_engines_do_not_define_raises(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} of dot_product_attention is given; allowed is None"):
        apply(lambda *x: jax.nn.dot_product_attention(*x, **options), ENGINE)(*arrays())


def test_several_texts_in_a_row_and_caches_that_are_not_causal_raise():
    packed = jnp.asarray(np.kron(np.eye(2, dtype=bool), np.ones((4, 4), bool)))[None, None]
    with pytest.raises(ValueError, match="several texts in one row"):
        apply(lambda *x: jax.nn.dot_product_attention(*x, mask=packed), "fa3.hopper.bf16")(*arrays(8, 8))
    with pytest.raises(ValueError, match="depend on later tokens"):
        apply(len, Engine("attention()", KVCache("nvfp4")))
    with pytest.raises(TypeError, match="function is a int"):
        apply(3, ENGINE)


def test_what_jax_has_no_hook_for_is_said():
    def run(x, w):
        return jax.nn.dot_product_attention(x, x, x @ w)

    with pytest.warns(UserWarning, match="activations: norms alone are rounded: .*; residual: JAX has no hook for it"):
        found = apply(run, "vllm.triton")
    assert [row.field for row in report(found).undefined] == [
        "activations",
        "residual",
        "tables",
        "head",
    ]
    x, w = arrays()[0], jnp.eye(16) + 0.01
    engine = replace(Engine.of(ENGINE), products="bf16_mixed", on="hopper")
    lowered = apply(lower(run, engine.products, on="hopper"), ENGINE)
    assert (apply(run, engine)(x, w) == lowered(x, w)).all()
    assert not (apply(run, ENGINE)(x, w) == lowered(x, w)).all()
    with pytest.raises(ValueError, match="function has no engine"):
        report(run)
