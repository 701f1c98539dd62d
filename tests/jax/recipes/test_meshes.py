"""Products on meshes with explicit axes, the default of `jax.make_mesh`: the bits of one device, and its shardings.

Gradients of sums are compared, not the sums: the order of sums that a model takes itself, as in softmax and in the
gradient of a bias, is XLA's, and differs among meshes.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import assert_same_bits

import qjax
from qcore import RECIPES, Entry, Recipe
from qjax import linalg
from qjax.recipes import first_scaling, lower

MESH = jax.make_mesh((2, 4), ("a", "b"))
RNG = np.random.default_rng(0)


def normal(*shape):
    return np.float32(0.3 * RNG.standard_normal(shape))


def everywhere(name):
    """A recipe's last entry, for all kinds of products."""
    last = RECIPES[name].entries[-1]
    kinds = ("linear", "conv", "attention", "matmul")
    return Recipe([Entry("*", kind, last.forward, last.grad_input, last.grad_weight) for kind in kinds])


def attention(p, x):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[name]) for name in "qkv")
    weights = jax.nn.relu(jnp.einsum("bthk,bshk->bhts", q, k))
    return jnp.einsum("bhts,bshk->bthk", weights, v)


def convolution(p, x):
    return jax.lax.conv_general_dilated(x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def in_parallel(p, x):
    """Two layers, of which the second sums over a sharded axis."""
    hidden = jnp.tanh(x @ p["u"])
    if jax.typeof(x).sharding.mesh.empty:
        return hidden @ p["w"]
    return jnp.matmul(hidden, p["w"], out_sharding=P("a", None))


def in_shards(p, x):
    if jax.typeof(x).sharding.mesh.empty:
        return jnp.tanh(x @ p["w"])
    return jax.shard_map(lambda p, x: jnp.tanh(x @ p["w"]), in_specs=(P(), P("a")), out_specs=P("a"))(p, x)


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = jnp.tanh(linen.Dense(32, use_bias=False)(x))
        return linen.Dense(16, use_bias=False)(x)


def of_linen(p, x):
    layers = {f"Dense_{i}": {"kernel": p[f"w{i}"]} for i in range(2)}
    return Net().apply({"params": layers}, x)


def of_nnx(p, x):
    graph, _ = nnx.split(nnx.Linear(32, 16, use_bias=False, rngs=nnx.Rngs(0)))
    return nnx.merge(graph, nnx.State({"kernel": nnx.Param(p["w"])}))(x)


def of_equinox(p, x):
    layer = eqx.nn.Linear(32, 16, use_bias=False, key=jax.random.key(0))
    return jax.vmap(eqx.tree_at(lambda one: one.weight, layer, p["w"].T))(x)


X = normal(8, 32)
PROGRAMS = {
    "data": (lambda p, x: x @ p["w"], {"w": (normal(32, 16), P())}, (X, P("a"))),
    "rows of w": (lambda p, x: x @ p["w"], {"w": (normal(32, 16), P("a"))}, (X, P("b"))),
    "columns of w": (lambda p, x: x @ p["w"], {"w": (normal(32, 16), P(None, "b"))}, (X, P("a"))),
    "w first": (lambda p, x: p["w"] @ x, {"w": (normal(16, 32), P("a"))}, (normal(32, 8), P(None, "b"))),
    "three axes": (lambda p, x: x @ p["w"], {"w": (normal(32, 16), P())}, (normal(4, 8, 32), P("a", "b"))),
    "experts": (
        lambda p, x: jnp.einsum("ebd,edf->ebf", x, p["w"]),
        {"w": (normal(2, 32, 16), P("a", None, "b"))},
        (normal(2, 8, 32), P("a")),
    ),
    "attention": (attention, {n: (normal(32, 4, 8), P(None, "b")) for n in "qkv"}, (normal(4, 8, 32), P("a"))),
    "convolution": (convolution, {"w": (normal(3, 3, 4, 8), P())}, (normal(4, 6, 6, 4), P("a"))),
    "in parallel": (
        in_parallel,
        {"u": (normal(32, 64), P(None, "b")), "w": (normal(64, 32), P("b"))},
        (X, P("a")),
    ),
    "shard_map": (in_shards, {"w": (normal(32, 16), P())}, (X, P("a"))),
    "scan": (
        lambda p, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["w"])[0],
        {"w": (normal(3, 32, 32), P(None, None, None))},
        (X, P("a")),
    ),
    "checkpoint": (jax.checkpoint(lambda p, x: jnp.tanh(x @ p["w"])), {"w": (normal(32, 16), P())}, (X, P("a"))),
    "vmap": (jax.vmap(lambda p, x: x @ p["w"], (None, 0)), {"w": (normal(32, 16), P())}, (normal(4, 8, 32), P("a"))),
    "linen": (of_linen, {"w0": (normal(32, 32), P()), "w1": (normal(32, 16), P())}, (X, P("a"))),
    "nnx": (of_nnx, {"w": (normal(32, 16), P(None, "b"))}, (X, P("a"))),
    "equinox": (of_equinox, {"w": (normal(32, 16), P())}, (X, P("a"))),
}
NAMES = [name for name in RECIPES if not name.endswith("_conv")]
QUICK = {("fp8_delayed", "shard_map")}
CASES = [
    pytest.param(recipe, program, marks=[] if (recipe, program) in QUICK else pytest.mark.heavy)
    for recipe in NAMES
    for program in PROGRAMS
]


