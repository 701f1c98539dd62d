"""The functions of NumPy arrays, which are the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import arrays
from qcore.arguments import missing_key
from qcore.arithmetic.binding import Arithmetic
from qcore.arithmetic.call import DTYPES, OperationCall, exact_of_codes, table_of
from qcore.arithmetic.law import one_nan
from qcore.binding import NUMPY
from qcore.linalg.namespace import Float64
from qcore.packing import check_codes


class Arrays(Arithmetic, package=__name__.rpartition(".")[0], words=NUMPY):
    """The functions of NumPy arrays."""

    def floats(self, name: str, x: Any) -> tuple[np.ndarray, str]:
        dtype = x.dtype.name if isinstance(x, np.ndarray | np.generic) else None
        if dtype not in DTYPES:
            came = f"a {type(x).__name__}" if dtype is None else f"an array of {dtype}"
            raise TypeError(f"{name} is {came}; allowed is a NumPy array of {', '.join(DTYPES)}")
        return np.asarray(x), dtype

    def codes(self, name: str, x: Any) -> np.ndarray:
        return check_codes(x, name)

    def on_numbers(self, call: OperationCall, arrays_: tuple[Any, ...], dtype: str, key: Any) -> np.ndarray:
        _check_key(call, key)
        wide = np.broadcast_arrays(*(x.astype(np.float64) for x in arrays_))
        with np.errstate(all="ignore"):
            exact = np.asarray(call.exact(Float64(), *wide))
        found = one_nan(Float64, arrays.quantize(exact, **call.quantizing, key=key))
        return found.astype(next(x.dtype for x in arrays_ if x.dtype.name == dtype) if dtype != "float32" else dtype)

    def on_codes(self, call: OperationCall, codes: tuple[Any, ...], key: Any) -> np.ndarray:
        _check_key(call, key)
        if not call.has_table:
            return arrays.encode(exact_of_codes(call, codes), **call.quantizing, key=key)
        place = codes[0].astype(np.int32) & (1 << call.widths[0]) - 1
        for x, bits in zip(codes[1:], call.widths[1:], strict=True):
            place = (place << bits) | (x.astype(np.int32) & (1 << bits) - 1)
        return table_of(call)[place]


def _check_key(call: OperationCall, key: Any) -> None:
    if call.is_stochastic and key is None:
        raise missing_key()


FUNCTIONS = Arrays()
