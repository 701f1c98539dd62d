"""States of qjax.optim are trees of arrays, whose tensors are found; wrong arguments and calls raise."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from jax_optim_support import F8, F16, KEY, SHAPES, G, P, role_key, train, tree
from support import assert_same_bits, assert_same_trees

import qcore
import qjax
from qjax import quantizer
from qjax.optim import LowPrecisionState, accumulators, apply_updates, low_precision
from qjax.optim.state import state_tensors


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
    found = {(t.parameter, t.index): places[t.leaf] for t in state_tensors(optimizer, state, params)}
    assert found == {(p, i): name + owners[p] for p in range(len(owners)) for i, name in enumerate(names)}


def test_masked_state_tensors_and_several_of_one_name():
    params = {"x": {"y": jnp.ones(3), "w": jnp.ones(2)}, "z": jnp.ones((2, 2))}
    optimizer = optax.masked(optax.trace(0.9), {"x": False, "z": True})
    assert state_tensors(optimizer, optimizer.init(params), params) == [(0, 2, 0, "trace")]
    optimizer = optax.sm3(0.1)
    assert [t.index for t in state_tensors(optimizer, optimizer.init(params), params) if t.parameter == 2] == [0, 1, 2]


@pytest.mark.heavy
def test_momenta_of_lbfgs():
    """optax's own search for parts fails there; the parameters' paths are in its state, behind a memory's axis."""
    p = {"x": {"w": jnp.linspace(0.3, 2.7, 4)}, "w": jnp.linspace(-1.1, 1.3, 10)}

    def loss(p):
        return (p["x"]["w"] ** 2).sum() + (p["w"] ** 4).sum()

    def run(tx, steps=2):
        state = tx.init(p)
        for _ in range(steps):
            value, grad = jax.value_and_grad(loss)(p)
            _, state = tx.update(grad, state, p, value=value, grad=grad, value_fn=loss)
        return state

    search = optax.lbfgs()
    found = [t.name for t in state_tensors(search, search.init(p), p) if t.parameter == 0]
    assert found == ["diff_params_memory", "diff_updates_memory", "grad", "params", "updates"]
    wide, rounded = run(search, 1), run(low_precision(search, momentum_quant="float(6,9)"), 1).inner
    owned = {t.leaf for t in state_tensors(search, wide, p)}
    for leaf, (x, y) in enumerate(zip(jax.tree.leaves(wide), jax.tree.leaves(rounded), strict=True)):
        expected = qcore.quantize(np.asarray(x), "float(6,9)", "nearest") if leaf in owned else np.asarray(x)
        assert_same_bits(y, expected)
    assert len(owned) == 10


@pytest.mark.parametrize("optimizer", [optax.flatten(optax.adam(0.1))], ids=["flatten"])
def test_momenta_that_cannot_be_found_are_refused_and_the_rest_works(optimizer):
    p = {"w": jnp.ones(4)}
    with pytest.raises(ValueError, match=r"momentum_quant with an optimizer whose state .*; allowed is momentum_q"):
        low_precision(optimizer, momentum_quant=F16).init(p)

    def loss(p):
        return (p["w"] ** 2).sum()

    tx, told = low_precision(optimizer, weight_quant="e5m2"), {"value": loss(p), "grad": jax.grad(loss)(p)}
    updates, state = tx.update(jax.grad(loss)(p), tx.init(p), p, **told, value_fn=loss)
    steps, _ = optax.with_extra_args_support(optimizer).update(
        jax.grad(loss)(p), optimizer.init(p), p, **told, value_fn=loss
    )
    weights = qcore.quantize(np.asarray(p["w"] + steps["w"]), "e5m2", "nearest")
    assert_same_bits(apply_updates(p, updates, state)["w"], weights)


def shampoo(params_of_state):
    """A momentum, and a list of factors for each parameter, whose container `params_of_state` makes of one by name."""

    def factors(x):
        return [jnp.full((size, size), 1 / 3, jnp.float32) for size in x.shape]

    def init(params):
        return {"momentum": jax.tree.map(jnp.ones_like, params), "GG": params_of_state(factors, params)}

    def update(updates, state, params=None):
        return updates, jax.tree.map(lambda x: x * 1.1, state)

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(lambda make, params: jax.tree.map(make, params), marks=pytest.mark.heavy),
        pytest.param(lambda make, params: [make(x) for x in jax.tree.leaves(params)], marks=pytest.mark.heavy),
        lambda make, params: [{"left": make(x)[0], "right": (make(x)[-1],)} for x in jax.tree.leaves(params)],
    ],
    ids=["tree", "list", "dictionaries"],
)
@pytest.mark.parametrize(
    "params",
    [
        {"a": np.ones(3, np.float32), "b": np.ones((4, 3), np.float32)},
        pytest.param(np.ones((4, 3)), marks=pytest.mark.heavy),
    ],
)
def test_states_in_containers_are_rounded(container, params):
    params = jax.tree.map(jnp.float32, params)
    tx = low_precision(shampoo(container), momentum_quant=qjax.quantizer(F8), key=KEY)
    _, state = jax.jit(tx.update)(params, tx.init(params), params)
    # Each belongs to its parameter, and has its key.
    tensors = state_tensors(shampoo(container), state.inner, params)
    leaves = jax.tree.leaves(state.inner)
    assert len(tensors) == len(leaves)
    wide = jax.tree.leaves(jax.tree.map(lambda x: x * 1.1, tx.init(params).inner))
    for one in tensors:
        key = qcore.fold_in(qcore.fold_in(qcore.fold_in(KEY, 0), 3 + one.index), one.parameter)
        assert_same_bits(leaves[one.leaf], qcore.quantize(np.asarray(wide[one.leaf]), F8, "stochastic", key=key))


def test_matrices_of_no_parameter_are_named():
    def init(params):
        return {"momentum": params, "rotation": jnp.eye(5)}

    def update(updates, state, params=None):
        return updates, state

    tx = low_precision(optax.GradientTransformation(init, update), momentum_quant=F16)
    with pytest.warns(UserWarning, match="momentum_quant leaves rotation of the optimizer's state as it is"):
        tx.init({"a": jnp.ones(3), "b": jnp.ones(2)})


def test_complex_parameters_are_refused():
    with pytest.raises(TypeError, match=r"params has 'b\.w' of complex64; allowed are real arrays"):
        low_precision(optax.sgd(0.1), F8).init({"a": jnp.ones(3), "b": {"w": jnp.ones(3, jnp.complex64)}})


@pytest.mark.heavy
def test_bfloat16_parameters():
    tx = low_precision(optax.sgd(0.1), weight_quant=quantizer(F8), acc_quant=F16, key=KEY)
    start = jax.tree.map(lambda p: jnp.asarray(p, jnp.bfloat16), P)
    params, state = train(tx, start, tx.init(start), [jax.tree.map(lambda g: g.astype(ml_dtypes.bfloat16), G[0])])
    weights = {
        n: qcore.quantize(np.asarray(accumulators(state)[n]), F8, "stochastic", key=role_key(0, 2, n)) for n in SHAPES
    }
    assert {x.dtype for x in weights.values()} == {np.dtype(np.float32)}
    assert_same_trees(params, {name: x.astype(ml_dtypes.bfloat16) for name, x in weights.items()})


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


def test_states_are_not_names_of_the_package():
    assert not hasattr(qjax, "LowPrecisionState")
