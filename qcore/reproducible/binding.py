"""How laws become functions of a package: each package has the same functions, with its own arrays and examples."""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_broadcast, check_flag, check_int, quoted
from qcore.binding import NUMPY, bind, public
from qcore.reproducible.differentiable import Differentiable

Axes = tuple[int, ...]  # numbers from 0 on, in ascending order
Axis = int | tuple[int, ...] | None  # as users give them


class Binding:
    """The base of all functions with defined bits: a package's arrays, and the checks of arguments.

    Attributes:
        xp: the package's operations, see `qcore.reproducible.operations.Names`.
    """

    xp: Any

    def __init_subclass__(cls, package: str = "", words: dict[str, str] = NUMPY) -> None:
        """Gives the class of a package its own functions, with docstrings whose examples run in that package.

        `package` is the public module of the functions, "" for an inner class; `words` replace NumPy's names in
        examples.
        """
        if package:
            bind(cls, package, words)

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        """The result of a law."""
        raise NotImplementedError

    def float32(self, name: str, x: Any) -> Any:
        """x, a float32 array of the package; raises a TypeError that names the argument if it is something else."""
        raise NotImplementedError

    def integers(self, name: str, x: Any) -> Any:
        """`float32` for an array of integers."""
        raise NotImplementedError

    def bools(self, name: str, x: Any) -> Any:
        """`float32` for an array of bools."""
        raise NotImplementedError

    def number(self, value: float, like: Any) -> Any:
        """A float32 array without dimensions, on the device of another array."""
        raise NotImplementedError

    def detached(self, x: Any) -> Any:
        """x without gradients."""
        raise NotImplementedError

    def known(self, x: Any) -> float | None:
        """The value of an array without dimensions; None if it is traced, or on a device to wait for."""
        raise NotImplementedError

    def key_words(self, key: Any) -> Any:
        """A key as an int32 array of two words."""
        raise NotImplementedError

    def _of_shape(self, name: str, x: Any, shape: tuple[int, ...]) -> Any:
        x = self.float32(name, x)
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; allowed is {shape}")
        return x

    def _two(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Two float32 arrays that broadcast."""
        a, b = self.float32("a", a), self.float32("b", b)
        if a.shape != b.shape:
            check_broadcast("a", a.shape, "b", b.shape)
        return a, b


# Functions that differ only in law, sentence and example are one row each, in the class of their file.


def of_one(name: str, law: Differentiable, sentence: str, x: str, shows: str) -> Any:
    """A function of one float32 array; `shows` are the results of the example's numbers x."""

    def function(self: Any, x: Any) -> Any:
        return self.call(law, self.float32("x", x))

    returns = "A float32 array of x's shape."
    example = f"reproducible.{name}(np.float32({x})).tolist()"
    return _row(function, name, sentence, ["x: float32 array."], returns, example, shows)


def of_two(name: str, law: Differentiable, sentence: str, a: str, b: str, shows: str) -> Any:
    """A function of two float32 arrays that broadcast; for the arguments see `of_one`."""

    def function(self: Any, a: Any, b: Any) -> Any:
        return self.call(law, *self._two(a, b))

    returns = "A float32 array of the shape that both broadcast to."
    example = f"reproducible.{name}(np.float32({a}), np.float32({b})).tolist()"
    return _row(function, name, sentence, ["a, b: float32 arrays that broadcast."], returns, example, shows)


def compared(name: str, law: Differentiable, relation: str, sentence: str, a: str, b: str, shows: str) -> Any:
    """A comparison of two float32 arrays that broadcast, by the name of its operator; see `of_one`."""

    def function(self: Any, a: Any, b: Any) -> Any:
        a, b = self._two(a, b)
        return self.call(law, self.detached(a), self.detached(b), relation=relation)

    returns = "An array of bools; it has no gradients."
    example = f"reproducible.{name}(np.float32({a}), np.float32({b})).tolist()"
    return _row(function, name, sentence, ["a, b: float32 arrays that broadcast."], returns, example, shows)


def reduction(name: str, law: Differentiable, sentence: str, x: str, shows: str, empty: bool = True) -> Any:
    """A reduction of a float32 array along axes, see `of_one`; without `empty`, there must be numbers along them."""

    def function(self: Any, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        x = self.float32("x", x)
        axes = reduced_axes(x, axis, keepdims)
        if not empty:
            check_numbers(x, axes)
        return self.call(law, x, axes=axes, keepdims=keepdims)

    arguments = [
        "x: float32 array." if empty else "x: float32 array, with at least one number along the axes.",
        "axis: one axis, several, which are reduced in ascending order, or all with None.",
        "keepdims: True to keep the axes with length 1.",
    ]
    returns = "A float32 array of x's shape without the axes, or with length 1 there for keepdims."
    example = f"reproducible.{name}(np.float32({x}), axis=1).tolist()"
    return _row(function, name, sentence, arguments, returns, example, shows)


def reduced_axes(x: Any, axis: Axis, keepdims: bool) -> Axes:
    """The axes of a reduction, checked."""
    check_flag("keepdims", keepdims)
    return check_axes("axis", axis, x.ndim)


def _row(function: Any, name: str, sentence: str, arguments: list[str], returns: str, example: str, shows: str) -> Any:
    """A function with its name, and the docstring of a row."""
    sections = {"Args": arguments, "Returns": [returns], "Example": [f">>> {example}", shows]}
    parts = [f"{title}:\n" + "\n".join(f"    {line}" for line in lines) for title, lines in sections.items()]
    function.__name__, function.__doc__ = name, "\n\n".join([sentence, *parts])
    return public(function)


def check_axes(name: str, axis: Any, ndim: int) -> Axes:
    """Axes as numbers from 0 on, in ascending order; None is all axes.

    Raises unless they are different axes of an array.
    """
    if axis is None:
        return tuple(range(ndim))
    try:
        given = [check_int(name, one) for one in (axis if isinstance(axis, tuple | list) else (axis,))]
    except TypeError:
        raise TypeError(f"{name}={quoted(axis)}; allowed are ints, tuples of ints and None") from None
    found = [one + ndim if one < 0 else one for one in given]
    if not all(0 <= one < ndim for one in found) or len(set(found)) != len(found):
        raise ValueError(f"{name}={quoted(axis)}; allowed are different axes from {-ndim} to {ndim - 1}")
    return tuple([one for one in range(ndim) if one in found])


def check_axis(axis: Any, x: Any) -> int:
    """One axis of an array, as a number from 0 on; it raises as `check_axes`."""
    return check_int("axis", axis, -x.ndim, x.ndim - 1) % x.ndim


def check_numbers(x: Any, axes: Axes) -> None:
    """Raises for an array x without numbers along axes."""
    for axis in axes:
        if x.shape[axis] == 0:
            raise ValueError(f"x has shape {tuple(x.shape)}; allowed is at least one number along axis {axis}")
