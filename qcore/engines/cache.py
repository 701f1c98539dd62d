"""Caches of keys and values: what of them is stored, and so what every later query reads."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from qcore.arguments import check_choice, check_flag, check_float, check_type, quoted
from qcore.formats.block import E2M1, E4M3, BlockScaled, largest_number
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat
from qcore.formats.number import Number, call_text, check_number
from qcore.formats.text import Kind, Reader, choice, register, write
from qcore.reproducible.operations import normal

STATIC = "static"
# The axes of (batch, heads, length, head size) that share a dynamic scale.
SHARED = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "token": (1, 3), "token_head": (3,)}
SCALES = STATIC, *SHARED
PLAIN, TRUNCATED, ZERO_POINT, FOUR_OVER_SIX, DS_MLA = "plain", "truncated", "zero_point", "four_over_six", "ds_mla"
LAWS = PLAIN, TRUNCATED, ZERO_POINT, FOUR_OVER_SIX, DS_MLA
_LEAST = normal(1e-6)  # of a dynamic scale
_LENGTH = 2  # the axis of tokens
_BLOCK = 16  # numbers of a block of NVFP4
_TILE, _ROPE = 128, 64  # of DeepSeek's latent attention: numbers that share a scale, numbers with positions
_LEAST_TILE = 2.0**-126 * (1 + 2.0**-23)  # the least scale of a tile that is no zero here; DeepSeek's is 2^-126
_ELEMENT, _SCALE = E2M1.overflowing("saturate"), E4M3.overflowing("saturate")
BFLOAT16 = BinaryFloat(8, 7)


@dataclass(frozen=True, repr=False)
class KVCache:
    """What a cache stores of keys and values x: numbers of a format, times a scale.

        static       stored = number(x / scale) * scale, with the scales `k` and `v`
        dynamic      scale = max(amax / largest, 1e-6);  stored = number(x * (1 / scale)) * scale

    Each operation is rounded once to float32; amax is the largest magnitude of what shares a scale, `largest` the
    format's largest number. Numbers beyond the range become what the format says: allow ":saturate".

    What `law` changes, with the numbers and scales that it is for:

    - "plain": nothing.
    - "truncated", integers such as int8 with dynamic scales: they are cut off toward zero.
    - "zero_point", unsigned integers of w <= 8 bits and scale="token_head": scale = max((max - min) / (2^w - 1), 1e-6),
      z = -min / scale + 1/2 and q = x * (1 / scale) + z + 1/2, both cut off and clipped to 0 and 2^w - 1. z takes the
      last w bits of the scale; stored = (q - z) * scale without these bits.
    - "four_over_six", scaled(e2m1fn,{-1:16},scale=e4m3fn) with scale="static": a block's scale is that of its amax / 6,
      or of its amax / 4 where the sum of squares of errors is lower.
    - "ds_mla", a float with scale="token_head": each 128 numbers of a head have a scale, max(amax / largest, 2^-126),
      and number(x / scale); the last 64 numbers of keys are bfloat16.

    Args:
        number: the format, or its text. Blocks lie along the axes of (batch, key heads, length, head size).
        scale: "static", or what shares a dynamic scale: "tensor", "head", "token", "token_head".
        k, v: the static scales of keys and values.
        law: a name of the list above.
        rotated: True has queries, keys and values multiplied with fixed signs and a Hadamard matrix of ones before,
            and rounded to the attention's `operand`. The scale is divided by the head size, a power of two, and the
            rounded result is turned back.

    Attributes:
        text: the text form, which `qcore.parse` reads.

    Raises:
        ValueError: if an argument is out of range, or contradicts another.

    Example:
        >>> KVCache("e4m3fn:saturate", "token_head").causal, KVCache("nvfp4").causal
        (True, False)
        >>> KVCache("nvfp4").why_not_causal
        'the numbers of a token depend on later tokens'
        >>> KVCache.of("int4_per_token_head").text
        'kv_cache(uint4,scale=token_head,law=zero_point,rotated=True)'
    """

    number: Number
    scale: str = STATIC
    k: float = 1.0
    v: float = 1.0
    law: str = PLAIN
    rotated: bool = False
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            number: Number | str,
            scale: Literal["static", "tensor", "head", "token", "token_head"] = STATIC,
            k: float = 1.0,
            v: float = 1.0,
            law: Literal["plain", "truncated", "zero_point", "four_over_six", "ds_mla"] = PLAIN,
            rotated: bool = False,
        ) -> None: ...

    @classmethod
    def of(cls, name: str) -> KVCache:
        """The cache with a name of `CACHES`, which has its source and version.

        Args:
            name: such as "fp8_e4m3" or "int4_per_token_head".

        Raises:
            ValueError: if no cache has this name; the message has the nearest names.

        Example:
            >>> KVCache.of("fp8_per_token_head").text
            'kv_cache(e4m3fn:saturate,scale=token_head)'
        """
        check_type("name", name, str, "a str, such as 'fp8_e4m3'")
        return named("name", name)

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
        check_choice("law", self.law, LAWS)
        check_flag("rotated", self.rotated)
        if self.scale != STATIC:
            self._check_dynamic()
        self._check_law()
        self._set(text=write(self))

    def _check_dynamic(self) -> None:
        if self.k != 1 or self.v != 1:
            raise ValueError(f"k={self.k}, v={self.v} with scale={self.scale}; allowed are 1 and 1: scales are dynamic")
        if not isinstance(self.number, BinaryFloat | FixedPoint):
            allowed = "allowed are floating and fixed point formats without blocks"
            raise ValueError(f"number={quoted(self.number.text)} with scale={self.scale}; {allowed}")

    def _check_law(self) -> None:
        """Raises if the law is not for numbers and scales like these."""
        number: Any = self.number
        whole = isinstance(number, FixedPoint) and number == FixedPoint(number.wl, 0, signed=number.signed)
        block = BlockScaled(_ELEMENT, {-1: _BLOCK}, scale=_SCALE)
        fits, allowed = {
            PLAIN: (True, ""),
            TRUNCATED: (whole and number.signed and self.scale != STATIC, "signed integers with dynamic scales"),
            ZERO_POINT: (
                whole and not number.signed and number.wl <= 8 and self.scale == "token_head",
                "unsigned integers of at most 8 bits with scale=token_head",
            ),
            FOUR_OVER_SIX: (number == block and self.scale == STATIC, f"{block.text} with scale=static"),
            DS_MLA: (
                isinstance(number, BinaryFloat) and self.scale == "token_head",
                "a float without blocks with scale=token_head",
            ),
        }[self.law]
        if not fits:
            given = f"number={quoted(number.text)} and scale={self.scale} with law={self.law}"
            raise ValueError(f"{given}; allowed there is {allowed}")

    def check_size(self, name: str, size: int) -> None:
        """Raises if heads of this size have no whole blocks.

        Args:
            name: of the array, for the message.
            size: the head size.
        """
        if self.rotated and size & (size - 1):
            raise ValueError(f"{name} has heads of {size} with a rotated cache; allowed are powers of two")
        rest = size - _ROPE if name == "k" and self.law == DS_MLA else size
        step = {FOUR_OVER_SIX: _BLOCK, DS_MLA: _TILE}.get(self.law, 1)
        if rest <= 0 or rest % step:
            tail = f" and {_ROPE}" if rest != size else ""
            raise ValueError(
                f"{name} has heads of {size} with a cache of law={self.law}; allowed are multiples of {step}{tail}"
            )

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
    "law": choice(LAWS),
    "rotated": Reader.flag,
}
register("kv_cache", Kind(KVCache, _PARAMETERS, 1, 1, 1))


class PublishedCache(NamedTuple):
    """A cache that others wrote.

    Attributes:
        cache: the `KVCache`.
        source: where the law was read, with the version.
        undefined: what the source does not define, or the library does not compute.

    Example:
        >>> CACHES["int8_per_token_head"].cache.scale
        'token_head'
    """

    cache: KVCache
    source: str
    undefined: str


_RESHAPE = "vLLM, v1/attention/ops/triton_reshape_and_cache_flash.py"
_FLASH, _BY_HEAD = f"{_RESHAPE} 027e07f2", f"{_RESHAPE} 9fbab337 (JartX/vllm)"
_NVFP4 = "scaled(e2m1fn,{-1:16},scale=e4m3fn)"
_BLACKWELL = "vLLM, csrc/nvfp4_kv_cache_kernels.cu 5d11149b"
_APPROXIMATE = (
    "the chip's approximate reciprocals, of 6, 4 and scales: correctly rounded here. Numbers are divided by a static "
    "scale first, which is the kernel's law for powers of two"
)
_SCALE_OF_ONE = "how k and v are found: 1 without calibration"

# Caches by name.
CACHES: Mapping[str, PublishedCache] = MappingProxyType(
    {
        "fp8_e4m3": PublishedCache(KVCache("e4m3fn:saturate"), _FLASH, _SCALE_OF_ONE),
        "fp8_e5m2": PublishedCache(KVCache("e5m2:saturate"), _FLASH, _SCALE_OF_ONE),
        "fp8_per_token_head": PublishedCache(KVCache("e4m3fn:saturate", "token_head"), _BY_HEAD, "nothing"),
        "int8_per_token_head": PublishedCache(
            KVCache("int8", "token_head", law=TRUNCATED), _BY_HEAD, "nothing; Triton converts toward zero"
        ),
        "int4_per_token_head": PublishedCache(
            KVCache("uint4", "token_head", law=ZERO_POINT, rotated=True),
            "vLLM, v1/attention/ops/int4_per_token_head.py, 055e47c2",
            "whether x * (1 / scale) + z is fused: it is not here. The sums of the rotation are exact here, rounded "
            "once: a kernel on Hopper rounds between its stages. The products' formats are the engine's",
        ),
        "nvfp4": PublishedCache(KVCache(_NVFP4), _BLACKWELL, f"{_SCALE_OF_ONE}; {_APPROXIMATE}"),
        "nvfp4_4over6": PublishedCache(
            KVCache(_NVFP4, law=FOUR_OVER_SIX),
            _BLACKWELL,
            f"{_SCALE_OF_ONE}; {_APPROXIMATE}; whether sums of errors are fused: not here",
        ),
        "fp8_ds_mla": PublishedCache(
            KVCache("e4m3fn:saturate", "token_head", law=DS_MLA),
            "vLLM, csrc/libtorch_stable/cache_kernels.cu 37cb21c1, concat_and_cache_ds_mla_kernel",
            "scales of 2^-126, which are a little larger here",
        ),
    }
)


def named(argument: str, name: str) -> KVCache:
    """The cache of a name; messages call the name by the user's argument."""
    if name not in CACHES:
        nearest = get_close_matches(name, CACHES, 3, 0.3)
        hint = f" (nearest: {', '.join(nearest)})" if nearest else ""
        raise ValueError(f"{argument}={quoted(name)}{hint}; allowed are {', '.join(CACHES)}, and texts")
    return CACHES[name].cache


