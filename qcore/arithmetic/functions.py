"""The functions of NumPy arrays, which are the reference."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from qcore import arrays
from qcore.arguments import missing_key
from qcore.arithmetic.call import (
    DTYPES,
    OperationCall,
    Question,
    are_bits,
    exact_of_codes,
    indices_of,
    low_bits,
    numbers_of,
    stand_ins_of,
    table_of,
)
from qcore.arithmetic.law import one_nan
from qcore.arithmetic.rows import Arithmetic
from qcore.binding import NUMPY
from qcore.linalg.namespace import Float64
from qcore.packing import check_codes

_PART = 1 << 17  # elements
_OF_A_THREAD = 1 << 20  # elements, which take a hundred times as long as its start


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
        found_dtype = next(x.dtype for x in arrays_ if x.dtype.name == dtype) if dtype != "float32" else np.float32
        if call.operands:
            return self._looked_up(call, arrays_, found_dtype, key)
        with np.errstate(all="ignore"):
            wide = np.broadcast_arrays(*(x.astype(np.float64) for x in arrays_))
            exact = np.asarray(call.exact(Float64(), *wide))
        found = one_nan(Float64, arrays.quantize(exact, **call.quantizing, key=key))
        return found.astype(found_dtype)

    def _looked_up(self, call: OperationCall, arrays_: tuple[Any, ...], found_dtype: Any, key: Any) -> np.ndarray:
        """The results of a function that is a table."""
        codes = tuple(_codes_of(x, text) for x, text in zip(arrays_, call.operands, strict=True))
        if not call.is_stochastic:
            return _taken(numbers_of(call).astype(found_dtype), call, codes)
        found = arrays.quantize(_taken(stand_ins_of(call), call, codes), **call.quantizing, key=key)
        return one_nan(Float64, found).astype(found_dtype)

    def on_question(self, question: Question, given: tuple[Any, ...]) -> np.ndarray:
        if question.operands:
            given = tuple(arrays.decode(x, text) for x, text in zip(given, question.operands, strict=True))
        with np.errstate(all="ignore"):  # of NaN
            found = question.answer(Float64(), *(np.asarray(x).astype(np.float64) for x in given))
        return found.astype(np.uint8) if question.name == "classify" else found

    def on_codes(self, call: OperationCall, codes: tuple[Any, ...], key: Any) -> np.ndarray:
        _check_key(call, key)
        if not call.is_looked_up:
            return arrays.encode(exact_of_codes(call, codes), **call.quantizing, key=key)
        if call.is_stochastic:
            return arrays.encode(_taken(stand_ins_of(call), call, codes), **call.quantizing, key=key)
        return _taken(table_of(call), call, codes)


def _codes_of(x: np.ndarray, text: str) -> Any:
    return x.view(np.uint16) if are_bits(x.dtype.name, text) else arrays.encode(x, text)


def _taken(table: np.ndarray, call: OperationCall, codes: tuple[np.ndarray, ...]) -> np.ndarray:
    """The entries of a table for codes that broadcast, by parts that caches of processors hold, in a thread a core."""
    codes, widths = np.broadcast_arrays(*codes), call.widths
    found, flat = np.empty(codes[0].shape, table.dtype), [x.reshape(-1) for x in codes]
    entries = found.reshape(-1)

    def fill(begins: range) -> None:
        index = np.empty(min(_PART, entries.size), np.intp)  # `take` makes a new array of indices of another dtype
        for begin in begins:
            part = slice(begin, begin + _PART)
            here = index[: entries[part].size]
            here[...] = indices_of(widths, tuple(x[part] for x in flat), _low)
            table.take(here, out=entries[part], mode="wrap")  # which does not ask for each index if it is valid

    threads = min(os.cpu_count() or 1, entries.size // _OF_A_THREAD)
    if threads < 2:
        fill(range(0, entries.size, _PART))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, (range(i * _PART, entries.size, threads * _PART) for i in range(threads))))
    return found


def _low(x: np.ndarray, bits: int) -> np.ndarray:
    """Codes without higher bits, which unsigned integers of so many have not; in uint16, as all together have 16."""
    found = x.astype(np.uint16, copy=False)
    return found if x.dtype.kind == "u" and x.itemsize * 8 == bits else low_bits(found, bits)


def _check_key(call: OperationCall, key: Any) -> None:
    if call.is_stochastic and key is None:
        raise missing_key()


FUNCTIONS = Arrays()
