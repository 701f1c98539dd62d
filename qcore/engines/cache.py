"""Caches of keys and values: what of them is stored, and so what every later query reads."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from qcore.arguments import check_choice, check_float, quoted
from qcore.formats.block import largest_number
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat
from qcore.formats.number import Number, call_text, check_number
from qcore.formats.text import Kind, Reader, choice, register, write
from qcore.reproducible.operations import normal

STATIC = "static"
# The axes of (batch, heads, length, head size) that share a dynamic scale.
SHARED = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "token": (1, 3), "token_head": (3,)}
SCALES = STATIC, *SHARED
_LEAST = normal(1e-6)  # of a dynamic scale
_LENGTH = 2  # the axis of tokens


@dataclass(frozen=True, repr=False)
class KVCache:
    """What a cache stores of keys and values x: numbers of a format, times a scale.

        static       stored = number(x / scale) * scale, with the scales `k` and `v`
        dynamic      scale = max(amax / largest, 1e-6);  stored = number(x * (1 / scale)) * scale

    Each operation is rounded once to float32; amax is the largest magnitude of what shares a scale, `largest` the
    format's largest number. Numbers beyond the range become what the format says: allow ":saturate".

    Args:
        number: the format, or its text. Blocks lie along the axes of (batch, key heads, length, head size).
        scale: "static", or what shares a dynamic scale: "tensor", "head", "token", "token_head".
        k, v: the static scales of keys and values.

    Attributes:
        text: the text form, which `qcore.parse` reads.

    Raises:
        ValueError: if an argument is out of range, or contradicts another.

    Example:
        >>> KVCache("e4m3fn:saturate", "token_head").causal, KVCache("nvfp4").causal
        (True, False)
        >>> KVCache("nvfp4").why_not_causal
        'the numbers of a token depend on later tokens'
    """

    number: Number
    scale: str = STATIC
    k: float = 1.0
    v: float = 1.0
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            number: Number | str,
            scale: Literal["static", "tensor", "head", "token", "token_head"] = STATIC,
            k: float = 1.0,
            v: float = 1.0,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        self._set(number=check_number(self.number))
        check_choice("scale", self.scale, SCALES)
        for name in ("k", "v"):
            given = check_float(name, getattr(self, name), "a scale of float32 above 2^-126", lambda x: x > 0)
            if not 0 < normal(given) < float("inf"):
                raise ValueError(f"{name}={quoted(getattr(self, name))}; allowed is a scale of float32 above 2^-126")
            self._set(**{name: normal(given)})
        if self.scale != STATIC:
            self._check_dynamic()
        self._set(text=write(self))

    def _check_dynamic(self) -> None:
        if self.k != 1 or self.v != 1:
            raise ValueError(f"k={self.k}, v={self.v} with scale={self.scale}; allowed are 1 and 1: scales are dynamic")
        if not isinstance(self.number, BinaryFloat | FixedPoint):
            allowed = "allowed are floating and fixed point formats without blocks"
            raise ValueError(f"number={quoted(self.number.text)} with scale={self.scale}; {allowed}")

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes along which stored numbers depend on each other."""
        return tuple(sorted({*SHARED.get(self.scale, ()), *self.number.axes(4)}))

    @property
    def causal(self) -> bool:
        """True if what is stored of a token does not depend on later tokens."""
        return _LENGTH not in self.axes

    @property
    def why_not_causal(self) -> str:
        """The reason, or ""."""
        return "" if self.causal else "the numbers of a token depend on later tokens"


_PARAMETERS = {
    "number": Reader.number,
    "scale": choice(SCALES),
    "k": Reader.decimal,
    "v": Reader.decimal,
}
register("kv_cache", Kind(KVCache, _PARAMETERS, 1, 1, 1))


def codes(xp: Any, cache: KVCache, x: Any, scale: float) -> tuple[Any, Any]:
    """Numbers of the cache's format, and what they are multiplied with: an array, or a Python number.

    Args:
        xp: the namespace of attention.
        cache: the cache.
        x: keys or values of shape (batch, key heads, length, head size).
        scale: the static scale.
    """
    if cache.scale == STATIC:
        return xp.quantized(x if scale == 1 else xp.div(x, scale), cache.number), scale
    significand, exponent = largest_number(cache.number)
    found = xp.div(xp.greatest(abs(xp.settled(x)), SHARED[cache.scale]), significand * 2.0**exponent)
    found = xp.where(found < _LEAST, _LEAST, found)
    return xp.quantized(xp.mul(x, xp.div(1.0, found)), cache.number), found


def stored(xp: Any, cache: KVCache, x: Any, scale: float) -> Any:
    """What is read of the cache in float32; arguments are those of `codes`."""
    found, factor = codes(xp, cache, x, scale)
    return found if isinstance(factor, float) and factor == 1 else xp.mul(found, factor)
