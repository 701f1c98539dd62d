"""Functions whose `jax.nn.dot_product_attention` an engine computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer

from qcore.engines.coverage import Coverage, covered, given_fields
from qcore.engines.engine import Engine, EngineLike, check_engine
from qcore.engines.fold import WEIGHTS
from qjax.engines.arrays import attention
from qjax.engines.decoders import guarded_attention
from qjax.engines.norms import RMS_NORMS, exchanged_norms
from qjax.recipes import lower

P = ParamSpec("P")
R = TypeVar("R")

_EXCHANGING = RLock()
# A part of the key of jit's caches: what was traced with an engine is not found without it, or with another one.
_ENGINE: Any = jax.make_user_context(None)
# Arguments of `jax.nn.dot_product_attention` that engines here do not define, and what is not given.
_UNDEFINED = {
    "bias": None,
    "query_seq_lengths": None,
    "key_value_seq_lengths": None,
    "return_residual": False,
}


def apply(function: Callable[P, R], engine: EngineLike) -> Callable[P, R]:
    """A function in which an engine computes what `jax.nn.dot_product_attention` and flax's norms would.

    All keys and values pass the engine's cache when they are read. Functions that were jitted, and traced before, are
    traced again; without the engine they stay as they are. `RMSNorm` of flax.nnx and flax.linen is the engine's, with
    the gradient of flax's, and what norms return is rounded to `activations`. All other operations stay JAX's, and
    products of XLA depend on the number of rows.

    Args:
        function: a function or a module that is called.
        engine: a name of `qcore.engines.ENGINES`, such as "fa3.hopper.fp8", an `Engine`, or its text.

    Returns:
        A function with the same arguments and result, one call at a time in all threads; `report` says what of the
        engine it computes, and a warning what not: JAX has no hook for other layers, and sums between them. A bias,
        lengths of sequences and residuals of attention raise a ValueError: engines do not define them. So does a window
        of an engine with tiles, unless queries are as many as keys, causal and without a mask; and the
        first call that does not reach `jax.nn.dot_product_attention`. Flax's attention with a dropout rate or sown
        weights, and linen's without `attention_fn=flax.nnx.dot_product_attention`, raise; so does a token beyond flax's
        cache, whose result is NaN in a program. Several texts in a row raise with an engine that has tiles, if the mask
        is not traced.

    Example:
        >>> exact = apply(lambda *x: jax.nn.dot_product_attention(*x, is_causal=True), "exact")
        >>> x = jnp.ones((1, 3, 2, 4))  # heads after tokens
        >>> exact(x, x, x).shape
        (1, 3, 2, 4)
    """
    if not callable(function):
        raise TypeError(f"function is a {type(function).__name__}; allowed is a function, or a module that is called")
    found = check_engine(engine)
    if found.cache is not None and not found.cache.causal:
        raise ValueError(
            f"engine has cache={found.cache.text}: {found.cache.why_not_causal}; allowed here are static scales, those "
            "of a token or of a token and head, and blocks along the head"
        )
    reached: list[bool] = []
    if found.products is not None:
        function = cast("Callable[P, R]", lower(function, found.products, on=found.on))
    reachable = {"attention": ["jax.nn.dot_product_attention"]}
    reachable |= {"cache": reachable["attention"], "products": ["jax.lax.dot_general"]}
    others = [name for name in given_fields(found) if name not in reachable and name not in ("norm", "root")]
    undefined = dict.fromkeys(others, "JAX has no hook for it")
    if found.activations is not None:
        undefined["activations"] = "norms alone are rounded: JAX has no hook for other layers, and sums between them"
    coverage = covered(found, reachable | dict.fromkeys(("norm", "root", "activations"), RMS_NORMS), undefined)

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        with _exchanged(found, reached):
            result = function(*arguments, **options)
        if not reached:
            raise ValueError(
                "function did not call jax.nn.dot_product_attention; allowed is one that looks it up when it is "
                "traced. After jax.clear_caches() programs are traced again"
            )
        return result

    call.qjax_coverage = coverage  # type: ignore[attr-defined]
    return call


def report(function: Callable[..., object]) -> Coverage:
    """What of an engine a function computes.

    Args:
        function: what `apply` returned.

    Returns:
        A `Coverage`: for each field of the engine what computes it. `print` shows a table.

    Raises:
        ValueError: if the function has no engine.

    Example:
        >>> print(report(apply(jax.nn.dot_product_attention, "hf.eager")))
        field      layers  kinds                         undefined
        attention  1       jax.nn.dot_product_attention
    """
    found = getattr(function, "qjax_coverage", None)
    if found is None:
        raise ValueError("function has no engine; allowed is what apply returned")
    return found


@contextmanager
def _exchanged(engine: Engine, reached: list[bool]) -> Iterator[None]:
    """The context in which an engine stands for `jax.nn.dot_product_attention`."""

    def run(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> jax.Array:
        if not is_ours():  # another thread
            return before(query, key, value, bias, mask, **options)
        reached.append(True)
        return _attention(engine, query, key, value, mask, {"bias": bias, **options})

    def is_ours() -> bool:
        return _ENGINE.value == engine.text

    with _EXCHANGING, _ENGINE(engine.text), exchanged_norms(engine, is_ours), guarded_attention(is_ours):
        before = jax.nn.dot_product_attention
        jax.nn.dot_product_attention = run
        try:
            yield
        finally:
            jax.nn.dot_product_attention = before


def _attention(engine: Engine, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]) -> jax.Array:
    """An engine's attention with the arguments of `jax.nn.dot_product_attention`."""
    for name, absent in _UNDEFINED.items():
        if options.get(name, absent) is not absent:
            raise ValueError(
                f"{name} of dot_product_attention is given; allowed is {absent}: the engine does not define it"
            )
    q, k, v = (jnp.asarray(x) for x in (query, key, value))
    single, dtype = q.ndim == 3, q.dtype
    q, k, v = (jnp.swapaxes(x[None] if single else x, 1, 2).astype(jnp.float32) for x in (q, k, v))
    queries, keys = q.shape[2], k.shape[2]
    causal = bool(options.get("is_causal", False))
    sizes, window = options.get("local_window_size"), None
    if sizes is not None and engine.attention.end != WEIGHTS:
        if mask is not None or not causal or queries != keys:
            raise ValueError(
                f"local_window_size={sizes} of dot_product_attention, and the engine has tiles of keys; allowed are "
                "is_causal=True, as many queries as keys and mask=None: tiles of a window depend on places in the text"
            )
        window = (sizes if isinstance(sizes, int) else sizes[0]) + 1
    elif sizes is not None:
        near = _window(sizes, queries, keys)
        mask = near if mask is None else jnp.logical_and(mask, near)
    if causal and (mask is not None or queries != keys):  # JAX lets query i see the keys 0 to i
        early = jnp.tril(jnp.ones((queries, keys), bool))[None, None]
        mask, causal = early if mask is None else jnp.logical_and(mask, early), False
    if mask is not None and engine.attention.end != WEIGHTS and not isinstance(mask, Tracer):
        _check_texts(mask)
    found = attention(q, k, v, engine, causal, scale=options.get("scale"), mask=mask, window=window)
    found = jnp.swapaxes(found, 1, 2).astype(dtype)
    return found[0] if single else found


def _window(sizes: Any, queries: int, keys: int) -> jax.Array:
    """The mask of so many keys before and after query i's, which is key i, as JAX counts."""
    before, after = (sizes, sizes) if isinstance(sizes, int) else sizes
    distance = jnp.arange(keys)[None] - jnp.arange(queries)[:, None]
    return ((-before <= distance) & (distance <= after))[None, None]


def _check_texts(mask: Any) -> None:
    """Raises for rows of a batch with several texts, where an engine's blocks would not begin with the second text."""
    sees = mask.any(-1)
    first = jnp.where(sees, jnp.argmax(mask, -1), mask.shape[-1])
    if (sees & (first != first.min((1, 2), keepdims=True))).any():
        raise ValueError(
            "mask has several texts in one row of a batch; allowed with an engine that has tiles of keys is one a row"
        )
