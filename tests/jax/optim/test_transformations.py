"""low_precision under JAX's transformations, killed and resumed, and among optax's wrappers."""

import pickle

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_optim_support import F8, F16, KEY, ROUNDED, G, P, train, tree
from support import assert_same_bits, assert_same_trees

import qcore
from qjax import quantizer
from qjax.optim import accumulators, adamw_8bit, adamw_fp8, apply_updates, low_precision, muon


def few(values):
    """Two leaves, as each shape is programs of its own."""
    return tree({name: values[name] for name in "ad"})


@pytest.mark.heavy
def test_scan_is_a_loop_and_states_may_be_donated():
    tx = low_precision(optax.sgd(0.1, 0.9), acc_quant=quantizer(F16), momentum_quant=F8, key=KEY)
    grads = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(few, G))

    def step(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (apply_updates(params, updates, state), state), None

    (params, state), _ = jax.lax.scan(step, (few(P), tx.init(few(P))), grads)
    donating = jax.jit(step, donate_argnums=0)
    start = few(P)
    carry = start, tx.init(start)
    for index in range(len(G)):
        carry, _ = donating(carry, few(G[index]))
    assert_same_trees(carry, (params, state))
    carry, _ = step((few(P), tx.init(few(P))), few(G[0]))
    donating(carry, few(G[1]))


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_models_side_by_side():
    tx = low_precision(optax.sgd(0.1, 0.9), weight_quant=quantizer(F8), momentum_quant=quantizer(F16), key=1)
    models = [few(P), jax.tree.map(lambda p: 2 * p, few(P))]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)

    def step(params, grads):
        state = tx.init(params)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates, state), state

    rows = jax.jit(jax.vmap(step, in_axes=(0, None)))(together, few(G[0]))
    for index, params in enumerate(models):
        alone = jax.jit(step)(params, few(G[0]))
        assert_same_trees(jax.tree.map(lambda x, index=index: x[index], rows), alone)


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_chains_frozen_parameters_and_extra_arguments():
    model = equinox.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    weights, static = equinox.partition(model, equinox.is_inexact_array)
    weights = equinox.tree_at(lambda tree: tree.layers[0].bias, weights, None, is_leaf=lambda x: x is None)

    def update(updates, state, params, *, value, **_):
        return jax.tree.map(lambda u: u * value, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    tx = optax.chain(optax.clip(0.5), low_precision(inner, weight_quant="tf32"))
    grads = jax.tree.map(lambda x: jnp.full_like(x, 3), weights)
    updates, state = jax.jit(tx.update)(grads, tx.init(weights), weights, value=-2)
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


def test_wrong_use_of_optimizers_in_codes():
    tx, params = adamw_8bit(0.1), {"w": jnp.ones(3)}
    state = tx.init(params)
    wrong = [
        (lambda: tx.init({"w": 1.0}), "params has a float; allowed are float32"),
        (lambda: tx.step(params, {"w": jnp.ones(3, jnp.complex64)}, state), "updates has an array of complex64"),
        (lambda: tx.step(params, {}, state), "updates has another structure than params"),
        (
            lambda: tx.step(params, params, optax.adam(0.1).init(params)),
            "state is a tuple; allowed is a CodedAdamState",
        ),
        (lambda: adamw_8bit(0.1, amsgrad=True).step(params, params, state), "state.largest has another structure"),
        (
            lambda: tx.step(params, params, adamw_8bit(0.1, amsgrad=True).init(params)),
            "state.largest is of an optimizer",
        ),
        (
            lambda: tx.step(jnp.ones(4096), jnp.ones(4096), adamw_fp8().init(jnp.ones(4096))),
            "state.first has a CodedFloat8; allowed is a CodedArray",
        ),
        (lambda: adamw_8bit(jnp.ones(2)), "learning_rate has shape"),
        (
            lambda: jax.jit(lambda rest: adamw_8bit(0.1, eps=rest).init(params))(0.1),
            "eps is traced; .* in static_args of",
        ),
        (lambda: muon(0.1, momentum=2.0), "momentum=2.0; allowed is a number from 0 to below 1"),
        (lambda: muon(0.1, operands="e4m3fm"), "operands"),
    ]
    for call, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    static = ("betas", "eps", "weight_decay", "block_size")
    injected = optax.inject_hyperparams(adamw_8bit, static_args=static)(0.1)
    assert_same_trees(injected.update(params, injected.init(params), params)[0], tx.update(params, state, params)[0])