# What is stored.


def codes(xp: Any, cache: KVCache, x: Any, which: str) -> tuple[Any, Any]:
    """Numbers of the cache's format, and what they are multiplied with: an array, or a Python number.

    Args:
        xp: the namespace of attention.
        cache: the cache, of the law "plain", "truncated" or "zero_point".
        x: keys or values of shape (batch, key heads, length, head size).
        which: "k" or "v".
    """
    if cache.scale == STATIC:
        scale = getattr(cache, which)
        return xp.quantized(x if scale == 1 else xp.div(x, scale), cache.number), scale
    if cache.law == ZERO_POINT:
        return _with_zero_points(xp, cache, x)
    found = _dynamic(xp, cache, x, SHARED[cache.scale], _LEAST)
    scaled = xp.mul(x, xp.div(1.0, found))
    return xp.quantized(xp.trunc(scaled) if cache.law == TRUNCATED else scaled, cache.number), found


def stored(xp: Any, cache: KVCache, x: Any, which: str) -> Any:
    """What is read of the cache in float32; arguments are those of `codes`, of any law."""
    if cache.law == DS_MLA:
        return _latent(xp, cache, x, which)
    if cache.law == FOUR_OVER_SIX:
        scale = getattr(cache, which)
        return xp.mul(_four_over_six(xp, x if scale == 1 else xp.div(x, scale)), scale)
    found, factor = codes(xp, cache, x, which)
    return found if isinstance(factor, float) and factor == 1 else xp.mul(found, factor)


