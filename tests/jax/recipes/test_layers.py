"""What a layer is, of which group, and which sums are its bias."""

from functools import partial

import flax.linen as linen
import jax
import jax.numpy as jnp
import pytest
from covering import usually
from jax_auto_low_support import NEAREST, B, F, G, W, X, by_hand, identity, integers
from support import assert_same_bits

import qjax
from qjax.recipes import GROUPS, lower

IMAGE = 1.37 * integers((1, 6, 6, 2), 4)

LAYERS = {
    "conv": ("conv", lambda x, q: q(jax.lax.conv(x, jnp.ones((3, 6, 2, 2)), (1, 1), "VALID"))),
    "linear": ("linear", lambda x, q: q(jnp.einsum("bijk,bilk->bijl", x, x))),
    "embedding": ("embedding", lambda x, q: q(x[0, jnp.argmax(x[0, :, 0, 0], keepdims=True)])),
    "max pool": ("pool", lambda x, q: q(linen.max_pool(x, (2, 2)))),
    "average pool": ("pool", lambda x, q: q(linen.avg_pool(x, (2, 2), padding="SAME", count_include_pad=False))),
    "max pool and a division": ("pool", lambda x, q: q(linen.max_pool(x, (2, 2))) / 3),
    "sum pool": (
        "pool",
        lambda x, q: 7 / q(jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1,) * 4, "VALID")),
    ),
    "pad": ("pad", lambda x, q: q(jnp.pad(x, 1, mode="reflect"))),
    "tanh": ("activation", lambda x, q: q(jnp.tanh(x))),
    "relu": ("activation", lambda x, q: q(jax.nn.relu(x))),
    "silu": ("activation", lambda x, q: q(jax.nn.silu(x))),
    "hard_swish": ("activation", lambda x, q: q(jax.nn.hard_swish(x))),
    "softplus": ("activation", lambda x, q: q(jax.nn.softplus(x))),
    "log_softmax": ("activation", lambda x, q: q(jax.nn.log_softmax(x))),
    "jitted softmax": ("activation", lambda x, q: q(jax.jit(jax.nn.softmax)(x))),
    "standardize": ("normalization", lambda x, q: q(jax.nn.standardize(x))),
}


# As other pools and "relu".
ALIKE = ("sum pool", "average pool", "max pool and a division", "tanh", "silu", "hard_swish", "softplus")


@pytest.mark.parametrize("name", usually([name for name in LAYERS if name not in ALIKE], LAYERS))
@pytest.mark.filterwarnings("ignore:layer_types match no layer")
def test_groups(name):
    group, program = LAYERS[name]
    arguments = {"forward_number": F, "backward_number": G} | NEAREST
    expected, plain = jax.jit(partial(program, q=qjax.quantizer(**arguments))), jax.jit(partial(program, q=identity))
    others = [other for other in GROUPS if other != group]
    assert_same_bits(jax.jit(lower(plain, [group], **arguments))(IMAGE), expected(IMAGE))
    assert_same_bits(jax.jit(lower(plain, others, **arguments))(IMAGE), plain(IMAGE))
    assert (expected(IMAGE) != plain(IMAGE)).any()
    gradient = jax.jit(jax.grad(lambda f, x: (1.3 * f(x)).sum(), argnums=1), static_argnums=0)
    assert_same_bits(gradient(lower(plain, [group], **arguments), IMAGE), gradient(expected, IMAGE))


