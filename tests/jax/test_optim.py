"""qjax.optim: each quantity of a step against its definition in NumPy; exact weights; states that are read and kept."""

import functools
import pickle
import subprocess
import sys

import equinox
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from support import assert_same_bits, bits

import qcore
import qjax
from qjax import BlockFloatingPoint, FloatingPoint, Rounding, quantizer
from qjax.optim import LowPrecisionState, accumulators, apply_updates, low_precision
from qjax.optim.exact import difference
from qjax.optim.momentum import state_tensors
from qjax.optim.together import quantize_all

F8, F16 = FloatingPoint(5, 2), FloatingPoint(6, 9)
KEY = 2**32 + 7
random = np.random.default_rng(0)
SHAPES = {"b": (5,), "a": (3, 200), "c": (5,), "d": ()}
LARGE = {"large": (2, 40000)}
P = {name: np.float32(random.standard_normal(shape)) for name, shape in SHAPES.items()}
G = [{name: np.float32(random.standard_normal(shape)) for name, shape in SHAPES.items()} for _ in range(3)]
NUMBER = {name: number for number, name in enumerate(sorted(SHAPES | LARGE))}
ROUNDED = {"weight_quant": quantizer(F8), "grad_quant": quantizer(F8, F16), "acc_quant": quantizer(F16)}
ROUNDED |= {"momentum_quant": quantizer(F16), "grad_scaling": 0.37, "key": KEY}
NEAREST = {"weight_quant": "e5m2", "grad_quant": F8, "momentum_quant": quantizer(F16, None, "nearest")}


def tree(values):
    return jax.tree.map(jnp.asarray, values)


def role_key(step, role, name):
    return qcore.fold_in(qcore.fold_in(qcore.fold_in(KEY, step), role), NUMBER[name])


def assert_same_trees(actual, expected):
    actual, expected = (jax.tree_util.tree_flatten_with_path(x) for x in (actual, expected))
    assert actual[1] == expected[1]
    for (path, x), (_, y) in zip(actual[0], expected[0], strict=True):
        assert_same_bits(x, y, jax.tree_util.keystr(path))


@functools.cache
def step_of(tx, apply, compiled):
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return apply(params, updates, *([state] if apply is apply_updates else [])), state

    return jax.jit(step) if compiled else step


def train(tx, params, state, gradients, apply=apply_updates, compiled=True):
    for grads in gradients:
        params, state = step_of(tx, apply, compiled)(params, state, tree(grads))
    return params, state


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


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", [optax.sgd(0.1, momentum=0.9), optax.adamw(0.01)], ids=["sgd", "adamw"])
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
            return {n: qcore.quantize(np.asarray(x), number, key=role_key(step, role, n)) for n, x in arrays.items()}

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
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
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


@pytest.mark.parametrize("compiled", [False, True])
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


@pytest.mark.parametrize("number", [F8, BlockFloatingPoint(6), BlockFloatingPoint(4, 0)], ids=str)
@pytest.mark.parametrize("mode", [Rounding.NEAREST, Rounding.STOCHASTIC])
def test_rounding_together_is_rounding_one_by_one(number, mode):
    shapes = [(3, 5), (700,), (3, 5), (0, 4), (0, 4), (1, 1), (300, 250), (700,)]
    arrays = [np.float32(random.standard_normal(shape)) for shape in shapes]
    keys = random.integers(0, 2**32, (len(arrays), 2), np.uint32)
    results = jax.jit(quantize_all, static_argnums=(1, 2))([jnp.asarray(x) for x in arrays], number, mode, keys)
    for x, y, key in zip(arrays, results, keys.tolist(), strict=True):
        assert_same_bits(y, qcore.quantize(x, number, mode, key=key))


def test_rounding_together_keeps_dtypes():
    arrays = [jnp.full(3, 1.1, dtype) for dtype in (jnp.bfloat16, jnp.float32, jnp.bfloat16)]
    for x, y in zip(arrays, quantize_all(arrays, F8, Rounding.NEAREST, None), strict=True):
        assert_same_bits(y, qcore.quantize(np.asarray(x), F8, "nearest"))


