"""Checks of users' arguments; every message names the argument, what was received and what is allowed."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

MOST_QUOTED = 200  # characters of a user's value in a message
_MOST_SIZE = 2**31 - 1  # of a dimension, a window or a step


def quoted(value: Any) -> str:
    """A user's value in a message, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write very long ints
        text = _digits(value) if isinstance(value, int) else f"a {type(value).__name__} with a very long int"
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 4]} ..."


def printable(text: str) -> str:
    """A text of one line with its control characters as Python writes them: terminals obey them, and XML has none."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def check_int(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """An int within [low, high]; bool and float are refused."""
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises any of them for tensors without one value
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}={quoted(value)} is a {type(value).__name__}; allowed is {_ints(low, high)}")
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError(f"{name}={_digits(number)}; allowed is {_ints(low, high)}")
    return number


def _ints(low: int | None, high: int | None) -> str:
    """The allowed ints in a message."""
    if low is None:
        return "an int"
    return f"an int >= {low}" if high is None else f"an int from {low} to {_digits(high)}"


def _digits(number: int) -> str:
    """The text of an int in a message; Python refuses to write very long ones."""
    return str(number) if abs(number) < 10**40 else f"an int of {number.bit_length()} bits"


def check_size(name: str, value: Any, least: int = 1) -> int:
    """A number of elements along a dimension, or a step through them; sums and products of two fit in 64 bits."""
    size = check_int(name, value, least)
    if size > _MOST_SIZE:
        raise ValueError(f"{name}={_digits(size)}; allowed is an int from {least} to 2^31 - 1")
    return size


def check_sizes(name: str, value: Any, least: int, dimensions: int) -> tuple[int, ...]:
    """A size for all dimensions, or one for each."""
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,) * dimensions
    if len(sizes) != dimensions:
        count = {1: "one", 2: "two", 3: "three"}.get(dimensions, dimensions)
        raise ValueError(f"{name}={quoted(value)}; allowed are one number or {count}")
    return tuple(check_size(name, size, least) for size in sizes)


def check_float(
    name: str, value: Any, allowed: str = "a number >= 0", fits: Callable[[float], bool] = (0.0).__le__
) -> float:
    """A number that fits, as a float; text, bools and arrays of several values are refused."""
    try:
        number = None if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises any of them for tensors without one value
        number = None
    except OverflowError:
        raise ValueError(f"{name} is beyond float64; allowed is {allowed}") from None
    if number is None:
        raise TypeError(f"{name}={quoted(value)} is a {type(value).__name__}; allowed is {allowed}")
    if not fits(number):
        raise ValueError(f"{name}={quoted(value)}; allowed is {allowed}")
    return number


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={quoted(value)} is a {type(value).__name__}; allowed are True and False")


def check_type(name: str, value: Any, classes: Any, allowed: str) -> None:
    if not isinstance(value, classes):
        raise TypeError(f"{name} is a {type(value).__name__}; allowed is {allowed}")


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}={quoted(value)} is a {type(value).__name__}; allowed are {', '.join(allowed)}")
    if value not in allowed:
        raise ValueError(f"{name}={quoted(value)}; allowed are {', '.join(allowed)}")


def check_broadcast(a: str, shape: Any, b: str, other: Any) -> None:
    """Raises unless the shapes of two arguments with these names broadcast."""
    for m, n in zip(shape[::-1], other[::-1], strict=False):
        if m != n and m != 1 and n != 1:
            came = f"{a} has shape {tuple(shape)}, {b} {tuple(other)}"
            raise ValueError(f"{came}; allowed are shapes that broadcast")


def check_tensors(tensors: Any) -> None:
    """Raises unless an argument is a mapping with strings as keys."""
    check_type("tensors", tensors, Mapping, "a mapping of names to arrays")
    for name in tensors:
        if not isinstance(name, str):
            raise ValueError(f"the name {quoted(name)} of tensors is a {type(name).__name__}; allowed is a str")


def numbers_of(name: str, value: Any) -> np.ndarray:
    """An entry as a NumPy array of real numbers; anything else is a ValueError that begins with name."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # of ragged lists, and of arrays of other packages
        array = np.asarray(None)
    real = array.dtype.kind in "biuf" or (array.dtype.kind == "V" and array.dtype.type is not np.void)  # bfloat16
    if not real or not array.dtype.isnative:
        found = f"a {type(value).__name__}" if array.dtype == object else f"an array of {array.dtype}"
        raise ValueError(f"{name} is {found}; allowed is an array of real numbers, in this machine's byte order")
    return array


def check_start(start: Any) -> tuple[int, int]:
    """A 64-bit element index as two unsigned 32-bit words, high and low."""
    start = check_int("start", start, 0, 2**64 - 1)
    return start >> 32, start & 0xFFFFFFFF


def check_seed(key: Any, name: str = "key") -> tuple[int, int]:
    """A key given as an int or as two 32-bit words, as two unsigned 32-bit words."""
    if isinstance(key, (tuple, list)) and len(key) == 2:
        return check_int(f"{name}[0]", key[0], 0, 2**32 - 1), check_int(f"{name}[1]", key[1], 0, 2**32 - 1)
    if isinstance(key, (tuple, list)):
        raise ValueError(f"{name}={quoted(key)}; allowed is an int from 0 to 2^64 - 1 or two ints from 0 to 2^32 - 1")
    seed = check_int(name, key, 0, 2**64 - 1)
    return seed >> 32, seed & 0xFFFFFFFF


def missing_key() -> ValueError:
    return ValueError(
        "key=None; rounding='stochastic' needs a key: an int from 0 to 2^64 - 1, two 32-bit words, or in JAX a "
        "key of jax.random"
    )


def check_regular(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> None:
    """Raises for a named pipe, which would make its reader wait, and for a device, which may have no end."""
    name = os.fsdecode(path)
    if os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name):
        raise ValueError(f"{quoted(name)} is a pipe or a device; allowed is a file on a disk")