@pytest.mark.parametrize(
    ("group", "program"),
    [
        ("embedding", lambda x: jnp.take_along_axis(x * x, jnp.int32(x[:1] > 0), 1)),  # of a computed value
        pytest.param(
            "embedding",
            lambda x: x[0, 2, jnp.arange(2)] + jax.lax.dynamic_slice(x, (0, 0, 0, 0), (1, 1, 2, 2)),
            marks=pytest.mark.heavy,
        ),
        ("pool", lambda x: linen.avg_pool(jnp.ones((1, 4, 4, 1)), (2, 2)) * 3.3 + x[0, 0, 0, 0]),  # of constants
        ("linear", lambda x: x + (jnp.ones((5, 3)) @ jnp.ones(3)).sum()),
        ("activation", lambda x: x + jax.lax.fori_loop(0, 2, lambda i, c: jnp.tanh(c), 1.0)),
        ("linear", lambda x: jnp.int8(x[0, 0]).T @ jnp.int8(x[0, 0])),  # no format's carrier
        pytest.param(
            "linear", lambda x: jnp.linalg.solve(x[0, :2, 0] + 9 * jnp.eye(2), x[0, 0, :2]), marks=pytest.mark.heavy
        ),  # the solver's own
        pytest.param(
            "activation", lambda x: jax.nn.softmax(x) + jax.nn.gelu(x, approximate=False), marks=pytest.mark.heavy
        ),
    ],
)
def test_no_layers(group, program):
    lowered = lower(program, [group], F, **NEAREST)
    with pytest.warns(UserWarning, match="layer_types match no layer"):
        assert_same_bits(lowered(IMAGE), program(IMAGE))
    lowered(IMAGE)  # warns once


Q = by_hand(forward_number=F, **NEAREST)
BIASES = {
    "vector": (lambda w, b, x: x @ w + b, lambda w, b, x: Q(x @ w + b)),
    "first": (lambda w, b, x: b + x @ w, lambda w, b, x: Q(b + x @ w)),
    "one example": (lambda w, b, x: w @ x[0] + b, lambda w, b, x: Q(w @ x[0] + b)),
    "transposed": (lambda w, b, x: (w @ x.T).T + b, lambda w, b, x: Q((w @ x.T).T + b)),
    "heads": (
        lambda w, b, x: (x @ w).reshape(3, 2, 2) + b.reshape(2, 2),
        lambda w, b, x: Q((x @ w).reshape(3, 2, 2) + b.reshape(2, 2)),
    ),
    "captured": (lambda w, b, x: x @ w + B, lambda w, b, x: Q(x @ w + B)),
    "of a stack": (lambda w, b, x: x @ w + jnp.stack([b, b])[1], lambda w, b, x: Q(x @ w) + b),
    "in a stack": (lambda w, b, x: x @ w + w[1], lambda w, b, x: Q(x @ w + w[1])),
    "computed": (lambda w, b, x: x @ w + 2 * b, lambda w, b, x: Q(x @ w) + 2 * b),
    "constant": (lambda w, b, x: x @ w + 0.5, lambda w, b, x: Q(x @ w) + 0.5),
    "residual": (lambda w, b, x: x @ w + x, lambda w, b, x: Q(x @ w) + x),
    "used twice": (lambda w, b, x: (lambda y: y + b + y)(x @ w), lambda w, b, x: (lambda y: y + b + y)(Q(x @ w))),
    "of a jitted function": (lambda w, b, x: x @ w + jax.jit(jnp.negative)(b), lambda w, b, x: Q(x @ w) - b),
    "through jit": (lambda w, b, x: x @ w + jax.jit(jnp.ravel)(b), lambda w, b, x: Q(x @ w + b)),
    "moved and used twice": (
        lambda w, b, x: (lambda y: y + b[:2] + y)((x @ w).reshape(3, 2, 2)),
        lambda w, b, x: (lambda y: y + b[:2] + y)(Q(x @ w).reshape(3, 2, 2)),
    ),
    "second": (lambda w, b, x: x @ w + b + b, lambda w, b, x: Q(x @ w + b) + b),
    "subtracted": (lambda w, b, x: x @ w - b, lambda w, b, x: Q(x @ w) - b),
    "widening": (lambda w, b, x: (x @ w)[:, 0] + x, lambda w, b, x: Q(x @ w)[:, 0] + x),
    "widening a row": (lambda w, b, x: (x[:1] @ w) + x, lambda w, b, x: Q(x[:1] @ w) + x),
    "two products": (lambda w, b, x: x @ w + x @ w.T + b, lambda w, b, x: Q(x @ w) + Q(x @ w.T) + b),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases(name):
    program, expected = BIASES[name]
    x = X[:, :4] if name not in ("widening",) else integers((3, 3), 6)
    w = W if name != "widening" else integers((3, 4), 7)
    assert_same_bits(lower(program, forward_number=F, **NEAREST)(w, B, x), expected(w, B, x))
