"""The norms of flax and equinox, as these packages compute them: functions of epsilon, an array and parameters.

They have no name in a program, which is therefore compared with what the package itself writes for a norm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import jax

Norm = tuple[str, Callable[..., Any], int]  # its name, (eps, x, *parameters) -> the result, how many parameters it has


def norms(size: int) -> Iterator[Norm]:
    """The norms over a last axis of a size, of the packages that a program has imported."""
    for package, function in (("flax.nnx", _nnx), ("flax.linen", _linen), ("equinox", _equinox)):
        if package in sys.modules:
            for kind, most in (("layer_norm", 2), ("rms_norm", 1)):
                for count in range(most, -1, -1):
                    yield kind, _of(function, kind, size, count), count


@lru_cache(maxsize=256)
def _of(function: Callable[..., Any], kind: str, size: int, count: int) -> Callable[..., Any]:
    return partial(function, kind, size, count)


def _settings(kind: str, count: int) -> dict[str, bool]:
    """flax's arguments for a norm with so many parameters."""
    return {"use_scale": count > 0} | ({"use_bias": count > 1} if kind == "layer_norm" else {})


def _nnx(kind: str, size: int, count: int, eps: float, x: Any, *parameters: Any) -> Any:
    from flax import nnx

    norm: Any = nnx.LayerNorm if kind == "layer_norm" else nnx.RMSNorm
    module = norm(size, epsilon=eps, rngs=nnx.Rngs(0), **_settings(kind, count))
    for name, value in zip(("scale", "bias"), parameters, strict=False):
        setattr(module, name, nnx.Param(value))
    return module(x)


def _linen(kind: str, size: int, count: int, eps: float, x: Any, *parameters: Any) -> Any:
    from flax import linen

    norm: Any = linen.LayerNorm if kind == "layer_norm" else linen.RMSNorm
    given = dict(zip(("scale", "bias"), parameters, strict=False))
    return norm(epsilon=eps, **_settings(kind, count)).apply({"params": given}, x)


def _equinox(kind: str, size: int, count: int, eps: float, x: Any, *parameters: Any) -> Any:
    import equinox

    norm: Any = equinox.nn.LayerNorm if kind == "layer_norm" else equinox.nn.RMSNorm
    module = norm(size, eps, use_weight=count > 0, use_bias=count > 1)
    for name, value in zip(("weight", "bias"), parameters, strict=False):
        object.__setattr__(module, name, value)  # equinox's modules are frozen, and this one is new
    for _ in x.shape[:-1]:
        module = jax.vmap(module)
    return module(x)
