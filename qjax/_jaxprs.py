"""Programs of JAX (jaxprs), walked equation by equation: the one interpreter for modules that read or change programs.

`split_arrays` finds the arrays that a program is traced for. `walk` gives each variable a value of any kind: an array,
a fact about it, or both; `evaluate` does it in the name scopes of the equations. For an equation that contains
programs, such as a loop, `inner_programs` returns the values that enter them, and `rebuild` makes the same loop, branch
or call around other programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import current_name_stack, user_context

from qjax._parameters import CHECKPOINT, parameters

CALLS = ("jit", "pjit", "closed_call", "core_call")
INLINED = frozenset((*CALLS, CHECKPOINT))  # their programs run once, with the equation's own operands
CUSTOM = frozenset(("custom_jvp_call", "custom_vjp_call"))

Step = Callable[[int, Any, list[Any]], Sequence[Any]]
Run = Callable[[int, Sequence[Any], Any, Any], tuple[Sequence[Any], Any, Any]]


def split_arrays(tree: Any, *types: type) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The arrays of a pytree, and the function that rebuilds the tree with others.

    Nodes of these types are arrays.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda node: isinstance(node, types))
    arrays = [leaf for leaf in leaves if is_array(leaf, *types)]
    others = [None if is_array(leaf, *types) else (leaf,) for leaf in leaves]  # None where an array belongs
    return arrays, partial(_put_arrays, structure, others)


def _put_arrays(structure: Any, others: Sequence[tuple[Any] | None], arrays: Sequence[Any]) -> Any:
    remaining = iter(arrays)
    return jax.tree.unflatten(structure, [next(remaining) if one is None else one[0] for one in others])


def is_array(leaf: Any, *types: type) -> bool:
    """True of arrays of JAX and NumPy, and of nodes of these types."""
    return isinstance(leaf, (jax.Array, np.ndarray, *types))


def value_of(literal: Any) -> Any:
    return literal.val


def walk(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    step: Step,
    of_literal: Callable[[Any], Any] = value_of,
) -> list[Any]:
    """Returns the values of a program's results; step(index, equation, inputs) returns the values of an equation's.

    Args:
        jaxpr: the program.
        consts: the values of its captured arrays.
        inputs: the values of its arguments.
        step: called for each equation, in order.
        of_literal: the value of a constant in the program's text.
    """
    # Within one program each variable is assigned once, so a dictionary for each run of it is all the state there is.
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

    def read(atoms: Sequence[Any]) -> list[Any]:
        return [values[atom] if isinstance(atom, core.Var) else of_literal(atom) for atom in atoms]

    for index, equation in enumerate(jaxpr.eqns):
        values.update(zip(equation.outvars, step(index, equation, read(equation.invars)), strict=True))
    return read(jaxpr.outvars)


def evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    inputs: Sequence[Any],
    step: Step,
    of_literal: Callable[[Any], Any] = value_of,
) -> list[Any]:
    """`walk` for steps that compute: each runs in the name scope and with the traceback of its equation."""

    def scoped(index: int, equation: Any, operands: list[Any]) -> Sequence[Any]:
        scope = current_name_stack() + equation.source_info.name_stack
        with user_context(equation.source_info.traceback, name_stack=scope), equation.ctx.manager:
            return step(index, equation, operands)

    return walk(jaxpr, consts, inputs, scoped, of_literal)


def bind(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an unchanged equation."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


class Program(NamedTuple):
    """A program inside an equation.

    Attributes:
        jaxpr, consts: the program and its captured arrays.
        inputs: the values that enter it.
    """

    jaxpr: Any
    consts: Sequence[Any]
    inputs: list[Any]


def inner_programs(equation: Any, values: Sequence[Any], carried: Any = None) -> list[Program] | None:
    """The programs that an equation runs; None for equations without programs, and for unknown kinds.

    `values` are the values of its operands; `carried` is the value of a loop's state, which changes after the first
    iteration.
    """
    params, name = parameters(equation), equation.primitive.name
    if name == "scan":
        first, second = scan_parts(equation)
        return [_program(params.jaxpr, [*values[:first], *[carried] * (second - first), *values[second:]])]
    if name == "while":
        first, second = params.cond_nconsts, params.cond_nconsts + params.body_nconsts
        state = [carried] * (len(values) - second)
        condition, body = [*values[:first], *state], [*values[first:second], *state]
        return [_program(params.cond_jaxpr, condition), _program(params.body_jaxpr, body)]
    if name == "cond":
        return [_program(branch, values[1:]) for branch in params.branches]
    if name == "shard_map" or name in INLINED | CUSTOM:
        return [_program(params.program, values)]
    return None


def _program(jaxpr: Any, values: Sequence[Any]) -> Program:
    closed = isinstance(jaxpr, core.ClosedJaxpr)
    return Program(jaxpr.jaxpr if closed else jaxpr, jaxpr.consts if closed else (), list(values))


def scan_parts(equation: Any) -> tuple[int, int]:
    """Where the operands of a scan that are carried begin, after its constants, and where its slices do.

    JAX has these numbers as parameters up to 0.10, and from 0.12 on the trees of operands instead.
    """
    params = parameters(equation)
    if params.num_consts is not None:
        constants, carried = params.num_consts, params.num_carry
    else:
        constants, carried, _ = (len(list(part)) for part in params.ft_in.unpack())
    return constants, constants + carried


def counters(equation: Any) -> list[int]:
    """The operands of a loop that are carried and count its iterations, as those of fori_loop do."""
    params, name = parameters(equation), equation.primitive.name
    if name == "scan":
        (first, second), body = scan_parts(equation), params.jaxpr.jaxpr
        carried, results = body.invars[first:second], body.outvars
    else:
        first, body = params.cond_nconsts + params.body_nconsts, params.body_jaxpr.jaxpr
        carried, results = body.invars[params.body_nconsts :], body.outvars
    added = {e.outvars[0]: e.invars[0] for e in body.eqns if e.primitive.name == "add" and _is_literal(e.invars[1])}
    pairs = zip(carried, results, strict=False)
    return [first + place for place, (x, y) in enumerate(pairs) if not _is_literal(y) and added.get(y) is x]


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, core.Literal)


def rebuild(
    equation: Any, operands: Sequence[Any], run: Run, carried: Any = None, sliced: Any = None
) -> tuple[Sequence[Any], Any, Any]:
    """Computes a loop, branch or call with other programs inside, which may have further results.

    Args:
        equation: an equation of a kind in `REBUILT`.
        operands: the equation's operands.
        run: run(which, operands, carried, sliced) computes the program with that index among `inner_programs`. It
            returns the program's results, the next `carried`, and `made`, a pytree. Only the results of a while_loop's
            condition count, and `made` in a while_loop is dropped.
        carried: a pytree that runs through all programs, as the state of a loop does.
        sliced: a pytree of arrays; each iteration of a scan takes one slice of each.

    Returns:
        The results; `carried` after the last program; and `made`, which a scan stacks.
    """
    return REBUILT[equation.primitive.name](equation, operands, run, carried, sliced)


def _call(equation: Any, operands: Sequence[Any], run: Run, carried: Any, sliced: Any) -> tuple[Any, Any, Any]:
    """The program inlined, with its shardings as constraints: users put the whole function under jit themselves."""
    params = parameters(equation)
    if params.in_shardings is None:
        return run(0, operands, carried, sliced)
    results, carried, made = run(0, _constrain(operands, params.in_shardings), carried, sliced)
    return _constrain(results, params.out_shardings), carried, made


def _constrain(values: Sequence[Any], shardings: Sequence[Any]) -> Sequence[Any]:
    def constrain(value: Any, sharding: Any) -> Any:
        # Values that a caller put in an array's place, such as quantized parameters, have their own shardings.
        if not isinstance(sharding, jax.sharding.NamedSharding) or not is_array(value):
            return value
        explicit = jax.sharding.AxisType.Explicit in sharding.mesh.axis_types
        return (jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint)(value, sharding)

    return list(map(constrain, values, shardings))


def _checkpoint(equation: Any, operands: Sequence[Any], run: Run, carried: Any, sliced: Any) -> tuple[Any, Any, Any]:
    params = parameters(equation)
    prevent = params.prevent_cse
    if params.differentiated and prevent:
        operands = jax.lax.optimization_barrier(operands)  # as the primitive does in a backward pass

    def body(carried: Any, *operands: Any) -> Any:
        return run(0, operands, carried, sliced)

    prevent = prevent if isinstance(prevent, bool) else (True, *prevent)  # one for each argument of body
    return jax.checkpoint(body, prevent_cse=prevent, policy=params.policy)(carried, *operands)


def _scan(equation: Any, operands: Sequence[Any], run: Run, carried: Any, sliced: Any) -> tuple[Any, Any, Any]:
    params = parameters(equation)
    first, second = scan_parts(equation)

    def body(state: Any, slices: Any) -> tuple[Any, Any]:
        (values, carried), (xs, own) = state, slices
        results, carried, made = run(0, [*operands[:first], *values, *xs], carried, own)
        return (results[: second - first], carried), (results[second - first :], made)

    start, slices = (operands[first:second], carried), (operands[second:], sliced)
    # Slices may be those of some iterations only.
    length = next((len(x) for x in jax.tree.leaves(slices)), params.length)
    (values, carried), (stacked, made) = jax.lax.scan(
        body, start, slices, length=length, reverse=params.reverse, unroll=params.unroll
    )
    return [*values, *stacked], carried, made


def _while(equation: Any, operands: Sequence[Any], run: Run, carried: Any, sliced: Any) -> tuple[Any, Any, None]:
    params = parameters(equation)
    first, second = params.cond_nconsts, params.cond_nconsts + params.body_nconsts

    def go_on(state: Any) -> Any:
        values, carried = state
        return run(0, [*operands[:first], *values], carried, sliced)[0][0]

    def body(state: Any) -> Any:
        values, carried = state
        return run(1, [*operands[first:second], *values], carried, sliced)[:2]

    return *jax.lax.while_loop(go_on, body, (operands[second:], carried)), None


def _cond(equation: Any, operands: Sequence[Any], run: Run, carried: Any, sliced: Any) -> tuple[Any, Any, Any]:
    def branch(which: int, carried: Any, *operands: Any) -> Any:
        return run(which, operands, carried, sliced)

    branches = [partial(branch, which) for which in range(len(parameters(equation).branches))]
    return jax.lax.switch(operands[0], branches, carried, *operands[1:])


def _shard_map(equation: Any, operands: Sequence[Any], run: Run, carried: Any, sliced: Any) -> tuple[Any, Any, Any]:
    """Each shard runs the program with all of `carried`; `carried` and `made` must come out the same in all shards."""
    params, everywhere = parameters(equation), jax.sharding.PartitionSpec()

    def body(carried: Any, *operands: Any) -> Any:
        results, carried, made = run(0, operands, carried, sliced)
        return tuple(results), carried, made

    return jax.shard_map(
        body,
        mesh=params.mesh,
        in_specs=(everywhere, *params.in_specs),
        out_specs=(tuple(params.out_specs), everywhere, everywhere),
        check_vma=params.check_vma,
        axis_names=params.shard_axes,
    )(carried, *operands)


REBUILT: dict[str, Callable[[Any, Sequence[Any], Run, Any, Any], tuple[Any, Any, Any]]] = {
    **dict.fromkeys(CALLS, _call),
    CHECKPOINT: _checkpoint,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