def test_scan_is_a_loop_and_states_may_be_donated():
    tx = low_precision(optax.sgd(0.1, 0.9), acc_quant=quantizer(F16), momentum_quant=F8, key=KEY)
    grads = jax.tree.map(lambda *leaves: jnp.stack(leaves), *G)

    def step(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (apply_updates(params, updates, state), state), None

    (params, state), _ = jax.lax.scan(step, (tree(P), tx.init(tree(P))), grads)
    donating = jax.jit(step, donate_argnums=0)
    start = tree(P)
    carry = start, tx.init(start)
    for index in range(len(G)):
        carry, _ = donating(carry, tree(G[index]))
    assert_same_trees(carry, (params, state))
    carry, _ = step((tree(P), tx.init(tree(P))), tree(G[0]))
    donating(carry, tree(G[1]))


def test_kill_and_resume(tmp_path):
    def fresh():
        tx = low_precision(optax.adam(0.01), **ROUNDED)
        return tx, tree(P), tx.init(tree(P))

    tx, params, state = fresh()
    whole = train(tx, params, state, G * 2)
    params, state = train(tx, params, state, G)
    np.savez(tmp_path / "state.npz", *jax.tree.leaves((params, state)))
    (tmp_path / "state.pkl").write_bytes(pickle.dumps(jax.tree.map(np.asarray, (params, state))))
    del params, state
    tx, params, state = fresh()
    saved = np.load(tmp_path / "state.npz")
    restored = jax.tree.unflatten(jax.tree.structure((params, state)), [jnp.asarray(saved[name]) for name in saved])
    for params, state in (restored, pickle.loads((tmp_path / "state.pkl").read_bytes())):
        assert_same_trees(train(tx, params, state, G), whole)


def test_models_side_by_side():
    tx = low_precision(optax.sgd(0.1, 0.9), weight_quant=quantizer(F8), momentum_quant=quantizer(F16), key=1)
    models = [tree(P), jax.tree.map(lambda p: 2 * p, tree(P))]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)

    def step(params, grads):
        state = tx.init(params)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates, state), state

    rows = jax.jit(jax.vmap(step, in_axes=(0, None)))(together, tree(G[0]))
    for index, params in enumerate(models):
        alone = jax.jit(step)(params, tree(G[0]))
        assert_same_trees(jax.tree.map(lambda x, index=index: x[index], rows), alone)


def test_parts_of_the_parameters():
    rounded = {"acc_quant": "tf32", "weight_quant": quantizer(F8), "momentum_quant": F8, "key": 3}
    scaled = {"acc_quant": "tf32", "weight_quant": "e4m3fn"}
    groups = {"adam": low_precision(optax.adam(0.1), **rounded), "sgd": low_precision(optax.sgd(0.1), **scaled)}
    tx = optax.partition(
        groups | {"frozen": optax.set_to_zero()}, {"a": "adam", "b": "sgd", "c": "frozen", "d": "adam"}
    )
    params, state = train(tx, tree(P), tx.init(tree(P)), G)
    expected = {"c": P["c"]}
    kept = {"c": optax.MaskedNode()}
    for group, names in (("adam", "ad"), ("sgd", "b")):
        part = {name: jnp.asarray(P[name]) for name in names}
        grads = [{name: step[name] for name in names} for step in G]
        trained, own = train(groups[group], part, groups[group].init(part), grads)
        expected |= trained
        kept |= accumulators(own)
    assert_same_trees(params, expected)
    assert_same_trees(accumulators(state), kept)


def test_chains_frozen_parameters_and_extra_arguments():
    model = equinox.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    weights, static = equinox.partition(model, equinox.is_inexact_array)
    weights = equinox.tree_at(lambda tree: tree.layers[0].bias, weights, None, is_leaf=lambda x: x is None)

    def update(updates, state, params, *, value, **_):
        return jax.tree.map(lambda u: u * value, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = optax.chain(optax.clip(0.5), low_precision(inner, weight_quant="tf32"))
    grads = jax.tree.map(lambda x: jnp.full_like(x, 3), weights)
    updates, state = tx.update(grads, tx.init(weights), weights, value=-2)
    after = apply_updates(weights, updates, state)
    expected = jax.tree.map(lambda x: qcore.quantize(np.asarray(x) - 1, "tf32", "nearest"), weights)
    assert after.layers[0].bias is None
    assert_same_trees(after, expected)
    equinox.combine(after, static)


def test_steps_that_wait_keep_weights_changed_from_outside():
    tx = optax.MultiSteps(low_precision(optax.sgd(1.0), weight_quant="e5m2", acc_quant="tf32"), 2)
    params, state = jnp.float32([1.1]), tx.init(jnp.float32([1.1]))
    updates, state = tx.update(jnp.float32([0.5]), state, params)
    assert_same_bits(apply_updates(params, updates, state), params)
    loaded = jnp.float32([3.3])
    updates, state = tx.update(jnp.float32([1.5]), state, loaded)
    params = apply_updates(loaded, updates, state)
    assert_same_bits(params, np.float32([2.5]))
    updates, state = tx.update(jnp.float32([0.5]), state, jnp.float32([7.7]))
    assert_same_bits(apply_updates(jnp.float32([7.7]), updates, state), np.float32([7.7]))


def with_counts(params):
    return {"mean": params, "counts": jax.tree.map(lambda p: jnp.zeros(p.shape, int), params)}


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (optax.sgd(0.1), []),
        (optax.GradientTransformation(with_counts, optax.sgd(0.1).update), ["['mean']"]),
        (optax.sgd(0.1, momentum=0.9), ["[0].trace"]),
        (optax.amsgrad(0.1), ["[0].mu", "[0].nu", "[0].nu_max"]),
        (optax.rmsprop(0.1, centered=True, momentum=0.9), ["[0].mu", "[0].nu", "[2].trace"]),
        (
            optax.chain(optax.scale_by_adam(), optax.trace(0.9), optax.ema(0.9)),
            ["[2].ema", "[0].mu", "[0].nu", "[1].trace"],
        ),
        (optax.chain(optax.trace(0.9), optax.trace(0.8)), ["[0].trace", "[1].trace"]),
        (optax.inject_hyperparams(optax.adam)(0.1), [".inner_state[0].mu", ".inner_state[0].nu"]),
        (optax.adafactor(0.1), ["[0].v", "[0].v_col", "[0].v_row"]),
    ],
)
@pytest.mark.parametrize(
    "params", [{"x": {"y": np.ones((2, 3), np.float32)}, "z": np.ones(2, np.float32)}, np.float32(1)]
)
def test_state_tensors(optimizer, names, params):
    params = jax.tree.map(jnp.float32, params)
    state = optimizer.init(params)
    places = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    owners = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    found = {(t.parameter, t.index): places[t.place] for t in state_tensors(optimizer, state, params)}
    assert found == {(p, i): name + owners[p] for p in range(len(owners)) for i, name in enumerate(names)}


