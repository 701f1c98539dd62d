"""FlashOptim's states and weights (arXiv 2602.23349): companded codes of 8 bits, and 16-bit weights with their errors.

Of blocks of 32 numbers, with a scale that is the greatest magnitude, at least 1e-12, stored as float16:

    softsign  n = x / scale;       code = 127 * 2 n / (1 + |n|);  x = t / (2 - |t|) * scale, t = code / 127
    root      n = sqrt(x) / scale; code = 255 n;                  x = (code / 255 * scale)^2

    weight  = x rounded to 16 bits, to nearest even
    error   = (x - weight) / half a unit in the weight's last place * 127 (of int16: 32,767)

Codes and errors are rounded to the nearest integer, ties up; errors away from zero. Codes are those of the scale before
it is stored. A NaN's code is 0, with a scale that is NaN.
"""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_flag, quoted
from qcore.reproducible.differentiable import without_gradients

COMPANDED = {"softsign": ("int8", 127.0), "root": ("uint8", 255.0)}  # the dtypes of codes, and the greatest code
ERRORS = {24: "int8", 32: "int16"}  # by the bits of a weight and its error
_PLACES = {"bfloat16": (7, -126), "float16": (10, -14)}  # stored bits of a significand, and the least exponent
_LARGEST = {"int8": 127.0, "int16": 32767.0}


def check_master_bits(bits: int | None, stochastic: bool) -> None:
    """Raises an error that names the argument if the bits of weights and their errors are wrong."""
    check_flag("bf16_stochastic_round", stochastic)
    if bits is not None and (not isinstance(bits, int) or bits not in ERRORS):
        raise ValueError(f"master_weight_bits={quoted(bits)}; allowed are 24, 32 and None")
    if bits is not None and stochastic:
        raise ValueError(
            f"master_weight_bits={bits} with bf16_stochastic_round=True; allowed is one: for the second "
            "master_weight_bits=None"
        )


def encode_softsign(xp: Any, bits: Any, constants: Any) -> Any:
    """The codes of numbers up to 1, whose bits are given."""
    n = xp.settled(xp.floats(bits))
    return _nearest(xp, xp.mul(xp.div(xp.mul(n, 2.0), xp.add(abs(n), 1.0)), 127.0))


def encode_root(xp: Any, bits: Any, constants: Any) -> Any:
    """The codes of numbers from 0 to 1, whose bits are given."""
    return _nearest(xp, xp.mul(xp.settled(xp.floats(bits)), 255.0))


def _nearest(xp: Any, x: Any) -> Any:
    rounded = xp.floor(xp.add(x, 0.5))
    return xp.to_int32(xp.where(rounded == rounded, rounded, 0.0))


def decode_softsign(xp: Any, lanes: Any, constants: Any, count: int) -> Any:
    """The bits of the numbers up to 1 that codes stand for."""
    t = xp.div(xp.to_float32(lanes), 127.0)
    return xp.bits(xp.div(t, xp.sub(2.0, abs(t))))


def decode_root(xp: Any, lanes: Any, constants: Any, count: int) -> Any:
    """The bits of the numbers from 0 to 1 that codes stand for."""
    return xp.bits(xp.div(xp.to_float32(lanes), 255.0))


def _half_unit(xp: Any, weight: Any, dtype: str) -> Any:
    """Half a unit in the last place of 16-bit numbers, which are given as float32, as float64."""
    mantissa, least = _PLACES[dtype]
    exponent = xp.clip((xp.bits(weight) >> 23) & 0xFF, least + 127, 254)
    return xp.to_float64(xp.floats(exponent << 23)) * 2.0 ** -(mantissa + 1)


def weight_error(xp: Any, x: Any, weight: Any, dtype: str, kept: str) -> Any:
    """The errors of weights, integers of dtype `kept`."""
    # In float64 the difference and the quotient are exact.
    share = (xp.to_float64(x) - xp.to_float64(weight)) / _half_unit(xp, weight, dtype)
    scaled = xp.float32(xp.clip(share, -1.0, 1.0) * _LARGEST[kept])
    magnitude = _nearest(xp, abs(scaled))
    return xp.astype(xp.where(scaled < 0.0, -magnitude, magnitude), kept)


def weight_with_error(xp: Any, weight: Any, error: Any, dtype: str, kept: str) -> Any:
    """The float32 numbers that weights and their errors stand for."""
    share = xp.div(xp.to_float32(error), _LARGEST[kept])
    return xp.float32(xp.to_float64(weight) + xp.to_float64(share) * _half_unit(xp, weight, dtype))


WEIGHT_ERROR = without_gradients(weight_error, fusible=False)
WEIGHT_WITH_ERROR = without_gradients(weight_with_error, fusible=False)
