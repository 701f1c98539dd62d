"""Tests for formats of a program's own: `check_format` looks for what every format of this library fulfils."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from qcore.arguments import check_type, quoted
from qcore.arrays import decode, encode, quantize
from qcore.formats.number import Number, check_number, prepare
from qcore.formats.text import parse
from qcore.law.carrier import CARRIERS
from qcore.law.program import WRAPPING
from qcore.law.rounding import Rounding, RoundingLike, check_rounding
from qcore.lazy import public_names

__all__ = ["check_format"]
__dir__ = public_names(__name__)

MOST_LISTED = 16  # bits of codes that are all decoded
KEY = 20_261_126
_RANDOM = 20_000  # bit patterns
_TAPERED = ("posit", "wide_posit")  # kinds that round strings of bits, and never to zero

# In NumPy's terms, for arrays lower <= x <= upper of neighbours: True where the lower one is right.
_LOWER: dict[str, Callable[[Any, Any, Any], Any]] = {
    "toward_zero": lambda x, lower, upper: abs(lower) < abs(upper),
    "away": lambda x, lower, upper: abs(lower) > abs(upper),
    "up": lambda x, lower, upper: np.zeros(x.shape, bool),
    "down": lambda x, lower, upper: np.ones(x.shape, bool),
}
_TIES: dict[str, Callable[[Any, Any], Any]] = {
    "nearest_away": lambda lower, upper: abs(lower) > abs(upper),
    "nearest_zero": lambda lower, upper: abs(lower) < abs(upper),
    "nearest_up": lambda lower, upper: np.zeros(lower.shape, bool),
    "nearest_down": lambda lower, upper: np.ones(lower.shape, bool),
}


def check_format(number: Number | str, modes: Sequence[RoundingLike] | None = None) -> None:
    """Tests a format on NumPy arrays; it takes about a second. `qtorch.testing` and `qjax.testing` go on from there.

    The format must be a value: immutable, hashable, equal to its copy, and the same after pickle and as text. Rounding
    under every mode must give one of the two neighbours, the one that the mode says where codes list the numbers, and
    must not change what it made. Codes must be decoded to what rounding gives. Inputs are the format's own numbers,
    the midpoints between them, their neighbours in each dtype, and random bit patterns.

    Args:
        number: a format whose elements are rounded one by one, not a block format; or its text.
        modes: the rounding modes to test; None is all.

    Returns:
        None.

    Raises:
        AssertionError: if a test fails. The message names what failed and an input.
        TypeError, ValueError: if number is not a format, nor the text of one.

    Example:
        >>> check_format("e4m3fn")
    """
    number, chosen = _check_elementwise(number), chosen_modes(modes)
    _check_value(number)
    for dtype, x in inputs(number):
        kind = prepare(number, Rounding.NEAREST, CARRIERS[dtype.name], None, False)[0].kind
        numbers = _numbers(number, dtype)
        exact = "table" not in kind or has_codes(number, dtype)  # a dtype may lack numbers of a table
        for mode in chosen:
            rounded = quantize(x, number, mode, key=KEY)
            what = f"{number.text} to {mode.value} in {dtype.name}"
            if exact:
                again = quantize(rounded, number, mode, key=KEY + 1)
                _expect(_bits(again) == _bits(rounded), x, f"{what} changes its own result")
            if kind not in WRAPPING:
                _check_between(number, mode, x, rounded, what)
            if numbers is not None:
                nearest = kind not in _TAPERED and getattr(number, "thresholds", None) is None
                _check_neighbours(mode, kind, nearest, numbers, x, rounded, what)
                _check_codes(number, mode, x, rounded, what)


def inputs(number: Number) -> Iterator[tuple[np.dtype, np.ndarray]]:
    """Hard inputs for a format in each dtype that NumPy has here and that holds some of the format's numbers."""
    for name in CARRIERS:
        with suppress(TypeError, ValueError):  # bfloat16 is a dtype where ml_dtypes was imported
            dtype = np.dtype(name)
            prepare(number, Rounding.NEAREST, CARRIERS[name], None, False)
            yield dtype, _hard(number, dtype)


def chosen_modes(modes: Sequence[RoundingLike] | None) -> list[Rounding]:
    """The rounding modes of the argument `modes`."""
    if modes is None:
        return list(Rounding)
    check_type("modes", modes, list | tuple, "a list of rounding modes, or None")
    return [check_rounding(mode) for mode in modes]


def compare(
    number: Number,
    modes: Sequence[Rounding],
    name: str,
    functions: Callable[[np.ndarray, Rounding], Iterator[tuple[str, Any, Any]]],
) -> None:
    """Raises an AssertionError unless a package has the bits of `qcore`.

    Args:
        number: the format.
        modes: the rounding modes.
        name: the package's, for messages.
        functions: from an input and a mode to what is compared: a name, the result as an array, and qcore's.
    """
    for dtype, x in inputs(number):
        for mode in modes:
            for what, found, expected in functions(x, mode):
                message = f"{name}: {what} of {number.text} to {mode.value} in {dtype.name} is not that of qcore"
                _expect(_bits(found) == _bits(expected), x, message)