def _dynamic(xp: Any, cache: KVCache, x: Any, axes: tuple[int, ...], least: float) -> Any:
    """The scales of what shares them."""
    significand, exponent = largest_number(cache.number)
    found = xp.div(xp.greatest(abs(xp.settled(x)), axes), significand * 2.0**exponent)
    return xp.where(found < least, least, found)


def _with_zero_points(xp: Any, cache: KVCache, x: Any) -> tuple[Any, Any]:
    """Integers less their zero points, and scales without the bits that the zero points take."""
    bits = cache.number.bits
    x, last = xp.settled(x), 2.0**bits - 1
    least, most = -xp.greatest(-x, (3,)), xp.greatest(x, (3,))
    scale = xp.div(xp.sub(most, least), last)
    scale = xp.where(scale < _LEAST, _LEAST, scale)
    zero = xp.clip(xp.trunc(xp.add(xp.div(-least, scale), 0.5)), 0.0, last)
    found = xp.clip(xp.trunc(xp.add(xp.add(xp.mul(x, xp.div(1.0, scale)), zero), 0.5)), 0.0, last)
    return found - zero, xp.floats(xp.bits(scale) & -(2**bits))


def _latent(xp: Any, cache: KVCache, x: Any, which: str) -> Any:
    """Tiles of a head with scales of their own, and for keys a rest in bfloat16."""
    size = x.shape[-1] - (_ROPE if which == "k" else 0)
    tiles = x[..., :size].reshape((*x.shape[:-1], size // _TILE, _TILE))
    scale = _dynamic(xp, cache, tiles, (4,), _LEAST_TILE)
    found = xp.mul(xp.quantized(xp.div(tiles, scale), cache.number), scale).reshape((*x.shape[:-1], size))
    return xp.concatenate([found, xp.quantized(x[..., size:], BFLOAT16)], 3) if which == "k" else found


def _four_over_six(xp: Any, x: Any) -> Any:
    """Blocks with the scale that makes 6 or 4 of their largest magnitude, by the sum of the squares of errors."""
    blocks = xp.settled(x).reshape((*x.shape[:-1], x.shape[-1] // _BLOCK, _BLOCK))
    most = xp.greatest(abs(blocks), (4,))
    (six, error_of_six), (four, error_of_four) = [_candidate(xp, blocks, xp.mul(most, part)) for part in (1 / 6, 0.25)]
    return xp.where(error_of_four < error_of_six, four, six).reshape(x.shape)


def _candidate(xp: Any, blocks: Any, wanted: Any) -> tuple[Any, Any]:
    """What blocks become with a scale, and the sums of the squares of their errors."""
    scale = xp.quantized(wanted, _SCALE)
    found = xp.mul(xp.quantized(xp.mul(blocks, xp.div(1.0, xp.where(scale == 0, 1.0, scale))), _ELEMENT), scale)
    error = xp.sub(found, blocks)
    squares = xp.mul(error, error)
    pairs = xp.add(squares[..., ::2], squares[..., 1::2])
    total = pairs[..., :1]
    for place in range(1, _BLOCK // 2):
        total = xp.add(total, pairs[..., place : place + 1])
    return found, total
