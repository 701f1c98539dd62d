"""The interpreter of jaxprs: programs that are taken apart and put together again compute the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_same_bits

from qjax import _jaxprs as jaxprs

X = jnp.linspace(-2, 3, 12, dtype=jnp.float32).reshape(3, 4)
MESH = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
ROWS = jax.sharding.PartitionSpec("rows")


def looped(x):
    def body(carry, row):
        return carry * jnp.float32(0.7) + row, jnp.sin(carry)

    return jax.lax.scan(body, x[0], x, reverse=True)


def counted(x):
    return jax.lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, jnp.tanh(state[1] + x)), (0, x))


def chosen(x):
    return jax.lax.switch(jnp.int32(x[0, 0] + 3), [jnp.sin, jnp.cos, lambda x: x * x], x)


CASES = {  # and how many programs within it run: of a loop one for each iteration
    "jit": (jax.jit(lambda x: jax.jit(jnp.tanh)(x) + 1), 2),
    "checkpoint": (jax.checkpoint(lambda x: jnp.exp(x) * x), 1),
    "a derivative of checkpoint": (jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.exp(x)))(x).sum()), 1),
    "scan": (looped, 3),
    "while_loop": (counted, 3),
    "switch": (chosen, 1),
    "shard_map": (jax.shard_map(lambda x: jnp.cos(x), mesh=MESH, in_specs=ROWS, out_specs=ROWS), 1),
    "captured arrays": (lambda x: jax.lax.map(lambda row: row @ np.float32(X).T, x), 3),
}


def taken_apart(program, inputs, entered):
    """The results of a program, and `entered` plus the number of programs that ran within it, at any depth."""

    def step(_, equation, operands):
        nonlocal entered
        if equation.primitive.name not in jaxprs.REBUILT:
            return jaxprs.bind(equation, operands)
        inner = jaxprs.inner_programs(equation, operands)

        def run(which, operands, entered, number):
            results, entered = taken_apart(inner[which], operands, entered + 1)
            return results, entered, number

        numbers = jnp.arange(equation.params.get("length", 0))
        results, entered, made = jaxprs.rebuild(equation, operands, run, entered, numbers)
        if equation.primitive.name == "scan":  # a slice for each iteration, stacked again
            entered += jnp.abs(made - numbers).sum()
        return results

    return jaxprs.evaluate(program.jaxpr, program.consts, inputs, step), entered


@pytest.mark.parametrize("name", CASES)
def test_rebuilt_programs_have_the_same_bits(name):
    fn, count = CASES[name]
    traced = jax.make_jaxpr(fn)(X)
    program = jaxprs.Program(traced.jaxpr, traced.consts, [])
    found, entered = jax.jit(lambda x: taken_apart(program, [x], jnp.int32(0)))(X)
    for result, expected in zip(found, jax.tree.leaves(jax.jit(fn)(X)), strict=True):
        assert_same_bits(result, expected)
    assert entered == count


def test_facts_enter_programs_but_for_the_state_of_loops():
    """What is true of the first state of a loop need not be true of the next."""

    def facts(fn):
        seen = []

        def step(_, equation, known):
            for program in jaxprs.inner_programs(equation, known, carried="varies") or ():
                seen.append(program.inputs)
            return [None] * len(equation.outvars)

        traced = jax.make_jaxpr(fn)(X)
        jaxprs.walk(traced.jaxpr, ["captured"] * len(traced.consts), ["x"], step, lambda literal: "literal")
        return seen

    assert facts(looped) == [["varies", "x"]]
    assert facts(counted) == [["varies", "varies"], ["x", "varies", "varies"]]
    assert facts(jax.jit(jnp.sin)) == [["x"]]
