"""The watch over a function: it returns the statistics of all its roundings beside its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from qcore.arguments import quoted
from qcore.formats.block import BlockNumber
from qcore.formats.number import check_number
from qcore.insight import Site, Statistics
from qcore.insight.law import DIGIT, LENGTH, SUMS, merge_lanes
from qcore.insight.record import KINDS
from qjax import _jaxprs as jaxprs
from qjax._parameters import parameters
from qjax._rounding.inputs import Result, varying
from qjax._rounding.scopes import MARK, PREFIX, PRODUCT, ROUND, ROUNDING, SITE, UNWATCHED, text_of
from qjax.insight.arrays import digest_of, over_mesh, statistics_between
from qjax.linalg.operator import compute

Counted = dict[Site, Statistics]

_digests: ContextVar[bool] = ContextVar("digests", default=False)  # True while a watch that keeps them is traced


def watch(fn: Callable[..., Result], digests: bool = False) -> Callable[..., tuple[Result, Counted]]:
    """A function that returns fn's result, with the same bits, and the statistics of all its roundings.

    The sites are: calls of `quantize` and of `quantizer`s, and roundings of `qjax.recipes.lower`, by the dotted name
    scope; their gradients, if fn computes them; operands and accumulators of the products of `qjax.linalg`; gradients,
    accumulators, weights and states in `qjax.optim.low_precision`, by the parameters' paths. An accumulator's error is
    its distance from the exact sum, rounded to float32.

    It works under jit and grad, and through jit, checkpoint, cond, while_loop, scan, vmap and shard_map within fn.
    Statistics of a scan have one entry for each iteration (`Statistics.parts`). A while_loop, and the shards of a
    shard_map, have one entry for all together. Of shards that are copies only one counts, unless check_vma=False hides
    that they are copies; in digests shards have indices of their own. Gradients of the watched function itself are not
    included: watch the function that takes them. Under vmap blocks must be defined from the last axis on.

    Args:
        fn: a function of pytrees of arrays.
        digests: True adds digests of the bits of all results, which a `Record` keeps, for `qcore.insight.compare`.

    Returns:
        A function with fn's arguments, which returns a pair: fn's result, and a dictionary from sites to statistics.
        Call it under jit, because it traces fn at each call.

    Raises:
        ValueError: in a call: if fn rounds nothing, or rounds in a Pallas kernel, from which statistics cannot come
            out.

    Example:
        >>> from qjax import quantize
        >>> def layer(x):
        ...     with jax.named_scope("layer"):
        ...         return quantize(x, "e4m3fn")
        >>> y, found = jax.jit(watch(layer))(jnp.float32([1, 900]))
        >>> found[Site("layer", "output")].overflowed
        1
    """
    if not callable(fn):
        kind = "; leave an optimizer out, and watch the function that calls its update" if hasattr(fn, "update") else ""
        raise TypeError(f"fn={quoted(fn)} is a {type(fn).__name__}; allowed is a function{kind}")
    if not isinstance(digests, bool):
        raise TypeError(
            f"digests is a {type(digests).__name__}; allowed are True and False. Leave an optimizer out, and watch the "
            "function that calls its update"
        )

    @wraps(fn)
    def watched(*args: Any, **kwargs: Any) -> tuple[Any, Counted]:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
        result_tree: Any = None

        def flat(*arrays: Any) -> Sequence[Any]:
            nonlocal result_tree
            given = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                given[i] = array
            own_args, own_kwargs = jax.tree.unflatten(tree, given)
            results, result_tree = jax.tree.flatten(fn(*own_args, **own_kwargs))
            return results

        arrays = [leaves[i] for i in places]
        traced = jax.make_jaxpr(flat)(*arrays)
        if not has_sites(traced.jaxpr, ""):
            raise ValueError("fn rounds nothing that is watched; allowed is a function that calls qjax's roundings")
        before = _digests.set(digests)
        try:
            results, found = evaluate(traced.jaxpr, traced.consts, arrays, "")
        finally:
            _digests.reset(before)
        return jax.tree.unflatten(result_tree, results), found

    return watched


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], outer: str) -> tuple[list[Any], Counted]:
    """The results of a program that runs in a name stack, and its statistics."""
    found: Counted = {}

    def step(_: int, equation: Any, operands: list[Any]) -> Sequence[Any]:
        results, more = _run(equation, operands, stack_of(outer, equation))
        for site, statistics in more.items():
            found[site] = merged(found[site], statistics) if site in found else statistics
        return results

    return jaxprs.evaluate(jaxpr, consts, args, step), found


def _run(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Counted]:
    """The results of an equation, and the statistics of all that it rounds."""
    name = equation.primitive.name
    rounded = site_of(stack, equation)
    if rounded is not None:
        results = jaxprs.bind(equation, operands)
        return results, {rounded.site: _statistics(rounded, operands[0], results[0])}
    if is_product(equation):
        return _product(equation, operands, stack)
    if not any(has_sites(inner, stack) for inner in core.jaxprs_in_params(equation.params)):
        return jaxprs.bind(equation, operands), {}
    allowed = (*jaxprs.REBUILT, *jaxprs.CUSTOM)
    if name not in allowed:
        raise ValueError(f"fn rounds within {name}, out of which no statistics come; allowed are {', '.join(allowed)}")
    programs = jaxprs.inner_programs(equation, operands)
    assert programs is not None

    def run(which: int, operands: Sequence[Any], carried: Any, _: Any) -> tuple[Sequence[Any], Any, Counted]:
        results, found = evaluate(programs[which].jaxpr, programs[which].consts, operands, stack)
        return results, carried, found

    if name in jaxprs.CUSTOM:  # the function keeps its own derivative; its statistics are computed beside it
        return jaxprs.bind(equation, operands), run(0, [jax.lax.stop_gradient(x) for x in operands], None, None)[2]
    if name == "while":
        if has_sites(programs[0].jaxpr, stack):
            raise ValueError("fn rounds within the condition of a while_loop; allowed is its body")
        return _while(equation, operands, run)
    inside = {"cond": _same_sites, "shard_map": _over_shards}.get(name, lambda equation, operands, run: run)
    results, _, found = jaxprs.rebuild(equation, operands, inside(equation, operands, run))
    return results, found


def _while(equation: Any, operands: Sequence[Any], run: jaxprs.Run) -> tuple[Sequence[Any], Counted]:
    """A while_loop, which carries the statistics of all its iterations together."""
    of_body = operands[parameters(equation).cond_nconsts :]
    kinds = jax.eval_shape(lambda *args: run(1, args, None, None)[2], *of_body)

    def step(which: int, operands: Sequence[Any], found: Counted, _: Any) -> tuple[Sequence[Any], Counted, None]:
        results, _, more = run(which, operands, None, None)
        return results, {site: merged(one, flat(more[site])) for site, one in found.items() if site in more}, None

    start = {site: none_like(one) for site, one in kinds.items()}
    return jaxprs.rebuild(equation, operands, step, start)[:2]


def _same_sites(equation: Any, operands: Sequence[Any], run: jaxprs.Run) -> jaxprs.Run:
    """A cond, whose branches all return the statistics of the sites of all branches."""
    kinds: Counted = {}
    for which in range(len(parameters(equation).branches)):
        kinds |= jax.eval_shape(lambda *args, which=which: run(which, args, None, None)[2], *operands[1:])

    def branch(which: int, operands: Sequence[Any], carried: Any, _: Any) -> tuple[Sequence[Any], Any, Counted]:
        results, _, found = run(which, operands, None, None)
        whole = {site: flat(found[site]) if site in found else none_like(one) for site, one in kinds.items()}
        return results, carried, whole

    return branch


def _over_shards(equation: Any, operands: Sequence[Any], run: jaxprs.Run) -> jaxprs.Run:
    """A shard_map. Of shards that hold the same numbers only one counts, which is known if check_vma is True."""
    params = parameters(equation)
    axes = tuple(name for name in params.mesh.axis_names if name in params.shard_axes)

    def shard(which: int, operands: Sequence[Any], carried: Any, _: Any) -> tuple[Sequence[Any], Any, Counted]:
        results, _, found = run(which, operands, None, None)
        for site, one in found.items():
            along = set(axes) & varying(one.lanes) if params.check_vma else axes
            found[site] = Statistics(one.number, over_axes(one.lanes, tuple(along)))
        return results, carried, found

    return shard


def _statistics(rounded: Rounded, x: Any, y: Any) -> Statistics:
    number = check_number(rounded.number)
    if rounded.batched and isinstance(number, BlockNumber):
        ndim = jnp.ndim(x)
        if number.tile_sizes(ndim)[1:] != number.tile_sizes(ndim - 1) or number.tile_sizes(ndim)[0] != 1:
            raise ValueError(f"fn rounds to {rounded.number} under vmap; allowed are blocks along the last axes")
    x, y = map(jax.lax.stop_gradient, (x, y))
    with jax.enable_x64(False):
        found = statistics_between(x, y, number)
        if _digests.get():
            found = Statistics(found.number, jnp.concatenate([found.lanes, over_mesh(digest_of, y)(y)]))
    return found


def _product(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Counted]:
    """A product with the statistics of its operands, and of its accumulator beside the exact sum."""
    params = equation.params
    traced = jax.make_jaxpr(partial(compute, **params))(*operands)
    _, found = evaluate(traced.jaxpr, traced.consts, operands, stack)
    results = jaxprs.bind(equation, operands)
    products, which = params["products"], params["which"]
    how = products.of(which)
    if how._unrounded != how:
        exact = replace(products, **{which: how._unrounded})
        wide = compute(*operands, **params | {"products": exact})
        rounded = Rounded(product_site(stack, which), how.accumulator.number.text, False)
        found[rounded.site] = _statistics(rounded, wide, results[0])
    return results, found


_TRANSFORMATION = re.compile(r"\w+\(|\)")
_INNER = ("checkpoint", "rematted_computation", "while", "body", "closed_call")  # scopes of JAX itself


class Rounded(NamedTuple):
    """The rounding of an equation.

    Attributes:
        site: the site.
        number: the text of the format.
        batched: True under vmap, where the array's first axis has the examples.
    """

    site: Site
    number: str
    batched: bool


def stack_of(outer: str, equation: Any) -> str:
    """The name stack of an equation in a program that runs in another stack."""
    return "/".join(part for part in (outer, str(equation.source_info.name_stack)) if part)


def site_of(stack: str, equation: Any) -> Rounded | None:
    """The rounding of an equation; None if it does not round, or is not watched."""
    name = parameters(equation).name if equation.primitive.name in ("jit", "pjit") else None
    if name not in (ROUNDING, MARK) or len(equation.invars) < 2 or len(equation.outvars) != 1:
        return None
    if ROUND not in stack or (UNWATCHED in stack and name == ROUNDING):
        return None
    return Rounded(_site(stack), text_of(stack, ROUND), "vmap(" in stack)


def is_product(equation: Any) -> bool:
    """True if an equation is a product of `qjax.linalg`."""
    return equation.primitive.name == PRODUCT


def path_of(stack: str) -> str:
    """The place of a lowered product in `qjax.recipes.report`, or the path of scopes that users and modules name."""
    if SITE in stack:
        return text_of(stack, SITE)
    plain = _TRANSFORMATION.sub("", "/".join(part for part in stack.split("/") if PREFIX not in part))
    return ".".join(part for part in plain.split("/") if part and part not in _INNER)


def product_site(stack: str, which: str) -> Site:
    role = {"forward": "", "grad_a": "grad_input", "grad_b": "grad_weight"}[which]
    return Site(path_of(stack), "accumulator", role)


def _site(stack: str) -> Site:
    kinds = [part.partition(PREFIX)[2].split(":") for part in stack.split("/") if PREFIX in part]
    found = [kind for kind in kinds if kind[0] in KINDS]
    if not found:
        return Site(path_of(stack), "output")
    kind, role, path = found[-1]
    return Site(path or path_of(stack), kind, role)


def has_sites(jaxpr: Any, outer: str) -> bool:
    """True if a program, or one within it, has a site."""
    for equation in jaxpr.eqns:
        stack = stack_of(outer, equation)
        if site_of(stack, equation) or is_product(equation):
            return True
        if any(has_sites(inner, stack) for inner in core.jaxprs_in_params(equation.params)):
            return True
    return False


def merged(a: Statistics, b: Statistics) -> Statistics:
    """Merges two statistics of a site: into one, or into an entry for each iteration if one is from a scan."""
    if a.number != b.number:
        raise ValueError(
            f"fn rounds to {a.number} and {b.number} at one site; allowed are names of their own, by scopes"
        )
    if a.lanes.ndim == b.lanes.ndim == 1:
        return Statistics(a.number, merge_lanes(jnp, a.lanes, b.lanes))
    return Statistics(a.number, jnp.concatenate([one.lanes.reshape(-1, one.lanes.shape[-1]) for one in (a, b)]))


def none_like(one: Statistics) -> Statistics:
    """Statistics of no elements."""
    return Statistics(one.number, jnp.zeros(one.lanes.shape[-1], jnp.int32))


def flat(one: Statistics) -> Statistics:
    """Merges the entries that an inner scan made."""
    lanes = one.lanes.reshape(-1, one.lanes.shape[-1])
    total = lanes[0]
    for i in range(1, len(lanes)):
        total = merge_lanes(jnp, total, lanes[i])
    return Statistics(one.number, total)


def over_axes(lanes: Any, axes: tuple[str, ...]) -> Any:
    """Merges the lanes of all devices along axes of a mesh; at most 2^15 devices."""
    if not axes:
        return lanes
    half, mask = DIGIT // 2, (1 << DIGIT // 2) - 1
    low = lanes[..., SUMS : 2 * SUMS]
    high, middle, low, digest = jax.lax.psum((lanes[..., :SUMS], low >> half, low & mask, lanes[..., LENGTH:]), axes)
    middle = middle + (low >> half)
    magnitudes = jax.lax.pmax(lanes[..., 2 * SUMS : LENGTH], axes)
    return jnp.concatenate([high + (middle >> half), (middle & mask) << half | (low & mask), magnitudes, digest], -1)