def put(x, spec):
    return jax.device_put(x, NamedSharding(MESH, spec))


def compare(loss, arguments, specs):
    """Gradients of a loss with respect to all arguments, on one device and on the mesh."""
    expected = jax.jit(jax.grad(loss, tuple(range(len(arguments)))))(*arguments)
    with jax.set_mesh(MESH):
        placed = jax.tree.map(put, arguments, specs)
        found = jax.jit(jax.grad(loss, tuple(range(len(arguments)))))(*placed)
    for x, y, given in zip(*map(jax.tree.leaves, (found, expected, placed)), strict=True):
        assert_same_bits(np.asarray(x), np.asarray(y))
        assert x.sharding.is_equivalent_to(given.sharding, x.ndim)


@pytest.mark.filterwarnings("ignore:the recipe lowers")
@pytest.mark.parametrize(("recipe", "program"), CASES)
def test_gradients(recipe, program):
    fn, params, (x, spec) = PROGRAMS[program]
    lowered = lower(fn, everywhere(recipe))
    options = {"key": jax.random.key(0)} if RECIPES[recipe].stochastic else {}
    params, specs = ({name: one[i] for name, one in params.items()} for i in (0, 1))
    states = first_scaling(lowered, params, x) if RECIPES[recipe].delayed else ()

    def loss(params, x, states):
        said = options | ({"scaling": states} if states else {})
        return jnp.sum(jnp.sin(3 * lowered(params, x, **said)))

    compare(loss, (params, x, states), (specs, spec, jax.tree.map(lambda _: P(), states)))


KEPT = "operand(e4m3fn,scale=scale(history=2))"
DELAYED = {"operands": (KEPT, KEPT), "grad_input": f"product({KEPT},{KEPT})", "grad_weight": f"product({KEPT},{KEPT})"}
LOW = {"operands": ("mxfp8_e4m3", "mxfp8_e4m3")}
ATTENTION = {"is_causal": True, "scores": {"operands": ("e4m3fn",) * 2}, "output": {"operands": ("e4m3fn",) * 2}}
FUNCTIONS = {
    "matmul": (lambda a, b: linalg.matmul(a, b, **LOW), (normal(8, 64), P("a", "b")), (normal(64, 32), P("b"))),
    "bmm": (lambda a, b: linalg.bmm(a, b, **LOW), (normal(2, 8, 32), P("a")), (normal(2, 32, 8), P("a", None, "b"))),
    "linear": (
        lambda x, w: linalg.linear(x, w, jnp.ones(8), **LOW),
        (normal(4, 8, 32), P("a", "b")),
        (normal(8, 32), P()),
    ),
    "convolution": (
        lambda x, w: linalg.conv2d(x, w, jnp.ones(4), padding=1, operands=("e4m3fn",) * 2),
        (normal(4, 4, 6, 6), P("a")),
        (normal(4, 4, 3, 3), P("b")),
    ),
    "attention": (
        lambda q, k: linalg.scaled_dot_product_attention(q, k, k, **ATTENTION),
        (normal(2, 4, 8, 16), P("a", "b")),
        (normal(2, 4, 8, 16), P("a", "b")),
    ),
    "delayed": (
        lambda x, w: linalg.linear(x, w, scaling=linalg.first_scaling(2), **DELAYED),
        (normal(4, 8, 32), P("a")),
        (normal(8, 32), P("b")),
    ),
    "quantizer": (
        lambda x, w: qjax.quantizer(*["scaled(e4m3fn,{...:None},scale=float32,history=2)"] * 2, *["nearest"] * 2)(
            x, scaling=linalg.first_scaling(2)[:2]
        ),
        (normal(4, 8, 32), P("a", None, "b")),
        (normal(8), P()),
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("matmul", "quantizer") else pytest.mark.heavy) for name in FUNCTIONS],
)
def test_functions_of_linalg(name):
    fn, *pairs = FUNCTIONS[name]
    arguments, specs = zip(*pairs, strict=True)
    compare(lambda a, b: jnp.sum(jnp.sin(3 * fn(a, b))), arguments, specs)


def test_eager_calls():
    fn, w = lower(lambda p, x: x @ p["w"], RECIPES["mxfp8"]), {"w": normal(32, 16)}
    with jax.set_mesh(MESH):
        assert AxisType.Explicit in MESH.axis_types
        y = fn({"w": put(w["w"], P(None, "b"))}, put(X, P("a")))
    assert_same_bits(np.asarray(y), np.asarray(fn(w, X)))
    assert y.sharding.is_equivalent_to(NamedSharding(MESH, P("a", "b")), 2)
