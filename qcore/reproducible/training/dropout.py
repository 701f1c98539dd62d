"""Dropout: a number's random word, by its index, decides whether it stays."""

from __future__ import annotations

from math import prod
from typing import Any

from qcore.random.threefry import element_words
from qcore.reproducible.differentiable import Differentiable

_BITS = 24


def _dropout(xp: Any, x: Any, key: Any, rate: float) -> tuple[Any, tuple[Any]]:
    """`TrainingFunctions.dropout`, with the key as two words."""
    return _masked(xp, x, key, rate), (key,)


def _dropout_gradient(xp: Any, saved: tuple[Any], gradient: Any, rate: float) -> tuple[Any, None]:
    return _masked(xp, gradient, saved[0], rate), None


def _masked(xp: Any, x: Any, key: Any, rate: float) -> Any:
    shape = tuple(x.shape) or (1,)
    arange = lambda size: xp.arange(size, key)  # noqa: E731
    zero = key[0] & 0
    words = element_words(arange, shape, (key[0], key[1]), (zero, zero), prod(shape) >= 2**31, xp.materialize)
    stays = ((words >> (32 - _BITS)) & ((1 << _BITS) - 1)) >= round(rate * (1 << _BITS))
    return xp.where(stays.reshape(x.shape), xp.mul(x, 1 / (1 - rate)), xp.zeros((), x))


DROPOUT = Differentiable(_dropout, _dropout_gradient, by_pieces=True, fusible=False)