def test_masked_state_tensors_and_several_of_one_name():
    params = {"x": {"y": jnp.ones(3), "w": jnp.ones(2)}, "z": jnp.ones((2, 2))}
    optimizer = optax.masked(optax.trace(0.9), {"x": False, "z": True})
    assert state_tensors(optimizer, optimizer.init(params), params) == [(0, 2, 0)]
    optimizer = optax.sm3(0.1)
    assert [t.index for t in state_tensors(optimizer, optimizer.init(params), params) if t.parameter == 2] == [0, 1, 2]


def test_bfloat16_parameters():
    tx = low_precision(optax.sgd(0.1), weight_quant=quantizer(F8), acc_quant=F16, key=KEY)
    start = jax.tree.map(lambda p: jnp.asarray(p, jnp.bfloat16), P)
    params, state = train(tx, start, tx.init(start), [jax.tree.map(lambda g: g.astype(ml_dtypes.bfloat16), G[0])])
    weights = {n: qcore.quantize(np.asarray(accumulators(state)[n]), F8, key=role_key(0, 2, n)) for n in SHAPES}
    assert_same_trees(params, weights)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tx": "sgd"}, TypeError, ["tx='sgd'", "GradientTransformation"]),
        ({"weight_quant": 8}, TypeError, ["weight_quant=8", "Number"]),
        ({"acc_quant": "e5m2x"}, ValueError, ["acc_quant='e5m2x'"]),
        ({"grad_scaling": "1"}, TypeError, ["grad_scaling='1'", "above 0"]),
        ({"grad_scaling": True}, TypeError, ["grad_scaling=True", "above 0"]),
        ({"grad_scaling": 0}, ValueError, ["grad_scaling=0", "above 0"]),
        ({"grad_scaling": float("nan")}, ValueError, ["grad_scaling=nan", "above 0"]),
        ({"momentum_quant": quantizer(F8)}, ValueError, ["key=None", "momentum_quant"]),
        ({"key": -1}, ValueError, ["key=-1"]),
    ],
)
def test_wrong_arguments(change, error, words):
    with pytest.raises(error) as raised:
        low_precision(**({"tx": optax.sgd(0.1)} | change))
    assert all(word in str(raised.value) for word in words)


def test_wrong_calls():
    p = jnp.ones(3)
    tx = low_precision(optax.sgd(0.1), weight_quant=lambda x: x.sum())
    with pytest.raises(ValueError, match=r"params=None"):
        tx.update(p, tx.init(p))
    with pytest.raises(ValueError, match=r"weight_quant made float32\[\] of float32\[3\]"):
        tx.update(p, tx.init(p), p)
    with pytest.raises(ValueError, match="acc_quant"):
        accumulators(tx.init(p))
    with pytest.raises(ValueError, match="without low_precision"):
        apply_updates(p, p, optax.sgd(0.1).init(p))


def test_keys_of_all_kinds_and_states_are_arrays():
    states = [low_precision(optax.sgd(0.1), key=key).init(tree(P)) for key in (KEY, (1, 7), jax.random.key(KEY))]
    assert_same_trees(states[0].key, np.uint32([1, 7]))
    assert_same_trees(states[0], states[1])
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(states[0]))
    assert isinstance(states[0], LowPrecisionState)
    with jax.enable_x64(True):
        assert_same_bits(low_precision(optax.sgd(0.1), key=jax.random.key(KEY)).init(P).key, np.uint32([1, 7]))


def test_importing_qjax_imports_neither_optax_nor_flax():
    program = "import sys, qjax; print({'optax', 'flax', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "set()"
    assert not hasattr(qjax, "LowPrecisionState")
