"""States of delayed scales that are used several times: the next state has the largest magnitudes of all uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from support import assert_same_bits

import qjax
from qcore import RECIPES
from qjax import linalg
from qjax.linalg import ScalingState
from qjax.recipes import first_scaling, lower

W = {"w": jnp.ones((32, 4))}
XS = jnp.stack([jnp.full((8, 32), 2.0), jnp.full((8, 32), 4.0), jnp.full((8, 32), 3.0)])
LOWERED = lower(lambda w, x: jnp.mean((x @ w["w"]) ** 2), RECIPES["fp8_delayed"])
STATES = first_scaling(LOWERED, W, XS[0])


def loss(x, states):
    return LOWERED(W, x, scaling=states)


def scan(f, states):
    return jax.lax.scan(lambda total, x: (total + f(x, states), None), 0.0, XS)[0]


PROGRAMS = {
    "sum": lambda f, s: f(XS[0], s) + f(XS[1], s) + f(XS[2], s),
    "scan": scan,
    "vmap": lambda f, s: jax.vmap(lambda x: f(x, s))(XS).sum(),
    "vmaps": lambda f, s: jax.vmap(jax.vmap(lambda x: f(x, s)))(XS[None]).sum(),
    "vmap of the states": lambda f, s: jax.vmap(f, (0, None))(XS, s).sum(),
    "map": lambda f, s: jax.lax.map(lambda x: f(x, s), XS).sum(),
    "map in batches": lambda f, s: jax.lax.map(lambda x: f(x, s), XS, batch_size=2).sum(),
    "carried": lambda f, s: jax.lax.scan(lambda c, x: ((c[0] + f(x, c[1]), c[1]), None), (0.0, s), XS)[0][0],
    "checkpoint": lambda f, s: scan(jax.checkpoint(f), s),
    "calls of jit": lambda f, s: PROGRAMS["sum"](jax.jit(f), s),
    "cond": lambda f, s: sum(jax.lax.cond(x[0, 0] > 2.5, f, lambda x, s: 0.0, x, s) for x in XS),
}
AROUND = {
    "grad": jax.grad,
    "jit": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "vjp": lambda f: lambda states: jax.vjp(f, states)[1](jnp.float32(1))[0],
    "checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
}
QUICK = {("scan", "jit")}


@pytest.mark.parametrize(
    ("program", "around"),
    [
        pytest.param(program, around, marks=[] if (program, around) in QUICK else pytest.mark.heavy)
        for program in PROGRAMS
        for around in AROUND
    ],
)
def test_uses_of_a_state_are_one_step(program, around):
    (after,) = AROUND[around](lambda states: PROGRAMS[program](loss, states))(STATES)
    assert isinstance(after, ScalingState)
    # mean((x w)^2), of 32 elements each: the gradient of the product is 2 * 32 x / 32 for inputs x and weights of 1
    expected = np.zeros((3, 1025), np.float32)
    expected[:, :2] = [[448 / 4, 4], [448 / 1, 1], [57344 / 8, 8]]
    assert_same_bits(np.asarray(after), expected)


def test_states_that_are_not_used_stay():
    states = [ScalingState(np.float32([[2, 1, 0]] * 3))]
    kept = "operand(e4m3fn,scale=scale(history=2))"
    said = {"operands": (kept, kept), "grad_input": f"product({kept},{kept})", "grad_weight": f"product({kept},{kept})"}

    def branch(state, x):
        return jax.lax.cond(x.sum() > 1e9, lambda: linalg.linear(x, W["w"].T, scaling=state, **said).sum(), lambda: 0.0)

    assert_same_bits(jax.grad(lambda s: branch(s[0], XS[0]))(states)[0], states[0])
    two = lower(lambda p, x: ((x @ p["a"]).sum(), (x @ p["b"]).sum()), RECIPES["fp8_delayed"])
    params = {"a": W["w"], "b": W["w"]}
    before = [ScalingState(2 * one.array) for one in first_scaling(two, params, XS[0])]
    after = jax.grad(lambda s: two(params, XS[0], scaling=s)[1])(before)
    assert_same_bits(after[0], before[0])
    assert after[1][0, 1] == 2


@pytest.mark.heavy
def test_examples_with_states_of_their_own():
    many = jax.tree.map(lambda rows: jnp.stack([rows] * 3), STATES)
    (after,) = jax.jit(jax.grad(lambda states: jax.vmap(loss)(XS, states).sum()))(many)
    assert after[:, 0, 1].tolist() == [2, 4, 3]
    (after,) = jax.jit(jax.vmap(jax.grad(lambda states, x: loss(x, states)), (None, 0)))(STATES, XS)
    assert after[:, 0, 1].tolist() == [4, 4, 4]  # of one state there is one step


@pytest.mark.heavy
def test_functions_of_linalg_and_quantizers_share_states_too():
    kept = "operand(e4m3fn,scale=scale(history=2))"
    said = {"operands": (kept, kept), "grad_input": f"product({kept},{kept})", "grad_weight": f"product({kept},{kept})"}
    call = lambda x, state: linalg.linear(x, W["w"].T, scaling=state, **said).sum()  # noqa: E731
    after = jax.jit(jax.grad(lambda state: scan(call, state)))(linalg.first_scaling(2))
    assert after[:, 1].tolist() == [4, 1, 1]
    number = "scaled(e4m3fn,{...:None},scale=float32,history=2)"
    f = qjax.quantizer(number, number, "nearest", "nearest")
    state = linalg.first_scaling(2)[:2]
    assert isinstance(state, ScalingState)
    for program in (
        lambda s: scan(lambda x, s: f(x, scaling=s).sum(), s),
        lambda s: jax.vmap(lambda x: f(x, None, s))(XS).sum(),
    ):
        assert jax.jit(jax.grad(program))(state)[:, 1].tolist() == [4, 1]


@pytest.mark.heavy
def test_a_shared_state_on_devices():
    """In shard_map, and sharded: the largest magnitude of all devices and microbatches."""
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    rows = PartitionSpec(None, "i")
    xs = XS.at[1, 7].set(9)

    def program(states, xs):
        return jax.lax.scan(lambda total, x: (total + loss(x, states), None), 0 * xs.sum(), xs)[0]

    spread = jax.shard_map(jax.grad(program), mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=PartitionSpec())
    outside = jax.grad(
        lambda states, xs: jax.shard_map(
            lambda states, xs: jax.lax.psum(program(states, xs), "i"),
            mesh=mesh,
            in_specs=(PartitionSpec(), rows),
            out_specs=PartitionSpec(),
        )(states, xs)
    )
    for fn in (spread, outside, jax.grad(program)):
        assert jax.jit(fn)(STATES, xs)[0][0, 1] == 9
    for check_vma in (True, False):  # and within a lowered function
        inside = lower(
            lambda w, x: jax.shard_map(
                lambda w, x: jnp.mean((x @ w["w"]) ** 2)[None],
                mesh=mesh,
                in_specs=(PartitionSpec(), PartitionSpec("i")),
                out_specs=PartitionSpec("i"),
                check_vma=check_vma,  # noqa: B023
            )(w, x),
            RECIPES["fp8_delayed"],
        )
        if not check_vma:
            with pytest.raises(ValueError, match="has delayed scales inside shard_map with check_vma=False"):
                first_scaling(inside, W, xs[1])
            continue
        (state,) = jax.jit(jax.grad(lambda states: inside(W, xs[1], scaling=states).sum()))(STATES)  # noqa: B023
        assert state[0, 1] == 9


def test_a_state_is_an_array_to_others():
    state = linalg.first_scaling(2)
    assert (state.shape, state.dtype, state.ndim, len(state)) == ((3, 3), jnp.float32, 2, 3)
    assert isinstance(state[0], jax.Array)
    assert isinstance(state[1:], ScalingState)
    assert (state == state.array).all()
    assert jnp.stack([state, state]).shape == (2, 3, 3)
    assert_same_bits(np.asarray(state), np.asarray(linalg.first_scaling(2).array))
    assert [leaf.shape for leaf in jax.tree.leaves([state])] == [(3, 3)]
    assert repr(state).startswith("ScalingState(Array(")
    read = jax.jit(jax.value_and_grad(lambda s: (s[0, 0] + s.array.sum(), s), has_aux=True))
    (_, seen), after = read(state)  # a derivative of what is read is none, and the state stays
    assert_same_bits(seen, state)
    assert_same_bits(after, state)
    (_, seen), after = jax.value_and_grad(lambda s: (s[:2].sum(), s), has_aux=True)(state)
    assert_same_bits(seen, state)
    assert_same_bits(after, state)
