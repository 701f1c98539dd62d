"""qjax.optim: each quantity of a step against its definition in NumPy, and weights that are exact."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from covering import some
from jax_optim_support import F8, F16, LARGE, ROUNDED, SHAPES, G, P, role_key, train, tree
from support import assert_same_bits, assert_same_trees, bits

import qcore
from qjax import BlockFloatingPoint, Rounding, quantizer
from qjax.optim import accumulators, low_precision
from qjax.optim.low_precision import difference, quantize_arrays

random = np.random.default_rng(1)
NEAREST = {"weight_quant": "e5m2", "grad_quant": F8, "momentum_quant": quantizer(F16, None, "nearest")}


def recorded(tx, record):
    """An optimizer that notes what it is given and what it returns."""

    def update(updates, state, params=None):
        steps, after = tx.update(updates, state, params)
        jax.debug.callback(lambda *values: record.append(values), updates, params, state, steps, after)
        return steps, after

    return optax.GradientTransformation(tx.init, update)


def tensors(state):
    """The state tensors of the optimizers below, in the order of their names."""
    moments = state[0]
    return [moments.trace] if hasattr(moments, "trace") else [moments.mu, moments.nu]


SGD, ADAMW = optax.sgd(0.1, momentum=0.9), optax.adamw(0.01)


@pytest.mark.parametrize(
    ("optimizer", "compiled"),
    [
        pytest.param(SGD, False, id="sgd", marks=pytest.mark.heavy),
        pytest.param(ADAMW, True, id="adamw-compiled"),
        pytest.param(SGD, True, id="sgd-compiled", marks=pytest.mark.heavy),
        pytest.param(ADAMW, False, id="adamw", marks=pytest.mark.heavy),
    ],
)
def test_a_step_is_its_definition(optimizer, compiled):
    record, start, gradients = [], P, G
    if compiled:
        start = P | {name: np.float32(random.standard_normal(shape)) for name, shape in LARGE.items()}
        gradients = [grads | {name: np.float32(random.standard_normal(LARGE[name])) for name in LARGE} for grads in G]
    tx = low_precision(recorded(optimizer, record), **ROUNDED)
    params, state, kept = tree(start), tx.init(tree(start)), start
    momentum = tensors(state.inner)
    for step, grads in enumerate(gradients):
        params, state = train(tx, params, state, [grads], compiled=compiled)
        jax.effects_barrier()
        given, before, inner, steps, after = record[step]

        def rounded(arrays, role, number, step=step):
            return {
                n: qcore.quantize(np.asarray(x), number, "stochastic", key=role_key(step, role, n))
                for n, x in arrays.items()
            }

        assert_same_trees(given, rounded({n: g * np.float32(0.37) for n, g in grads.items()}, 0, F8))
        assert_same_trees(before, kept)
        assert_same_trees(tensors(inner), momentum)
        kept = rounded({n: kept[n] + np.asarray(steps[n]) for n in kept}, 1, F16)
        momentum = [rounded(tensor, 3 + index, F16) for index, tensor in enumerate(tensors(after))]
        assert_same_trees(accumulators(state), kept)
        assert_same_trees(params, rounded(kept, 2, F8))
        assert_same_trees(tensors(state.inner), momentum)
        assert state.step == step + 1


def test_numbers_and_names_round_to_nearest_and_weights_without_accumulators_to_themselves():
    tx = low_precision(optax.sgd(0.5, momentum=1.0), **NEAREST)
    params, state = train(tx, tree(P), tx.init(tree(P)), G[:1])
    grad = {name: qcore.quantize(np.asarray(G[0][name]), F8, "nearest") for name in SHAPES}
    assert_same_trees(params, {n: qcore.quantize(np.asarray(P[n] - grad[n] / 2), "e5m2", "nearest") for n in SHAPES})
    assert_same_trees(
        tensors(state.inner), [{n: qcore.quantize(np.asarray(grad[n] + 0), F16, "nearest") for n in SHAPES}]
    )
    assert state.accumulators is None
    assert state.key is None


def test_sums_are_rounded_where_they_are_written():
    """Although XLA contracts a product and a sum to one operation."""
    p, g = np.float32(random.standard_normal((2, 5000)))
    tx = low_precision(optax.sgd(0.1))
    assert_same_bits(train(tx, jnp.asarray(p), tx.init(p), [g])[0], p + g * np.float32(-0.1))
    tx = low_precision(optax.stateless(lambda updates, params: updates + params), grad_scaling=0.37)
    assert_same_bits(train(tx, jnp.asarray(p), tx.init(p), [g])[0], p + (g * np.float32(0.37) + p))


def test_functions_and_blocks():
    number = BlockFloatingPoint(8, 0)
    tx = low_precision(optax.sgd(1.0), weight_quant=lambda x: 2 * x, grad_quant=number, acc_quant=jnp.floor)
    arrays = [{name: x for name, x in values.items() if name != "d"} for values in (P, G[0])]  # which has no dimension
    params, state = train(tx, tree(arrays[0]), tx.init(tree(arrays[0])), arrays[1:])
    kept = {n: np.floor(P[n] - qcore.quantize(G[0][n], number, "nearest")) for n in arrays[0]}
    assert_same_trees(accumulators(state), kept)
    assert_same_trees(params, jax.tree.map(lambda x: 2 * x, kept))


def test_accumulators_in_full_precision():
    tx = low_precision(optax.sgd(1.0), weight_quant="e5m2", acc_quant=quantizer())
    params, state = train(tx, jnp.float32([1.1]), tx.init(jnp.float32([1.1])), [np.float32([0.3])])
    assert_same_bits(accumulators(state), np.float32([1.1]) - np.float32([0.3]))
    assert_same_bits(params, np.float32([0.75]))


def exists(p, q):
    """Whether p + d is q for a float d near q - p, in NumPy's arithmetic; and whether d is subnormal."""
    unsigned, near = f"u{p.dtype.itemsize}", q - p
    found = bits(p) == bits(q)
    for step in range(-4, 5):
        d = (bits(near) + np.array(step, "i8").astype(unsigned)).view(p.dtype)
        found |= bits(p + d) == bits(q)
    return found, near


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of overflow
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float16, marks=pytest.mark.heavy), ml_dtypes.bfloat16])
def test_differences_are_exact_wherever_a_float_is(dtype):
    size = 50000
    unsigned = f"u{np.dtype(dtype).itemsize}"
    smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
    p = random.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), size, unsigned).view(dtype)
    p[::2] = (random.standard_normal(size // 2) * 2.0 ** random.integers(-8, 3, size // 2)).astype(dtype)
    q = (p.astype(float) * random.standard_normal(size) * 2.0 ** random.integers(-20, 20, size)).astype(dtype)
    q[::3] = (random.choice([-1, 1], q[::3].size) * 2.0 ** random.integers(-14, 14, q[::3].size)).astype(dtype)
    q[1::9] = p[1::9]
    found, near = exists(p, q)
    subnormal = [(x != 0) & (abs(x) < dtype(smallest)) for x in (p, q, near)]  # XLA flushes these
    normal = ~np.any([*subnormal, np.isnan(p)], axis=0)  # and NaNs may become quiet
    plain = bits(p + near) == bits(q)
    for call in (difference, jax.jit(difference)):
        d = call(jnp.asarray(p), jnp.asarray(q))
        assert_same_bits(np.asarray(d)[plain & normal & (p != q)], near[plain & normal & (p != q)])
        reached = optax.apply_updates(jnp.asarray(p), d)
        exact = bits(reached) == bits(q)
        assert exact[found & normal].all()
        assert 0.2 < exact.mean() < 0.9
    assert (found & normal & ~plain).sum() > 10  # the rounded difference alone would not do


# p, and a weight to which it shall go although p + (q - p) does not
UNREACHABLE = np.float32([[1, 1e-9], [0.5, -0.0], [0.0, -0.0], [-3, 1e-40], [1e-45, 1.0], [np.inf, 2], [3e38, -3e38]])
REACHABLE = np.float32([[-0.0, -0.0], [-0.0, 0.0], [np.inf, np.inf], [1, np.inf], [1, 0.3], [1e-45, 1e-45]])


@pytest.mark.parametrize("compiled", [pytest.param(False, marks=pytest.mark.heavy), True])
def test_weights_are_exact_with_our_apply_updates_and_kept_by_the_state_with_optaxs(compiled):
    p, q = np.concatenate([UNREACHABLE, REACHABLE]).T
    tx = low_precision(optax.sgd(1.0), weight_quant=lambda _: jnp.asarray(q), acc_quant=lambda _: jnp.asarray(p) + 1)
    grads = [np.zeros_like(p)]
    params, state = train(tx, jnp.asarray(p), tx.init(p), grads, compiled=compiled)
    assert_same_bits(params, q)
    assert_same_bits(state.weights, q)
    written, other = train(tx, jnp.asarray(p), tx.init(p), grads, optax.apply_updates, compiled)
    assert_same_trees(other, state)
    assert_same_bits(written[len(UNREACHABLE) : -1], q[len(UNREACHABLE) : -1])
    assert (bits(written)[: len(UNREACHABLE)] != bits(q)[: len(UNREACHABLE)]).sum() >= 6
    seen = []
    tx = low_precision(recorded(optax.sgd(1.0), seen), acc_quant=lambda x: x)
    for start in (params, written):
        train(tx, start, state._replace(inner=tx.init(p).inner), grads, compiled=compiled)
    jax.effects_barrier()
    for _, starts, *_ in seen:
        assert_same_bits(starts, state.accumulators)


@pytest.mark.heavy
def test_both_apply_updates_give_the_same_training():
    tx = low_precision(optax.adam(0.3), weight_quant=quantizer("bfloat16"), acc_quant=quantizer("tf32"), key=1)
    ours = train(tx, tree(P), tx.init(tree(P)), G * 4)
    optaxs = train(tx, tree(P), tx.init(tree(P)), G * 4, optax.apply_updates)
    assert_same_trees(ours[1], optaxs[1])
    assert_same_trees(ours[0], ours[1].weights)


def test_accumulators_follow_weights_changed_from_outside():
    tx = low_precision(optax.sgd(0.0), weight_quant="e5m2", acc_quant="tf32")
    params, state = train(tx, tree(P), tx.init(tree(P)), G[:1])
    loaded = dict(params, a=jnp.full((3, 200), 1.1), c=params["c"].at[2].set(-2.7), b=jnp.array(params["b"]))
    kept = {name: np.array(x) for name, x in accumulators(state).items()}
    kept |= {"a": qcore.quantize(np.full((3, 200), 1.1, np.float32), "tf32", "nearest")}
    kept["c"][2] = qcore.quantize(np.float32([-2.7]), "tf32", "nearest")[0]
    params, state = train(tx, loaded, state, G[:1])
    assert_same_trees(accumulators(state), kept)
    assert_same_trees(params, {name: qcore.quantize(x, "e5m2", "nearest") for name, x in kept.items()})


MODES = [Rounding.NEAREST, Rounding.STOCHASTIC]


@some((0, 1), (1, 0), number=[F8, BlockFloatingPoint(6), BlockFloatingPoint(4, 0)], mode=MODES)
def test_rounding_together_is_rounding_one_by_one(number, mode):
    shapes = [(3, 5), (700,), (3, 5), (0, 4), (0, 4), (1, 1), (300, 250), (700,)]
    arrays = [np.float32(random.standard_normal(shape)) for shape in shapes]
    keys = random.integers(0, 2**32, (len(arrays), 2), np.uint32)
    results = jax.jit(quantize_arrays, static_argnums=(1, 2))([jnp.asarray(x) for x in arrays], number, mode, keys)
    for x, y, key in zip(arrays, results, keys.tolist(), strict=True):
        assert_same_bits(y, qcore.quantize(x, number, mode, key=key))


def test_rounding_together_keeps_dtypes():
    arrays = [jnp.full(3, 1.1, dtype) for dtype in (jnp.bfloat16, jnp.float32, jnp.bfloat16)]
    for x, y in zip(arrays, quantize_arrays(arrays, F8, Rounding.NEAREST, None), strict=True):
        assert_same_bits(y, qcore.quantize(np.asarray(x), F8, "nearest"))


def test_a_number_without_dimensions_is_a_block():
    optimizer = low_precision(optax.sgd(1.0, momentum=0.9), "mxfp4", "mxfp4", momentum_quant="nvfp4")
    params = {"a": jnp.float32(1.5), "b": jnp.full(1, 1.5)}
    updates, _ = optimizer.update(jax.tree.map(lambda x: x * 0.5, params), optimizer.init(params), params)
    assert updates["a"].shape == ()
    assert updates["a"] == updates["b"][0] != 0
