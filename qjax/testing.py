"""Tests for formats of a program's own, on JAX arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qcore
from qcore import Number, Rounding
from qcore.formats.number import check_number
from qcore.law.rounding import RoundingLike
from qcore.lazy import public_names
from qcore.testing import KEY, chosen_modes, compare, has_codes
from qcore.testing import check_format as check_in_numpy
from qjax._rounding.dispatch import decode, encode, quantize

__all__ = ["check_format"]
__dir__ = public_names(__name__)


def check_format(number: Number | str, modes: Sequence[RoundingLike] | None = None) -> None:
    """Tests a format on NumPy arrays, as `qcore.testing.check_format` does, and compares the bits of JAX.

    Compared are rounding and codes, by themselves and inside a jitted program; float64 where x64 is enabled.

    Args:
        number: a format whose elements are rounded one by one, not a block format; or its text.
        modes: the rounding modes to test; None is all.

    Returns:
        None.

    Raises:
        AssertionError: if a test fails, or bits differ. The message names what failed and an input.
        TypeError, ValueError: if number is not a format, nor the text of one.

    Example:
        >>> check_format("float(5,2)", ["nearest", "stochastic"])
    """
    number = check_number(number)
    check_in_numpy(number, modes)

    def functions(given: np.ndarray, mode: Rounding) -> Iterator[tuple[str, Any, Any]]:
        if given.dtype.itemsize == 8 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return
        x, expected = jnp.asarray(given), qcore.quantize(given, number, mode, key=KEY)
        yield "quantize", np.asarray(quantize(x, number, mode, key=KEY)), expected
        if mode is Rounding.NEAREST:
            yield "quantize in jit", np.asarray(jax.jit(lambda x: quantize(x, number))(x)), expected
        if has_codes(number, given.dtype):
            codes: Any = qcore.encode(given, number, mode, key=KEY)
            yield "encode", np.asarray(encode(x, number, mode, key=KEY)), codes
            found = decode(codes, number, given.dtype)
            yield "decode", np.asarray(found), qcore.decode(codes, number, given.dtype)

    compare(number, chosen_modes(modes), "qjax", functions)
