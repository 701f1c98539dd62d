"""Evaluates a traced program with the roundings of a plan, through JAX's transformations and control flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.formats.block import BlockNumber
from qjax import _jaxprs as jaxprs
from qjax._parameters import of_bind, parameters
from qjax._rounding.dispatch import quantize
from qjax._rounding.keys import fold_in
from qjax._rounding.meshes import on_meshes
from qjax._rounding.scopes import SITE, kind_scope
from qjax.linalg.states import part
from qjax.quant import quantizer
from qjax.recipes.plan import Inner, LayerSite, LoweringPlan
from qjax.recipes.products import in_layout, multiply

Words = jax.Array | None  # of a key: a uint32 array, or None where nothing is stochastic

# From 0.12 on JAX itself makes zeros for rules without symbolic zeros; under vmap it needs the symbolic ones.
_ZEROS_ARE_KNOWN = jax.__version_info__ >= (0, 12)


def evaluate(plan: LoweringPlan, args: Sequence[Any], words: Words, scaling: Sequence[Any] = ()) -> list[Any]:
    """The results of a program for its flat arguments, with its layers rounded; `scaling` are states, by number."""

    def step(index: int, equation: Any, operands: list[Any]) -> list[Any]:
        if index in plan.weights:
            operand, site = plan.weights[index]
            operands[operand] = _round_weight(equation, operand, operands[operand], site, words)
        if index in plan.inner:
            inner = plan.inner[index]
            key = words if inner.number is None else _fold(words, inner.number)
            results = _inside(equation, inner, operands, key, scaling)
        elif index in plan.products:
            path, number, weight, products, state = plan.products[index]
            rows = None if state is None else scaling[state]
            with jax.named_scope(f"{SITE}{path}"):
                results = [multiply(equation, operands, weight, products, _fold(words, number), rows)]
        elif index in plan.functions:
            function = plan.functions[index]
            results = [function.steps(*operands, *[None] * function.missing, **function.options)]
        else:
            results = jaxprs.bind(equation, operands)
        sites = [plan.outputs.get(variable) for variable in equation.outvars]
        return [
            value if site is None else _round_output(value, site, words, scaling)
            for value, site in zip(results, sites, strict=True)
        ]

    return jaxprs.evaluate(plan.jaxpr, plan.consts, args, step)


def _inside(
    equation: Any, inner: Inner, operands: Sequence[Any], words: Words, scaling: Sequence[Any]
) -> Sequence[Any]:
    """The results of an equation that holds programs, by their plans."""
    name, plans = equation.primitive.name, inner.plans
    if name in jaxprs.CUSTOM:
        return (_custom_jvp if name == "custom_jvp_call" else _custom_vjp)(equation, plans[0], operands, words)
    if name == "scan":
        return _scan(equation, inner, operands, words, scaling)

    # Each iteration of a while_loop has a key of its own, by its number.
    def iteration(which: int, operands: Any, count: Any, _: Any) -> tuple[Any, Any, None]:
        return evaluate(plans[which], operands, _fold(words, count), scaling), count + 1, None

    # All arrays go in as operands: a shard_map takes no others on meshes with explicit axes.
    def once(which: int, operands: Any, shared: Any, _: Any) -> tuple[Any, None, None]:
        return evaluate(plans[which], operands, *shared), None, None

    if name == "while":
        return jaxprs.rebuild(equation, operands, iteration, jnp.int32(0))[0]
    return jaxprs.rebuild(equation, operands, once, (words, list(scaling)))[0]


def _scan(equation: Any, inner: Inner, operands: Sequence[Any], words: Words, scaling: Sequence[Any]) -> list[Any]:
    """The results of a scan, as one scan for each run of iterations whose layers have the same formats."""
    length, reverse = parameters(equation).length, parameters(equation).reverse
    first, second = jaxprs.scan_parts(equation)
    constants, carried, slices = operands[:first], operands[first:second], operands[second:]
    numbers, states = jnp.arange(length, dtype=jnp.int32), {i: scaling[i] for i in inner.states}
    parts: list[Sequence[Any]] = []
    for (begin, end), plan in zip(inner.runs, inner.plans, strict=True):

        def iteration(_: int, operands: Any, __: None, own: Any, plan: LoweringPlan = plan) -> tuple[Any, None, None]:
            number, states = own
            here = [states.get(i, rows) for i, rows in enumerate(scaling)]
            return evaluate(plan, operands, _fold(words, number), here), None, None

        window = slice(length - end, length - begin) if reverse else slice(begin, end)
        own = (slices, (numbers, states))
        if len(inner.runs) > 1:
            own = jax.tree.map(partial(part, index=window), own)
        results = jaxprs.rebuild(equation, [*constants, *carried, *own[0]], iteration, sliced=own[1])[0]
        carried, stacked = results[: second - first], results[second - first :]
        parts.append(stacked)
    if reverse:
        parts.reverse()
    return [*carried, *(each[0] if len(each) == 1 else jnp.concatenate(each) for each in zip(*parts, strict=True))]


def _fold(words: Words, number: Any) -> Words:
    return None if words is None else fold_in(words, number)


def _round_output(value: Any, site: LayerSite, words: Words, scaling: Sequence[Any]) -> jax.Array:
    rule = site.rule.outputs
    state = None if site.state is None else scaling[site.state]
    arguments = {one.name: getattr(rule, one.name) for one in fields(rule) if one.init}
    with jax.named_scope(f"{SITE}{site.path}"):
        return quantizer(**arguments)(value, _fold(words, site.number) if rule.stochastic else None, state)


def _round_weight(equation: Any, operand: int, value: Any, site: LayerSite, words: Words) -> jax.Array:
    key = _fold(_fold(words, site.number), 2)  # 1 is the gradient's
    number: Any = site.rule.weight_number
    value = jnp.asarray(value)

    def law(value: jax.Array, key: Words) -> jax.Array:
        return quantize(value, number, site.rule.weight_rounding, key=key)

    with jax.named_scope(f"{SITE}{site.path}"), kind_scope("weight"):
        if not isinstance(number, BlockNumber):
            return law(value, key)
        moved = partial(in_layout, equation, operand, number, law)
        return on_meshes(moved, lambda: jax.typeof(value).sharding, value, key)


def _custom_jvp(equation: Any, plan: LoweringPlan, operands: Sequence[Any], words: Words) -> Sequence[Any]:
    """The function's values with its layers rounded, and its own derivative at the same arguments."""
    params = of_bind(equation)
    _, jvp = params.subfuns

    @jax.custom_jvp
    def call(words: Words, *operands: Any) -> tuple[Any, ...]:
        return tuple(evaluate(plan, operands, words))

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        # The function's own rule computes the value again, without roundings: only its tangents are used.
        results = jvp.call_wrapped(*primals[1:], *tangents[1:])
        return call(*primals), tuple(results[len(results) // 2 :])

    call.defjvp(rule, symbolic_zeros=params.symbolic_zeros)
    return call(words, *operands)


def _custom_vjp(equation: Any, plan: LoweringPlan, operands: Sequence[Any], words: Words) -> Sequence[Any]:
    """The function's values and its own rule's residuals, both with their layers rounded."""
    params = of_bind(equation)
    _, kept, derivative = params.subfuns

    @jax.custom_vjp
    def call(words: Words, *operands: Any) -> tuple[Any, ...]:
        return tuple(evaluate(plan, operands, words))

    def forward(words: Any, *operands: Any) -> tuple[tuple[Any, ...], list[Any]]:
        # JAX passes each operand with a flag that says if it is differentiated, and the function's rule wants both.
        values = [operand.value for operand in operands]
        flags = [operand.perturbed for operand in operands]

        def rule(*values: Any) -> Any:
            return kept.call_wrapped(*(item for pair in zip(values, flags, strict=True) for item in pair))

        traced = jax.make_jaxpr(rule)(*values)
        words = None if words is None else words.value
        results = evaluate(plan.of_variant(traced), values, words)
        _, tree, forwarded = params.out_trees()
        count = tree.num_leaves - sum(place is not None for place in forwarded)
        # Residuals that are operands are not among the rule's results: `forwarded` has their places.
        own = iter(results[:count])
        residuals = [next(own) if place is None else values[place] for place in forwarded]
        return tuple(results[count:]), residuals

    def backward(residuals: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...]:
        if not (params.symbolic_zeros or _ZEROS_ARE_KNOWN):
            grads = [_instantiate(grad) for grad in grads]
        results = derivative.call_wrapped(*residuals, *grads)
        results = results[0] if results and isinstance(results[0], Sequence) else results  # from jax 0.12 on with logs
        return None, *(result if isinstance(result, (jax.Array, np.ndarray)) else None for result in results)

    call.defvjp(forward, backward, symbolic_zeros=True)
    return call(words, *operands)


def _instantiate(grad: Any) -> Any:
    if not isinstance(grad, jax.custom_derivatives.SymbolicZero):
        return grad
    aval: Any = grad.aval
    return jnp.zeros(aval.shape, aval.dtype)
