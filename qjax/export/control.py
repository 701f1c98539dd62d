"""Loops and branches as nodes with graphs of their own: Scan, Loop and If."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.exchange.graph import Graph
from qjax import _jaxprs as jaxprs
from qjax._parameters import parameters
from qjax.export.walk import Value, Walk, kinds_of


def _body(walk: Walk, inputs: list[tuple[Any, Any]], results: Any) -> tuple[Any, list[Value], list[Value]]:
    """A graph inside, of inputs of these dtypes and shapes; results(inputs) returns the values that leave it.

    It is returned with the values that enter it and leave it. What leaves it as it came needs no node: flax returns the
    state of modules from loops and branches, in evaluation the state that went in.
    """
    graph = Graph("body", walk.graph)
    given = [walk.input(graph.new_name("inner"), dtype, shape, graph) for shape, dtype in inputs]
    with walk.inner(graph):
        made = results(given)
        for value in made:
            # A result that is an input, a constant or a value from outside needs a node of its own.
            own = value if value.node is not None and value.graph is graph and value.name is None else None
            if own is None:
                own = walk.emit("Identity", value, shape=value.shape, dtype=value.dtype)
            graph.output(walk.name(own), own.dtype.name, own.shape)
    return graph.proto(), given, made


def _scan(walk: Walk, equation: Any, *values: Value) -> list[Value]:
    params = parameters(equation)
    first, second = jaxprs.scan_parts(equation)
    (program,) = jaxprs.inner_programs(equation, values) or []
    carried, stacked = list(values[first:second]), list(values[second:])
    extra = [] if stacked else [walk.constant(np.arange(params.length), np.int32)]
    slices = [(x.shape[1:], x.dtype) for x in (*stacked, *extra)]

    def results(given: list[Value]) -> list[Value]:
        state, own = given[: len(carried)], given[len(carried) : len(given) - len(extra)]
        return walk.run(program.jaxpr, program.consts, [*values[:first], *state, *own])

    body, given, inner = _body(walk, [*((x.shape, x.dtype) for x in carried), *slices], results)
    kinds = kinds_of(equation)
    outputs = len(kinds) - len(carried)
    directions = {}
    if params.reverse:
        directions = {"scan_input_directions": [1] * len(slices), "scan_output_directions": [1] * outputs}
    if not outputs:
        directions.pop("scan_output_directions", None)
    made = walk.emit_all(
        "Scan", [*carried, *stacked, *extra], kinds, body=body, num_scan_inputs=len(slices), **directions
    )
    operands = [{one: value} for one, value in zip(given, carried, strict=False)]
    operands += [dict(zip(given[len(carried) :], stacked, strict=False))] * outputs
    return [known.get(one, value) for known, one, value in zip(operands, inner, made, strict=True)]


def _while(walk: Walk, equation: Any, *values: Value) -> list[Value]:
    condition, body = jaxprs.inner_programs(equation, values) or []
    params = parameters(equation)
    outside = params.cond_nconsts, params.body_nconsts
    of_condition, of_body = values[: outside[0]], values[outside[0] : sum(outside)]
    state = list(values[sum(outside) :])
    (start,) = walk.run(condition.jaxpr, condition.consts, [*of_condition, *state])

    def results(given: list[Value]) -> list[Value]:
        after = walk.run(body.jaxpr, body.consts, [*of_body, *given[2:]])
        return [*walk.run(condition.jaxpr, condition.consts, [*of_condition, *after]), *after]

    kinds = [((), np.dtype(np.int64)), ((), np.dtype(bool)), *((x.shape, x.dtype) for x in state)]
    inner, given, after = _body(walk, kinds, results)
    made = walk.emit_all("Loop", [None, start, *state], kinds_of(equation), body=inner)
    rows = zip(given[2:], after[1:], state, made, strict=True)
    return [before if own is entered else value for entered, own, before, value in rows]


def _cond(walk: Walk, equation: Any, which: Value, *values: Value) -> list[Value]:
    programs = jaxprs.inner_programs(equation, [which, *values]) or []
    if which.known is not None:
        chosen = programs[min(max(int(which.known), 0), len(programs) - 1)]
        return walk.run(chosen.jaxpr, chosen.consts, chosen.inputs)

    def branch(number: int) -> list[Value]:
        """The results of the branches from a number on: a chain of Ifs."""
        program = programs[number]
        if number == len(programs) - 1:
            return walk.run(program.jaxpr, program.consts, program.inputs)
        if which.dtype == np.bool_:
            here = walk.elementwise("Not", which)
        else:
            limit = walk.constant(number, which.dtype)
            here = walk.emit("LessOrEqual", which, limit, shape=(), dtype=bool)
        then, _, ones = _body(walk, [], lambda _: walk.run(program.jaxpr, program.consts, program.inputs))
        other, _, others = _body(walk, [], lambda _: branch(number + 1))
        made = walk.emit_all(
            "If",
            [here],
            kinds_of(equation),
            then_branch=then,
            else_branch=other,
        )
        rows = zip(ones, others, made, strict=True)
        return [one if one is two and one in values else value for one, two, value in rows]

    return branch(0)


CONTROL = {"scan": _scan, "while": _while, "cond": _cond}
