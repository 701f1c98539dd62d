"""Functions that return the statistics of all that they round beside their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import current_name_stack, user_context

from qcore.arguments import quoted
from qcore.formats.block import BlockNumber
from qcore.formats.number import check_number
from qcore.insight import Site, Statistics
from qjax._rounding.inputs import varying
from qjax._rounding.scopes import PRODUCT
from qjax.insight.arrays import digest_of, over_mesh, statistics_between
from qjax.insight.merging import flat, merged, none_like, over_axes
from qjax.insight.sites import Rounded, has_sites, is_product, product_site, site_of, stack_of
from qjax.linalg.call import compute
from qjax.recipes.programs import scan_parts

Found = dict[Site, Statistics]

_digests: ContextVar[bool] = ContextVar("digests", default=False)  # True while a watch that keeps them is traced
_INLINED = ("jit", "pjit", "closed_call", "core_call", core.primitives.remat_p.name)


def watch(fn: Callable[..., Any], digests: bool = False) -> Callable[..., tuple[Any, Found]]:
    """A function that returns fn's result, with the same bits, and the statistics of all that fn rounds.

    The sites are: calls of `quantize` and of `quantizer`s, and what `qjax.recipes.lower` rounds, by the dotted name
    scope; the gradients of these, if fn computes them; operands and accumulators of the products of `qjax.linalg`;
    gradients, accumulators, weights and states in `qjax.optim.low_precision`, by the parameters' paths. An
    accumulator's error is its distance from the exact sum, rounded to float32.

    It works under jit and grad, and through jit, checkpoint, cond, while_loop, scan, vmap and shard_map within fn.
    Statistics of a scan have one entry for each iteration (`Statistics.parts`); those of a while_loop, and of a
    shard_map's shards, are of all together. Of shards that are copies one counts, unless check_vma=False hides it; in
    digests shards have indices of their own. Gradients that are taken of the watched function are not seen: watch the
    function that takes them. Under vmap blocks must be defined from the last axis on.

    Args:
        fn: a function of pytrees of arrays.
        digests: True adds digests of the bits of all results, which a `Record` keeps, for `qcore.insight.compare`.

    Returns:
        A function with fn's arguments, which returns a pair: fn's result, and a dictionary from sites to statistics.
        Call it under jit, because it traces fn at each call.

    Raises:
        TypeError: if fn is no function.
        ValueError: in a call: if fn rounds nothing, or rounds where no statistics can come out: in a Pallas kernel.

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
        raise TypeError(f"fn={quoted(fn)} is a {type(fn).__name__}; allowed is a function")

    @wraps(fn)
    def watched(*args: Any, **kwargs: Any) -> tuple[Any, Found]:
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


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], outer: str) -> tuple[list[Any], Found]:
    """The results of a program that runs in a name stack, and its statistics."""
    values = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
    found: Found = {}

    def read(atom: Any) -> Any:
        return values[atom] if isinstance(atom, core.Var) else atom.val

    for equation in jaxpr.eqns:
        scope = current_name_stack() + equation.source_info.name_stack
        with user_context(equation.source_info.traceback, name_stack=scope), equation.ctx.manager:
            results, more = _run(equation, [read(atom) for atom in equation.invars], stack_of(outer, equation))
        for site, statistics in more.items():
            found[site] = merged(found[site], statistics) if site in found else statistics
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars], found


