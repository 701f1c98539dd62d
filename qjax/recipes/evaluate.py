"""Evaluates a traced program with the roundings of a plan, through JAX's transformations and control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import current_name_stack, user_context

from qjax._rounding.dispatch import quantize
from qjax._rounding.keys import fold_in
from qjax._rounding.scopes import kind_scope
from qjax.quant import quantizer
from qjax.recipes.plan import Plan, Site
from qjax.recipes.products import multiply
from qjax.recipes.programs import INLINED, scan_parts

Words = jax.Array | None  # of a key: a uint32 array, or None where nothing is stochastic

# From 0.12 on JAX itself makes zeros for rules that take none by name, and under vmap it has to know of them.
_ZEROS_ARE_KNOWN = jax.__version_info__ >= (0, 12)


def evaluate(plan: Plan, args: Sequence[Any], words: Words) -> list[Any]:
    """The results of a program for its flat arguments, with its layers rounded."""
    values = dict(zip(plan.jaxpr.constvars, plan.consts, strict=True)) | dict(zip(plan.jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return values[atom] if isinstance(atom, core.Var) else atom.val

    for index, equation in enumerate(plan.jaxpr.eqns):
        scope = current_name_stack() + equation.source_info.name_stack
        with user_context(equation.source_info.traceback, name_stack=scope), equation.ctx.manager:
            operands = [read(atom) for atom in equation.invars]
            if index in plan.weights:
                operand, site = plan.weights[index]
                operands[operand] = _round_weight(operands[operand], site, words)
            if index in plan.inner:
                number, plans = plan.inner[index]
                key = words if number is None else _fold(words, number)
                results = _CALLS[equation.primitive.name](equation, plans, operands, key)
            elif index in plan.products:
                number, weight, products, state = plan.products[index]
                scaling = None if state is None else plan.planner.scaling[state]
                results = [multiply(equation, operands, weight, products, _fold(words, number), scaling)]
            else:
                results = bind(equation, operands)
            for variable, value in zip(equation.outvars, results, strict=True):
                site = plan.outputs.get(variable)
                values[variable] = value if site is None else _round_output(value, site, words, plan)
    return [read(atom) for atom in plan.jaxpr.outvars]


def bind(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an unchanged equation."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


def _fold(words: Words, number: Any) -> Words:
    return None if words is None else fold_in(words, number)


def _round_output(value: Any, site: Site, words: Words, plan: Plan) -> jax.Array:
    rule = site.rule.outputs
    state = None if site.state is None else plan.planner.scaling[site.state]
    arguments = {one.name: getattr(rule, one.name) for one in fields(rule) if one.init}
    return quantizer(**arguments)(value, _fold(words, site.number) if rule.stochastic else None, state)


def _round_weight(value: Any, site: Site, words: Words) -> jax.Array:
    key = _fold(_fold(words, site.number), 2)  # 1 is the gradient's
    number, rounding = site.rule.weight_number, site.rule.weight_rounding
    with kind_scope("weight"):
        return quantize(jnp.asarray(value), number, rounding, key=key)  # type: ignore[arg-type]


def _jit(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    """The program inlined, with its shardings as constraints: users put the lowered function itself under jit."""
    params = equation.params
    if "in_shardings" not in params:
        return evaluate(plans[0], operands, words)
    results = evaluate(plans[0], _constrain(operands, params["in_shardings"]), words)
    return _constrain(results, params["out_shardings"])


def _constrain(values: Sequence[Any], shardings: Sequence[Any]) -> Sequence[Any]:
    return [
        _place(value, sharding) if isinstance(sharding, jax.sharding.NamedSharding) else value
        for value, sharding in zip(values, shardings, strict=True)
    ]


def _place(value: Any, sharding: jax.sharding.NamedSharding) -> Any:
    explicit = jax.sharding.AxisType.Explicit in sharding.mesh.axis_types
    return (jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint)(value, sharding)


def _checkpoint(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    params = equation.params
    prevent = params["prevent_cse"]
    if params["differentiated"] and prevent:
        operands = jax.lax.optimization_barrier(operands)  # as the primitive does in a backward pass

    def body(words: Words, *operands: Any) -> Sequence[Any]:
        return evaluate(plans[0], operands, words)

    prevent = prevent if isinstance(prevent, bool) else (True, *prevent)
    return jax.checkpoint(body, prevent_cse=prevent, policy=params["policy"])(words, *operands)


def _scan(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    params = equation.params
    count, split = scan_parts(equation)

    def body(carry: Sequence[Any], slices: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        index, xs = slices
        results = evaluate(plans[0], [*operands[:count], *carry, *xs], _fold(words, index))
        return results[: split - count], results[split - count :]

    slices = jnp.arange(params["length"], dtype=jnp.int32), operands[split:]
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, stacked = jax.lax.scan(body, operands[count:split], slices, **options)
    return [*carry, *stacked]


def _while(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    first = equation.params["cond_nconsts"]
    second = first + equation.params["body_nconsts"]

    def condition(state: Any) -> Any:
        index, carry = state
        return evaluate(plans[0], [*operands[:first], *carry], _fold(words, index))[0]

    def body(state: Any) -> Any:
        index, carry = state
        return index + 1, evaluate(plans[1], [*operands[first:second], *carry], _fold(words, index))

    return jax.lax.while_loop(condition, body, (jnp.int32(0), operands[second:]))[1]


def _cond(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    index, *operands = operands
    branches = [partial(lambda plan, *operands: evaluate(plan, operands, words), plan) for plan in plans]
    return jax.lax.switch(index, branches, *operands)


def _shard_map(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    params = equation.params

    def body(words: Words, *operands: Any) -> tuple[Any, ...]:
        return tuple(evaluate(plans[0], operands, words))

    everywhere = jax.sharding.PartitionSpec()
    return jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=(everywhere, *params["in_specs"]),
        out_specs=params["out_specs"],
        check_vma=params["check_vma"],
        axis_names=params["newly_manual_axes"],
    )(words, *operands)


def _custom_jvp(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    """The function's values with its layers rounded, and its own derivative at the same arguments."""
    params = equation.primitive.get_bind_params(equation.params)
    _, jvp = params["subfuns"]

    @jax.custom_jvp
    def call(words: Words, *operands: Any) -> tuple[Any, ...]:
        return tuple(evaluate(plans[0], operands, words))

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        results = jvp.call_wrapped(*primals[1:], *tangents[1:])
        return call(*primals), tuple(results[len(results) // 2 :])

    call.defjvp(rule, symbolic_zeros=params["symbolic_zeros"])
    return call(words, *operands)


def _custom_vjp(equation: Any, plans: Sequence[Plan], operands: Sequence[Any], words: Words) -> Sequence[Any]:
    """The function's values and its own rule's residuals, both with their layers rounded."""
    params = equation.primitive.get_bind_params(equation.params)
    _, kept, derivative = params["subfuns"]
    (plan,) = plans

    @jax.custom_vjp
    def call(words: Words, *operands: Any) -> tuple[Any, ...]:
        return tuple(evaluate(plan, operands, words))

    def forward(words: Any, *operands: Any) -> tuple[tuple[Any, ...], list[Any]]:
        values = [operand.value for operand in operands]
        rule = _with_flags(kept.call_wrapped, [operand.perturbed for operand in operands])
        traced = jax.make_jaxpr(rule)(*values)
        words = None if words is None else words.value
        results = evaluate(plan.of_variant(traced), values, words)
        _, tree, forwarded = params["out_trees"]()
        count = tree.num_leaves - sum(place is not None for place in forwarded)
        own = iter(results[:count])
        residuals = [next(own) if place is None else values[place] for place in forwarded]
        return tuple(results[count:]), residuals

    def backward(residuals: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...]:
        if not (params["symbolic_zeros"] or _ZEROS_ARE_KNOWN):
            grads = [_instantiate(grad) for grad in grads]
        results = derivative.call_wrapped(*residuals, *grads)
        results = results[0] if results and isinstance(results[0], Sequence) else results  # from jax 0.12 on with logs
        return None, *(result if isinstance(result, (jax.Array, np.ndarray)) else None for result in results)

    call.defvjp(forward, backward, symbolic_zeros=True)
    return call(words, *operands)


def _with_flags(rule: Callable[..., Any], flags: Sequence[bool]) -> Callable[..., Any]:
    return lambda *values: rule(*(item for pair in zip(values, flags, strict=True) for item in pair))


def _instantiate(grad: Any) -> Any:
    if not isinstance(grad, jax.custom_derivatives.SymbolicZero):
        return grad
    aval: Any = grad.aval
    return jnp.zeros(aval.shape, aval.dtype)


_CALLS: dict[str, Callable[[Any, Sequence[Plan], Sequence[Any], Words], Sequence[Any]]] = {
    **dict.fromkeys(INLINED, _jit),
    core.primitives.remat_p.name: _checkpoint,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
}
