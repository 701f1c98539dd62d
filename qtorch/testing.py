"""Tests for formats of a program's own, on tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch

import qcore
from qcore import Number, Rounding
from qcore.formats.number import check_number
from qcore.law.rounding import RoundingLike
from qcore.lazy import public_names
from qcore.testing import KEY, chosen_modes, compare, has_codes
from qcore.testing import check_format as check_in_numpy
from qtorch._rounding.dispatch import decode, encode, quantize
from qtorch._rounding.keys import make_noise
from qtorch._rounding.paths.choice import by_operations
from qtorch._rounding.plan import plan_for

__all__ = ["check_format"]
__dir__ = public_names(__name__)


def check_format(number: Number | str, modes: Sequence[RoundingLike] | None = None) -> None:
    """Tests a format on NumPy arrays, as `qcore.testing.check_format` does, and compares the bits of PyTorch.

    Compared are operations, the kernel where there is a compiler, codes, and a program of `torch.compile`, which takes
    seconds to compile.

    Args:
        number: a format whose elements are rounded one by one, not a block format; or its text.
        modes: the rounding modes to test; None is all.

    Returns:
        None.

    Raises:
        AssertionError: if a test fails, or bits differ. The message names what failed and an input.
        TypeError, ValueError: if number is not a format, nor the text of one.

    Example:
        >>> check_format("float(5,2)", ["nearest"])
    """
    number = check_number(number)
    check_in_numpy(number, modes)

    def program(x: torch.Tensor) -> torch.Tensor:
        return quantize(x, number)

    # Dynamo counts the programs of each code object, and compiles only a few: this copy has no others.
    alone = FunctionType(program.__code__.replace(), program.__globals__, closure=program.__closure__)
    compiled = torch.compile(alone, fullgraph=True)

    def functions(given: np.ndarray, mode: Rounding) -> Iterator[tuple[str, Any, Any]]:
        x, expected = _tensor(given), qcore.quantize(given, number, mode, key=KEY)
        yield "quantize", _array(quantize(x, number, mode, key=KEY), given.dtype), expected
        yield "quantize by operations", _array(_by_operations(x, number, mode), given.dtype), expected
        if mode is Rounding.NEAREST and given.dtype == np.float32:
            yield "compiled quantize", _array(compiled(x), given.dtype), expected
        if has_codes(number, given.dtype):
            codes: Any = qcore.encode(given, number, mode, key=KEY)
            own: Any = encode(x, number, mode, key=KEY)
            yield "encode", own.numpy(), codes
            found = decode(torch.from_numpy(codes), number, x.dtype)
            yield "decode", _array(found, given.dtype), qcore.decode(codes, number, given.dtype)

    compare(number, chosen_modes(modes), "qtorch", functions)


def _by_operations(x: torch.Tensor, number: Number, mode: Rounding) -> Any:
    plan = plan_for(number, mode, x.dtype, None, False)
    return by_operations(x, plan, make_noise(KEY, 24, 0, x) if plan.stochastic else None)


def _tensor(x: np.ndarray) -> torch.Tensor:
    if x.dtype.itemsize > 2:
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16)).view(getattr(torch, x.dtype.name))


def _array(x: torch.Tensor, dtype: Any) -> np.ndarray:
    return (x.view(torch.int16).numpy().view(dtype)) if dtype.itemsize == 2 else x.numpy()
