"""A lowered function takes the arguments of its function and gives its results; what is wrong raises."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_auto_low_support import KEY, NEAREST, B, F, W, X, by_hand, identity, scan
from support import assert_same_bits

import qjax
from qcore import BlockFloatingPoint, Quantization, Rule
from qjax.recipes import lower

# The function's arguments and results


def test_arguments_and_results_are_those_of_fn():
    def fn(x, mode, /, *, model, scale=2.0, extra=None):
        assert (mode, scale, extra, model["name"]) == ("double", 3.0, None, "m")
        assert isinstance(model["f"](x), jax.core.Tracer)
        y = scale * model["f"](x @ model["w"])
        return {"y": (y, None), "static": [mode, model["f"], 7], "count": model["n"] + 1, "none": jnp.zeros((0, 3))}

    model = {"name": "m", "f": jax.nn.relu, "w": np.asarray(W), "n": jnp.arange(2)}
    result = lower(fn, forward_number=F, **NEAREST)(np.asarray(X), "double", model=model, scale=3.0)
    assert_same_bits(result["y"][0], 3 * jax.nn.relu(by_hand(forward_number=F, **NEAREST)(X @ W)))
    assert result["y"][1] is None
    assert result["static"] == ["double", jax.nn.relu, 7]
    assert result["count"].tolist() == [1, 2]
    assert result["none"].shape == (0, 3)


@pytest.mark.parametrize("key", [5, (0, 5), KEY, jax.random.key_data(KEY), np.uint32([0, 5])], ids=str)
def test_keys(key):
    lowered = lower(jnp.matmul, forward_number=F)
    assert_same_bits(lowered(X, W, key=key), by_hand(forward_number=F)(X @ W, 0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dtype):
    with jax.enable_x64(dtype == "float64"):
        x, w, b = (jnp.asarray(np.asarray(a), dtype) for a in (X, W, B))
        y = lower(lambda w, b, x: x @ w + b, forward_number=F)(w, b, x, key=KEY)
        assert y.dtype == dtype
        assert_same_bits(y, by_hand(forward_number=F)(x @ w + b, 0))


def test_blocks_and_weak_types():
    number = BlockFloatingPoint(3, 0)
    y = lower(lambda w, x: jax.vmap(lambda x: w @ x)(x), forward_number=number, **NEAREST)(W, X)
    assert_same_bits(y, qjax.quantize(X @ W.T, number, "nearest"))  # a block for each example
    y = lower(lambda w, x: (x @ w).reshape(2, 6), forward_number=number, **NEAREST)(W, X)
    assert_same_bits(y, qjax.quantize(X @ W, number, "nearest").reshape(2, 6))

    def weak(x):
        carry, ys = jax.lax.scan(lambda c, _: (jnp.tanh(c), c), x, length=2)
        assert carry.weak_type
        y = jax.lax.cond(x > 0, jnp.tanh, lambda c: c, carry)
        return carry, *ys, y, jax.lax.while_loop(lambda c: c > 2, jnp.tanh, 3 * x)

    assert [*map(float, jax.jit(lower(weak, ["activation"], F, **NEAREST))(1.0))] == [0.75, 1, 0.75, 0.75, 1]


def test_jit_traces_once_and_eager_calls_see_what_changed():
    traces, scale = [], [1.0]

    def fn(x):
        traces.append(x)
        return scale[0] * (x @ W)

    lowered = lower(fn, forward_number=F)
    jitted = jax.jit(lowered)
    first = [jitted(X, key=jax.random.key(seed)) for seed in range(3)]
    assert len(traces) == 1
    assert (first[0] != first[1]).any()
    assert_same_bits(lowered(X, key=KEY), by_hand(forward_number=F)(X @ W, 0))
    scale[0] = 2.0
    assert_same_bits(lowered(X, key=KEY), 2 * by_hand(forward_number=F)(X @ W, 0))


def test_static_arguments_and_donated_buffers():
    def fn(x, power, w=W):
        return (x @ w) ** power

    f = jax.jit(lower(fn, forward_number=F, **NEAREST), static_argnames="power", donate_argnums=0)
    donated = X + 0
    with pytest.warns(UserWarning, match="donated"):
        y = f(donated, 3, w=W[:, :2])
    assert_same_bits(y, by_hand(forward_number=F, **NEAREST)(X @ W[:, :2]) ** 3)
    inner = jax.jit(lambda x: x @ W, donate_argnums=0)
    assert_same_bits(lower(inner, forward_number=F, **NEAREST)(X), by_hand(forward_number=F, **NEAREST)(X @ W))
    assert not X.is_deleted()


def test_effects_stay(capfd):
    def fn(x):
        jax.debug.print("product {p}", p=x[0] @ W[0])
        return jax.lax.scan(lambda c, _: (jax.debug.print("in scan"), (c @ W, None))[1], x, length=2)[0]

    lower(fn, forward_number=F, **NEAREST)(X).block_until_ready()
    jax.effects_barrier()
    q = by_hand(forward_number=F, **NEAREST)
    assert capfd.readouterr().out == f"product {q(X[0] @ W[0])}\nin scan\nin scan\n"


# Wrong calls

GROUPS_LISTED = "conv, linear, embedding, pool, pad, activation, normalization"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layer_types": ["conv", "rnn"]}, ValueError, f"layer_types has 'rnn'; allowed are {GROUPS_LISTED}"),
        ({"layer_types": "conv"}, TypeError, f"layer_types='conv' is a str; allowed is a list of {GROUPS_LISTED}"),
        ({"layer_types": [int]}, TypeError, "layer_types has <class 'int'>, a type; allowed are conv"),
        ({"rules": [Rule(layer_type="rnn")]}, ValueError, "rules' layer_type has 'rnn'; allowed are conv"),
        ({"rules": [Rule(layer_type=int)]}, TypeError, "rules' layer_type has <class 'int'>, a type; allowed are conv"),
        ({"rules": ["conv"]}, TypeError, "rules has 'conv', a str; allowed are Rule"),
        ({"rules": Rule()}, TypeError, "is a Rule; allowed is a list of Rule"),
        ({"forward_number": "e9m9"}, ValueError, "forward_number"),
        ({"weight_number": 8}, TypeError, "weight_number"),
        ({"weight_rounding": "up and down"}, ValueError, "weight_rounding"),
        ({"backward_rounding": "up and down"}, ValueError, "backward_rounding"),
        ({"fn": 3}, TypeError, "fn=3 is a int; allowed is a function or a module"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error) as caught:
        lower(**{"fn": jnp.matmul} | arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"forward_number": F},
        {"forward_number": F, "forward_rounding": "nearest", "backward_number": F},
        {"weight_number": F, "weight_rounding": "stochastic"},
        {"rules": [Rule("b", "linear", Quantization(F))]},
    ],
)
def test_stochastic_rounding_needs_a_key(arguments):
    with pytest.raises(ValueError, match="needs a key"):
        lower(jnp.matmul, **arguments)(X, W)
    lower(jnp.matmul, **arguments)(X, W, key=3)
    nearest = lower(scan(identity), forward_number=F, **NEAREST)
    assert str(jax.make_jaxpr(partial(nearest, key=3))(W, X)) == str(jax.make_jaxpr(nearest)(W, X))
    with pytest.raises(ValueError, match="key"):
        lower(jnp.matmul, forward_number=F, **NEAREST)(X, W, key=-3)


@pytest.mark.parametrize(
    "again",
    [
        lambda f: f,
        jax.jit,
        lambda f: lambda x, w: f(x, w),
        lambda f: lambda x, w: jax.lax.scan(lambda x, _: (f(x, w), None), x, length=2)[0],
        lambda f: jax.grad(lambda x, w: jax.jit(f)(x, w).sum()),
        lambda f: jax.vmap(f, (0, None)),
    ],
)
def test_lowering_twice(again):
    f = lower(jnp.matmul, forward_number=F, **NEAREST)
    jax.jit(f)(X, W)
    with pytest.raises(ValueError, match="lower once, with rules="):
        lower(again(f), forward_number=F, **NEAREST)(X, W)
    with pytest.raises(ValueError, match="fn is lowered"):
        lower(f)


def test_layers_out_of_reach():
    """An error that a rule avoids, rather than a layer that is left as it is in silence."""

    @jax.custom_batching.custom_vmap
    def f(x):
        return x @ W

    f.def_vmap(lambda size, batched, x: (f(x), batched[0]))
    fn = jax.named_scope("odd")(lambda x: f(x))
    with pytest.raises(ValueError, match="custom_vmap_call in scope 'odd' holds layers"):
        lower(fn, forward_number=F, **NEAREST)(X)
    assert_same_bits(lower(fn, forward_number=F, **NEAREST, rules=[Rule("odd")])(X), X @ W)
    with pytest.warns(UserWarning, match=r"match no layer, so nothing is lowered; the layers are 'odd' \(linear\)"):
        assert_same_bits(lower(fn, ["conv"], forward_number=F, **NEAREST)(X), X @ W)
    with pytest.raises(ValueError, match=r"rules match no layer; the layers are 'odd' \(linear\)"):
        lower(fn, rules=[Rule("even")])(X)


def test_nothing_of_flax_or_equinox_is_imported():
    program = "import sys, qjax.recipes; print([n for n in ('flax', 'equinox', 'torch') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
