"""Which weights are rounded, and what rules say of which scope and group."""

from functools import partial

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_auto_low_support import (
    KEY,
    STOCHASTIC,
    F,
    G,
    W,
    X,
    by_hand,
    identity,
    integers,
    rounded_weight,
    value_and_gradients,
)
from support import assert_same_bits, assert_same_trees

import qjax
from qcore import Quantization, Rule
from qjax.recipes import lower

W7, X7 = integers((4, 4), 7, 20), integers((3, 4), 8, 20)
WEIGHTS = {
    "second of two": (lambda x, w: x @ w, (X7, W7), lambda r, x, w: x @ r(w)),
    "the one of a container": (lambda p, x: p["w"] @ x, ({"w": W7}, X7[0]), lambda r, p, x: r(p["w"]) @ x),
    "of the earlier container": (
        lambda p, b: p["w"] @ b["x"],
        ({"w": W7}, {"x": X7[0]}),
        lambda r, p, b: r(p["w"]) @ b["x"],
    ),
    "captured": (lambda x: W7 @ x, (X7[0],), lambda r, x: r(W7) @ x),
    "captured NumPy": (lambda x: jnp.dot(np.asarray(W7), x), (X7[0],), lambda r, x: r(W7) @ x),
    "no carrier": (
        lambda p, x: jnp.matmul(jnp.int8(p["w"]), jnp.int8(x), preferred_element_type=jnp.float32),
        ({"w": W7}, X7[0]),
        lambda r, p, x: jnp.matmul(jnp.int8(p["w"]), jnp.int8(x), preferred_element_type=jnp.float32),
    ),
    "a container's, not captured data": (lambda p: p[0] @ X7[0], ([W7],), lambda r, p: r(p[0]) @ X7[0]),
    "not computed": (lambda w, x: jax.nn.relu(x) @ w, (W7, X7), lambda r, w, x: jax.nn.relu(x) @ r(w)),
    "no weight": (lambda x: jnp.square(x) @ jnp.square(x).T, (X7,), lambda r, x: jnp.square(x) @ jnp.square(x).T),
    "no layer's output": (
        lambda w, x: (lambda y: y @ y.T)(jnp.square(x) @ w),
        (W7, X7),
        lambda r, w, x: (lambda y: y @ y.T)(jnp.square(x) @ r(w)),
    ),
    "slice, cast": (
        lambda w, x: jnp.square(x) @ jnp.reshape(w[:, 1:3].astype(jnp.bfloat16), (4, 2)),
        (W7, X7),
        lambda r, w, x: jnp.square(x) @ r(w[:, 1:3].astype(jnp.bfloat16)),
    ),
    "kernel": (
        lambda k, x: jax.lax.conv(x, k, (1,), "SAME"),
        (integers((2, 3, 2), 1, 20), X7[None, :, :]),
        lambda r, k, x: jax.lax.conv(x, r(k), (1,), "SAME"),
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name):
    program, args, expected = WEIGHTS[name]
    lowered = lower(program, weight_number=F)
    y, gradients = value_and_gradients(lowered)(*args)
    assert_same_trees((y, gradients), value_and_gradients(partial(expected, rounded_weight))(*args))
    assert name in ("no weight", "no carrier") or (y != program(*args)).any()


def test_weights_have_a_word_of_their_own_and_come_with_outputs():
    def program(p, x):
        return jax.lax.scan(lambda x, w: (x @ w + p["b"], None), x @ p["w"][0], p["w"])[0]

    p = {"w": jnp.stack([W7, W7 + 1]), "b": integers(4, 3)}
    arguments = {"forward_number": G, "backward_number": F} | STOCHASTIC
    lowered = lower(program, **arguments, weight_number="e4m3fn", weight_rounding="stochastic")
    q, r = by_hand(**arguments), partial(rounded_weight, rounding="stochastic", number="e4m3fn")

    def expected(p, x):
        x = q(x @ r(p["w"][0], 0, 2), 0)
        for i in range(2):
            x = q(x @ r(p["w"][i], 1, i, 0, 2) + p["b"], 1, i, 0)
        return x

    actual = jax.jit(value_and_gradients(partial(lowered, key=KEY)))(p, X)
    assert_same_trees(actual, jax.jit(value_and_gradients(expected))(p, X))


def outputs(number):
    return Quantization(number, None, "nearest", "nearest")


class Named(linen.Module):
    @linen.compact
    def __call__(self, x, q):
        x = q(linen.Dense(4, name="first")(x), "first")
        x = linen.Dense(4, name="second")(q(jnp.tanh(x), "activation"))
        head = jax.named_scope("inner")(lambda x: x @ W7)
        with jax.named_scope("outer"):
            x = jax.jit(lambda x: jax.lax.scan(lambda x, _: (q(head(x), "inner"), None), x, length=2)[0])(x)
            x = q(jax.vmap(head)(x), "inner")
        return q(jax.nn.relu(q(x @ W, "others")), "activation")


def test_the_first_rule_that_matches_counts_and_may_say_nothing():
    x = integers((4, 4), 4, 2)
    shapes = jax.eval_shape(lambda: Named().init(jax.random.key(0), x, identity))
    params = jax.tree.map(lambda p: integers(p.shape, p.size), shapes)
    numbers = {"first": G, "inner": F, "activation": "e2m1fn", "others": "int2"}
    rules = [
        Rule("Named.first", "linear", outputs(G)),
        Rule("Named.second"),
        Rule("Named.f*", None, outputs("int2")),
        Rule("*.outer.inner", None, outputs(F)),
        Rule("*", "activation", outputs("e2m1fn")),
    ]
    lowered = lower(Named().apply, ["linear"], "int2", forward_rounding="nearest", rules=rules)
    quantizers = {name: qjax.quantizer(number, None, "nearest") for name, number in numbers.items()}
    expected = Named().apply(params, x, lambda y, name: quantizers[name](y))
    assert_same_bits(lowered(params, x, identity), expected)
