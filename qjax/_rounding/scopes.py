"""Name scopes that mark the roundings of a traced program; `qjax.insight.watch` reads them.

They cost nothing when a compiled program runs. The scopes around a rounding are read from the outside:

    encoder.linear1 / qjax.gradient / qjax.round:e5m2       the site's path, its kind (and role), the format
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer

PREFIX = "qjax."
ROUND = "qjax.round:"
PRODUCT = "qjax_product"  # the name of a primitive
LAW = "qjax.law"  # a function of `qjax.reproducible`
UNWATCHED = "qjax.unwatched"  # roundings that are not sites, or whose sites are marked
ROUNDING, MARK = "_straight_through", "_marked"  # the names of jitted functions


def kind_scope(kind: str, role: str = "", path: str = "") -> Any:
    """The scope of roundings of a kind, see `qcore.insight.Site`; with a path if the surrounding scopes have none."""
    return jax.named_scope(f"{PREFIX}{kind}:{role}:{path}")


def mark(x: Any, y: Any, text: str) -> Any:
    """y, the rounded x, as the result of a call that a traced program shows."""
    if not isinstance(y, Tracer):
        return y
    with jax.named_scope(f"{ROUND}{text}"):
        return _marked(x, y)


@jax.jit
def _marked(x: jax.Array, y: jax.Array) -> jax.Array:
    return y