def _run(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    name = equation.primitive.name
    rounded = site_of(stack, equation)
    if rounded is not None:
        results = _bind(equation, operands)
        return results, {rounded.site: _statistics(rounded, operands[0], results[0])}
    inside = any(has_sites(inner, stack) for inner in core.jaxprs_in_params(equation.params))
    if not inside and not is_product(equation):
        return _bind(equation, operands), {}
    if name not in _CALLS:
        raise ValueError(f"fn rounds within {name}, out of which no statistics come; allowed are {', '.join(_CALLS)}")
    return _CALLS[name](equation, operands, stack)


def _bind(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


def _statistics(rounded: Rounded, x: Any, y: Any) -> Statistics:
    number = check_number(rounded.number)
    if rounded.batched and isinstance(number, BlockNumber):
        ndim = jnp.ndim(x)
        if number.block_sizes(ndim)[1:] != number.block_sizes(ndim - 1) or number.block_sizes(ndim)[0] != 1:
            raise ValueError(f"fn rounds to {rounded.number} under vmap; allowed are blocks along the last axes")
    x, y = map(jax.lax.stop_gradient, (x, y))
    with jax.enable_x64(False):
        found = statistics_between(x, y, number)
        if _digests.get():
            found = Statistics(found.number, jnp.concatenate([found.lanes, over_mesh(digest_of, y)(y)]))
    return found


def _inlined(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    inner = equation.params["jaxpr"] if "jaxpr" in equation.params else equation.params["call_jaxpr"]
    closed = isinstance(inner, core.ClosedJaxpr)
    jaxpr, consts = (inner.jaxpr, inner.consts) if closed else (inner, ())
    return evaluate(jaxpr, consts, operands, stack)


def _product(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    """A product with the statistics of its operands, and of its accumulator beside the exact sum."""
    params = equation.params
    traced = jax.make_jaxpr(partial(compute, **params))(*operands)
    _, found = evaluate(traced.jaxpr, traced.consts, operands, stack)
    results = _bind(equation, operands)
    products, which = params["products"], params["which"]
    how = products.of(which)
    if how.unrounded != how:
        exact = replace(products, **{which: how.unrounded})
        wide = compute(*operands, **params | {"products": exact})
        rounded = Rounded(product_site(stack, which), how.accumulator.number.text, False)
        found[rounded.site] = _statistics(rounded, wide, results[0])
    return results, found


def _custom(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    """The function with its own derivative, and apart from it the statistics of its values."""
    inner = equation.params["call_jaxpr"]
    _, found = evaluate(inner.jaxpr, inner.consts, [jax.lax.stop_gradient(x) for x in operands], stack)
    return _bind(equation, operands), found


def _scan(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    params = equation.params
    count, split = scan_parts(equation)
    inner = params["jaxpr"]

    def body(carry: Sequence[Any], xs: Any) -> tuple[Any, Any]:
        results, found = evaluate(inner.jaxpr, inner.consts, [*operands[:count], *carry, *xs], stack)
        return results[: split - count], (results[split - count :], found)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, (stacked, found) = jax.lax.scan(body, operands[count:split], operands[split:], **options)
    return [*carry, *stacked], found


def _while(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    first = equation.params["cond_nconsts"]
    second = first + equation.params["body_nconsts"]
    condition, inner = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    if has_sites(condition.jaxpr, stack):
        raise ValueError("fn rounds within the condition of a while_loop; allowed is its body")
    step = partial(evaluate, inner.jaxpr, inner.consts, outer=stack)
    kinds = jax.eval_shape(lambda *carry: step([*operands[first:second], *carry])[1], *operands[second:])
    start = {site: none_like(one) for site, one in kinds.items()}

    def body(state: Any) -> Any:
        carry, found = state
        carry, more = step([*operands[first:second], *carry])
        return carry, {site: merged(one, flat(more[site])) for site, one in found.items()}

    def goes_on(state: Any) -> Any:
        return evaluate(condition.jaxpr, condition.consts, [*operands[:first], *state[0]], stack)[0][0]

    return jax.lax.while_loop(goes_on, body, (operands[second:], start))


def _cond(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    index, *rest = operands
    branches = [partial(evaluate, one.jaxpr, one.consts, outer=stack) for one in equation.params["branches"]]
    kinds: Found = {}
    for branch in branches:
        kinds |= jax.eval_shape(lambda *args, branch=branch: branch(args)[1], *rest)

    def whole(branch: Any, *args: Any) -> Any:
        results, found = branch(args)
        return results, {site: flat(found[site]) if site in found else none_like(one) for site, one in kinds.items()}

    return jax.lax.switch(index, [partial(whole, branch) for branch in branches], *rest)


def _shard_map(equation: Any, operands: list[Any], stack: str) -> tuple[Sequence[Any], Found]:
    """Of shards that hold the same numbers one counts; that they do is known if the axes of arrays are checked."""
    params = equation.params
    axes = tuple(name for name in params["mesh"].axis_names if name in params["newly_manual_axes"])

    def body(*args: Any) -> Any:
        results, found = evaluate(params["jaxpr"], (), args, stack)
        for site, one in found.items():
            along = set(axes) & varying(one.lanes) if params["check_vma"] else axes
            found[site] = Statistics(one.number, over_axes(one.lanes, tuple(along)))
        return results, found

    mapped = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=params["in_specs"],
        out_specs=(list(params["out_specs"]), jax.sharding.PartitionSpec()),
        axis_names=params["newly_manual_axes"],
        check_vma=params["check_vma"],
    )
    return mapped(*operands)


_CALLS: dict[str, Callable[[Any, list[Any], str], tuple[Sequence[Any], Found]]] = {
    **dict.fromkeys(_INLINED, _inlined),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    PRODUCT: _product,
    "custom_jvp_call": _custom,
    "custom_vjp_call": _custom,
}
