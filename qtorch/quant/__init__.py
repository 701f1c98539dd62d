"""QPyTorch's quantization functions and modules, with its argument names, order and defaults."""

from __future__ import annotations

from functools import lru_cache
from math import inf

import torch

from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Number, Rounding, Table
from qcore.arguments import check_float, quoted
from qcore.formats.table import check_numbers
from qcore.law.rounding import RoundingLike, check_rounding
from qcore.lazy import public_names
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import Key
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._rounding.plan import check_dtype
from qtorch.quant.module import Quantizer, quantizer

__all__ = [
    "Quantizer",
    "block_quantize",
    "configurable_table_quantize",
    "fixed_point_quantize",
    "float_quantize",
    "quantizer",
]
__dir__ = public_names(__name__)


def fixed_point_quantize(
    x: torch.Tensor,
    wl: int,
    fl: int,
    clamp: bool = True,
    symmetric: bool = False,
    rounding: RoundingLike = "stochastic",
    key: Key = None,
) -> torch.Tensor:
    """Rounds a tensor to fixed point.

    Args:
        x, rounding, key: as for `quantize`.
        wl, fl: the length of words and of their fraction, in bits.
        clamp: True clamps to the range of words; False keeps numbers beyond it.
        symmetric: True leaves out the least number, so that the range is symmetric.

    Returns:
        A tensor of x's shape and dtype.

    Example:
        >>> fixed_point_quantize(torch.tensor([0.3, -0.3, 9.0]), wl=4, fl=2, rounding="nearest")
        tensor([ 0.2500, -0.2500,  1.7500])
    """
    return quantize(x, _number(FixedPoint, wl, fl, clamp, symmetric), rounding, key=key)


def block_quantize(
    x: torch.Tensor, wl: int, dim: int = -1, rounding: RoundingLike = "stochastic", key: Key = None
) -> torch.Tensor:
    """Rounds a tensor to block floating point.

    Args:
        x, rounding, key: as for `quantize`.
        wl: the length of words, in bits.
        dim: the dimension along which each index has its own exponent; -1 for one exponent for the tensor.

    Returns:
        A tensor of x's shape and dtype.

    Example:
        >>> block_quantize(torch.tensor([1.0, 0.3, -0.02]), wl=4, rounding="nearest")
        tensor([1.0000, 0.2500, -0.0000])
    """
    return quantize(x, _number(BlockFloatingPoint, wl, dim), rounding, key=key)


def float_quantize(
    x: torch.Tensor, exp: int, man: int, rounding: RoundingLike = "stochastic", key: Key = None
) -> torch.Tensor:
    """Rounds a tensor to floating point; see `FloatingPoint`.

    Args:
        x, rounding, key: as for `quantize`.
        exp, man: the numbers of bits of exponent and mantissa.

    Returns:
        A tensor of x's shape and dtype.

    Example:
        >>> float_quantize(torch.tensor([0.1241, 0.3602]), exp=5, man=2, rounding="nearest")
        tensor([0.1250, 0.3750])
    """
    return quantize(x, _number(FloatingPoint, exp, man), rounding, key=key)


def configurable_table_quantize(
    x: torch.Tensor,
    table_lookup: torch.Tensor,
    scale: float = 1.0,
    rounding: RoundingLike = "nearest",
    key: Key = None,
) -> torch.Tensor:
    """Rounds a tensor to numbers of a table of magnitudes: a function of qtorch-plus, QPyTorch's extension.

    A number x becomes the nearest ±t of x * scale, over scale. Ties go to the smaller magnitude, and 0 stays 0, also
    where the table lacks it. `Table` has the formats with numbers of any sign, with codes, and with thresholds, which
    qtorch-plus calls rounding hints.

    Args:
        x, rounding, key: as for `quantize`.
        table_lookup: tensor of one dimension: the magnitudes, which are not negative.
        scale: multiplies x before it is rounded: a finite number above 0.

    Returns:
        A tensor of x's shape and dtype.

    Example:
        >>> configurable_table_quantize(torch.tensor([0.3, -0.7, 9.0, 0.0]), torch.tensor([0.25, 1.0, 4.0]))
        tensor([ 0.2500, -1.0000,  4.0000,  0.0000])
    """
    is_plain_tensor(x)  # raises for all but tensors
    check_dtype(x.dtype, "x")
    if isinstance(table_lookup, torch.Tensor):
        check_dense("table_lookup", table_lookup)
    magnitudes = check_numbers("table_lookup", table_lookup)
    if any(one < 0 for one in magnitudes) or not any(magnitudes):
        raise ValueError(f"table_lookup={quoted(magnitudes)}; allowed are numbers from 0 on, some of them above 0")
    scale = check_float("scale", scale, "a finite number above 0", lambda given: 0.0 < given < inf)
    scaled, mode = x * scale, check_rounding(rounding)
    table = Table([*(-one for one in magnitudes), *magnitudes])
    rounded = quantize(scaled, table, Rounding.NEAREST_ZERO if mode is Rounding.NEAREST else mode, key=key)
    return (rounded if 0 in magnitudes else torch.where(scaled == 0, scaled, rounded)) / scale


def _number(make: type[Number], *arguments: object) -> Number:
    if torch.compiler.is_dynamo_compiling():
        return make(*arguments)
    try:
        return _cached(make, *arguments)
    except TypeError:  # an argument without a hash is a wrong one: `make` names it
        return make(*arguments)


@lru_cache(maxsize=1024, typed=True)
def _cached(make: type[Number], *arguments: object) -> Number:
    return make(*arguments)