def has_codes(number: Number, dtype: Any) -> bool:
    """True if a format has codes, whose numbers the dtype holds."""
    try:
        number.check_exact(CARRIERS[np.dtype(dtype).name])
        number.codes(CARRIERS[np.dtype(dtype).name])
    except ValueError:
        return False
    return True


def _check_elementwise(number: Any) -> Number:
    number = check_number(number)
    if number.axes(2):
        raise ValueError(f"number={quoted(number)} is a block format; allowed is a format for single elements")
    return number


def _check_value(number: Number) -> None:
    """A format is an immutable value, which texts and pickles carry."""
    for what, same in (
        ("its copy", copy.deepcopy(number)),
        ("itself after pickle", pickle.loads(pickle.dumps(number))),
        (f"parse({quoted(number.text)})", parse(number.text)),
    ):
        assert same == number, f"{quoted(number)} is not equal to {what}, {quoted(same)}"
        assert hash(same) == hash(number), f"{quoted(number)} has another hash than {what}"
    for name in type(number).__match_args__:  # type: ignore[attr-defined]
        try:
            setattr(number, name, getattr(number, name))
        except AttributeError:
            continue
        raise AssertionError(f"{quoted(number)}: {name} can be assigned; allowed is a dataclass with frozen=True")


def _numbers(number: Number, dtype: np.dtype) -> np.ndarray | None:
    """The finite numbers of all codes in float64, in order; None without such a list, and in float64 itself."""
    if dtype.itemsize == 8 or not has_codes(number, dtype) or number.bits > MOST_LISTED:
        return None
    numbers = _exact(decode(np.arange(1 << number.bits), number, dtype))
    return np.unique(numbers[np.isfinite(numbers)])


def _hard(number: Number, dtype: np.dtype) -> np.ndarray:
    rng, integers = np.random.default_rng(KEY), np.dtype(f"u{dtype.itemsize}")
    points = np.array([0, 1, 1.5])
    listed = _numbers(number, np.dtype(np.float32))
    if listed is not None:
        points = np.concatenate([listed, (listed[1:] + listed[:-1]) / 2])
    with np.errstate(over="ignore"):
        exact = points.astype(dtype).view(integers)
    around = np.concatenate([exact, exact + integers.type(1), exact - integers.type(1)])
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan], dtype).view(integers)
    patterns = rng.integers(0, 1 << 8 * dtype.itemsize, _RANDOM, integers)
    magnitudes = np.concatenate([around, patterns])
    both = np.concatenate([magnitudes, magnitudes ^ integers.type(1 << 8 * dtype.itemsize - 1)])
    return np.concatenate([special, np.unique(both)]).view(dtype)


def _check_between(number: Number, mode: Rounding, x: np.ndarray, rounded: np.ndarray, what: str) -> None:
    """Results lie between the neighbours that the modes "down" and "up" give, where these are finite."""
    lower, upper, exact, found = map(_exact, (quantize(x, number, "down"), quantize(x, number, "up"), x, rounded))
    known = np.isfinite(lower) & np.isfinite(upper) & np.isfinite(exact) & (lower <= exact) & (upper >= exact)
    _expect(~known | (found == lower) | (found == upper), x, f"{what} is not one of its neighbours")


def _check_neighbours(
    mode: Rounding, kind: str, nearest: bool, numbers: np.ndarray, given: np.ndarray, rounded: np.ndarray, what: str
) -> None:
    """Results are the neighbours, among all numbers, that the mode says; between the least and the largest number.

    `nearest` is False for formats that do not round to nearest at midpoints.
    """
    inside = (given >= numbers[0]) & (given <= numbers[-1])
    x, found = _exact(given[inside]), _exact(rounded[inside])
    lower = numbers[np.searchsorted(numbers, x, "right") - 1]
    upper = numbers[np.searchsorted(numbers, x, "left")]
    right = (found == lower) | (found == upper)
    if mode.value in _LOWER and kind not in _TAPERED:
        right &= found == np.where(_LOWER[mode.value](x, lower, upper), lower, upper)
    elif mode.to_nearest and nearest:
        total = lower + upper
        exact = (total - lower == upper) & (total - upper == lower)
        right &= ~exact | (2 * x >= total) | (found == lower)
        right &= ~exact | (2 * x <= total) | (found == upper)
        if mode.value in _TIES:
            tie = exact & (2 * x == total)
            right &= ~tie | (found == np.where(_TIES[mode.value](lower, upper), lower, upper))
    _expect(right, given[inside], f"{what} is not the neighbour that the mode says")


def _check_codes(number: Number, mode: Rounding, x: np.ndarray, rounded: np.ndarray, what: str) -> None:
    """Codes stand for what rounding gives: finite numbers by value, as some formats have no negative zero."""
    codes: Any = encode(x, number, mode, key=KEY)
    decoded, expected = map(_exact, (decode(codes, number, x.dtype), rounded))
    _expect(~np.isfinite(expected) | (decoded == expected), x, f"{what} has a code of another number")


def _exact(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # signaling NaNs
        return x.astype(np.float64)


def _bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def _expect(right: np.ndarray, x: np.ndarray, message: str) -> None:
    wrong = np.flatnonzero(~right)
    assert wrong.size == 0, f"{message}: {wrong.size} of {x.size} inputs, the first is {x.reshape(-1)[wrong[0]]}"
