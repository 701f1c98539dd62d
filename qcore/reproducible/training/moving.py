"""What users call to move numbers, to compare them, and to choose among them, the same in all packages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from qcore.arguments import check_choice, check_flag, check_float, check_int, quoted
from qcore.reproducible.layers import Layers
from qcore.reproducible.operations import normal
from qcore.reproducible.reductions import check_axis, check_numbers
from qcore.reproducible.sums import check_broadcast
from qcore.reproducible.training.embedding import EMBEDDING
from qcore.reproducible.training.moves import BROADCAST, COMPARED, FITTING, GREATEST_PLACE, ORDER, PAD, PLACES, WHERE
from qcore.reproducible.training.parts import NARROW

_MODES = ("constant", "reflect", "replicate", "circular")


class Moving(Layers):
    """`Layers`, and functions that move and compare numbers.

    Attributes:
        xp: the package's `Names`.
    """

    xp: Any

    def detached(self, x: Any) -> Any:
        """x without gradients."""
        raise NotImplementedError

    def bools(self, name: str, x: Any) -> Any:
        """An array of bools as the package has it; a TypeError that names the argument if x is none."""
        raise NotImplementedError

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """a where a condition holds, else b, of arrays that broadcast; the gradients of copies are summed.

        Args:
            condition: array of bools.
            a, b: float32 arrays, or one of them a number.

        Returns:
            A float32 array of the shape that all three broadcast to.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.where(np.array([True, False]), np.float32([1, 2]), 0.5).tolist()
            [1.0, 0.5]
        """
        condition = self.bools("condition", condition)
        if isinstance(a, int | float) and not isinstance(a, bool):
            a = self.number(a, condition)
        elif isinstance(b, int | float) and not isinstance(b, bool):
            b = self.number(b, condition)
        a, b = self.float32("a", a), self.float32("b", b)
        check_broadcast("a", a.shape, "b", b.shape)
        check_broadcast("condition", condition.shape, "a", a.shape)
        check_broadcast("condition", condition.shape, "b", b.shape)
        return self.call(WHERE, condition, a, b)

    def broadcast_to(self, x: Any, shape: Sequence[int]) -> Any:
        """Copies of x along new axes, and along those of length 1; the gradients of copies have a `sum`.

        Args:
            x: float32 array.
            shape: of the result.

        Returns:
            A float32 array of this shape.

        Raises:
            TypeError, ValueError: if an argument is not as above, or x does not broadcast to the shape.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.broadcast_to(np.float32([[1], [2]]), (2, 3)).tolist()
            [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
        """
        x = self.float32("x", x)
        if not isinstance(shape, tuple | list):
            raise TypeError(f"shape={quoted(shape)} is a {type(shape).__name__}; allowed is a tuple of ints")
        wanted = tuple([check_int(f"shape[{i}]", size, 0) for i, size in enumerate(shape)])
        given = tuple(x.shape)
        fits = len(given) <= len(wanted) and all(m in (1, n) for m, n in zip(given[::-1], wanted[::-1], strict=False))
        if not fits:
            raise ValueError(f"shape={quoted(wanted)}; allowed is what x's shape {given} broadcasts to")
        return self.call(BROADCAST, x, shape=wanted)

    def pad(self, x: Any, widths: Any, mode: str = "constant", value: float = 0.0) -> Any:
        """x with numbers before and after each axis.

        Args:
            x: float32 array.
            widths: a pair of numbers of elements for each of the last axes, such as ((1, 1), (2, 0)).
            mode: "constant"; or "reflect" (without the number at the end), "replicate" (the number at the end) and
                "circular" (from the other end), where a number that is copied has the sum of its gradients.
            value: of "constant".

        Returns:
            A float32 array.

        Raises:
            TypeError, ValueError: if an argument is not as above, or an axis is too short for its padding.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.pad(np.float32([1, 2, 3]), ((2, 1),), "reflect").tolist()
            [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]
        """
        x = self.float32("x", x)
        check_choice("mode", mode, _MODES)
        pairs = _pairs(widths, x.ndim)
        if mode == "constant":
            number = check_float("value", value, "a number", lambda number: True)
            return self.call(PAD, x, widths=pairs, value=normal(number)) if pairs else x
        for axis, pair in enumerate(pairs, x.ndim - len(pairs)):
            length = x.shape[axis]
            most = {"reflect": length - 1, "circular": length}.get(mode, max(pair) if length else 0)
            if max(pair) > most:
                raise ValueError(f"widths has {pair} for an axis of length {length}; allowed is at most {most}")
            if any(pair):
                x = self._rows(x, self._places_beyond(x, length, pair, mode), axis)
        return x

    def moved(self, x: Any, move: Callable[[Any], Any]) -> Any:
        """The numbers of x where a function moves them: any function that cuts, copies and rearranges arrays.

        The gradient of a number is the sum over its copies: float64, pairs of neighbours, rounded once.

        Args:
            x: float32 array.
            move: called with an array of integers of x's shape, the places of its numbers; returns an array of them,
                where -1 stands for NaN.

        Returns:
            A float32 array of the shape that `move` returns.

        Raises:
            TypeError: if x is no float32 array, or move returns no array of integers.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.moved(np.float32([1, 2, 3]), lambda places: np.roll(places, 1)).tolist()
            [3.0, 1.0, 2.0]
        """
        x = self.float32("x", x)
        if not callable(move):
            raise TypeError(f"move is a {type(move).__name__}; allowed is a function of an array of integers")
        return self._at(x, self.integers("the result of move", move(self.places(x))))

    def places(self, x: Any) -> Any:
        """The row-major places of an array's numbers, as integers of its shape."""
        size = prod(x.shape)
        return self.xp.arange(size, x).reshape(tuple(x.shape))

    def part(self, x: Any, index: Any) -> Any:
        """x[index] of any index; the gradient of what is left out is +0, and that of copies their sum, as for `moved`.

        Args:
            x: float32 array.
            index: an int, slice, None, Ellipsis, array of integers or bools, or a tuple of them.

        Returns:
            A float32 array.

        Raises:
            TypeError, IndexError, ValueError: if x is no float32 array, or the index is none of its shape.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.part(np.float32([[1, 2], [3, 4]]), np.index_exp[:, -1]).tolist()
            [2.0, 4.0]
        """
        x = self.float32("x", x)
        given = list(index) if isinstance(index, tuple) else [index]
        if not all(one is None or one is ... or _is_span(one) for one in given):
            return self._at(x, self.places(x)[index])
        axes = x.ndim - sum(one is not None and one is not ... for one in given)
        dots = [i for i, one in enumerate(given) if one is ...]
        if axes < 0 or len(dots) > 1:
            raise IndexError(f"index={quoted(index)}; allowed is one of an array with {x.ndim} axes")
        place = dots[0] if dots else len(given)
        given[place : place + 1] = [slice(None)] * axes
        axis, shape = 0, []
        for one in given:
            if one is None:
                shape.append(1)
                continue
            start, stop, _ = slice(*_ends(one, x.shape[axis])).indices(x.shape[axis])
            length = max(stop - start, 0)
            if length != x.shape[axis]:
                rest = x.shape[axis] - start - length
                x = self.call(NARROW, x, axis=axis, start=start, length=length, rest=rest)
            shape += [length] if isinstance(one, slice) else []
            axis += 1
        return x.reshape(tuple(shape))

    def take(self, x: Any, indices: Any, axis: int = 0) -> Any:
        """Parts of x along an axis, by their indices; the gradients of copies are summed, as for `moved`.

        Args:
            x: float32 array, with at least one number along the axis.
            indices: array of integers from 0 to the axis's length - 1; others give NaN.
            axis: the axis.

        Returns:
            A float32 array of x's shape, with that of indices in the place of the axis.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.take(np.float32([[1, 2, 3]]), np.array([2, 0, 2]), 1).tolist()
            [[3.0, 1.0, 3.0]]
        """
        x, indices = self.float32("x", x), self.integers("indices", indices)
        axis = check_axis(axis, x)
        check_numbers(x, (axis,))
        found = self._rows(x, indices.reshape(-1), axis)
        return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Any, indices: Any, axis: int = -1) -> Any:
        """For each index the number of x at its place but along an axis, as torch's gather; gradients as for `moved`.

        Args:
            x: float32 array.
            indices: array of integers with x's number of axes, along the others at most as long; those that are not
                from 0 to the axis's length - 1 give NaN.
            axis: the axis.

        Returns:
            A float32 array of the shape of indices.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.take_along_axis(np.float32([[1, 2], [3, 4]]), np.array([[1], [0]])).tolist()
            [[2.0], [3.0]]
        """
        x, indices = self.float32("x", x), self.integers("indices", indices)
        axis = check_axis(axis, x)
        shape, wanted = tuple(x.shape), tuple(indices.shape)
        if len(wanted) != len(shape) or any(
            most < size for i, (size, most) in enumerate(zip(wanted, shape, strict=True)) if i != axis
        ):
            allowed = f"at most the lengths of {shape}, but along axis {axis}"
            raise ValueError(f"indices has shape {wanted}; allowed are {allowed}")
        return self._at(x, self.call(PLACES, indices, shape=shape, axis=axis))

    def argmax(self, x: Any, axis: int = -1) -> Any:
        """The first place along an axis of the greatest number, or of NaN; it has no gradients.

        Args:
            x: float32 array.
            axis: the axis.

        Returns:
            An int32 array of x's shape without the axis.

        Raises:
            TypeError, ValueError: if an argument is not as above, or there are no numbers along the axis.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> int(reproducible.argmax(np.float32([1, 3, 3])))
            1
        """
        x = self.detached(self.float32("x", x))
        axis = check_axis(axis, x)
        check_numbers(x, (axis,))
        return self.call(GREATEST_PLACE, x, axis=axis).reshape((*x.shape[:axis], *x.shape[axis + 1 :]))

    def argsort(self, x: Any, axis: int = -1, descending: bool = False) -> Any:
        """The places of numbers in ascending order; equal ones keep their order, and NaN is the greatest.

        Args:
            x: float32 array.
            axis: the axis.
            descending: True for the reverse order, in which equal numbers keep theirs too.

        Returns:
            An int32 array of x's shape; it has no gradients.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.argsort(np.float32([2, 1, 2, 0]), descending=True).tolist()
            [0, 2, 1, 3]
        """
        x = self.detached(self.float32("x", x))
        check_flag("descending", descending)
        axis = check_axis(axis, x)
        return self.call(ORDER, x.swapaxes(axis, -1), descending=descending).swapaxes(axis, -1)

    def sort(self, x: Any, axis: int = -1, descending: bool = False) -> Any:
        """The numbers in the order of `argsort`; a number's gradient goes where it came from.

        Args:
            x: float32 array.
            axis: the axis.
            descending: True for descending order.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.sort(np.float32([2, 1, 2, 0])).tolist()
            [0.0, 1.0, 2.0, 2.0]
        """
        return self.take_along_axis(x, self.argsort(x, axis, descending), axis)

    def equal(self, a: Any, b: Any) -> Any:
        """a == b; numbers of magnitude at most 2^-126 are zeros, and NaN equals nothing.

        Args:
            a, b: float32 arrays that broadcast.

        Returns:
            An array of bools; it has no gradients.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.equal(np.float32([0, 1]), np.float32([1e-40, 2])).tolist()
            [True, False]
        """
        return self._compared(a, b, "eq")

    def less(self, a: Any, b: Any) -> Any:
        """a < b; numbers of magnitude at most 2^-126 are zeros, and NaN is less than nothing.

        Args:
            a, b: float32 arrays that broadcast.

        Returns:
            An array of bools; it has no gradients.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.less(np.float32([0, 1]), np.float32([1e-40, 2])).tolist()
            [False, True]
        """
        return self._compared(a, b, "lt")

    def less_equal(self, a: Any, b: Any) -> Any:
        """a <= b; numbers of magnitude at most 2^-126 are zeros, and NaN is less than nothing.

        Args:
            a, b: float32 arrays that broadcast.

        Returns:
            An array of bools; it has no gradients.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.less_equal(np.float32([0, 3]), np.float32([1e-40, 2])).tolist()
            [True, False]
        """
        return self._compared(a, b, "le")

    def to_integers(self, x: Any) -> Any:
        """The numbers without their fractions, as int32; 0 for NaN, and for what int32 does not hold.

        Args:
            x: float32 array.

        Returns:
            An int32 array of x's shape; it has no gradients.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.to_integers(np.float32([2.7, -2.7, np.nan, 1e10])).tolist()
            [2, -2, 0, 0]
        """
        x = self.detached(self.float32("x", x))
        return self.xp.to_int32(self.call(FITTING, x, least=-(2.0**31), most=2.0**31))

    def _compared(self, a: Any, b: Any, relation: str) -> Any:
        a, b = self.float32("a", a), self.float32("b", b)
        check_broadcast("a", a.shape, "b", b.shape)
        return self.call(COMPARED, self.detached(a), self.detached(b), relation=relation)

    def _places_beyond(self, x: Any, length: int, pair: tuple[int, int], mode: str) -> Any:
        """For an axis of a length and its padding, the places of the numbers that it gets."""
        places = self.xp.arange(sum(pair) + length, x) - pair[0]
        if mode == "circular":
            return places % length
        last = length - 1
        before, after = (0, last) if mode == "replicate" else (-places, 2 * last - places)
        return self.xp.where(places < 0, before, self.xp.where(places > last, after, places))

    def _at(self, x: Any, places: Any) -> Any:
        """The numbers of x at row-major places."""
        shape = tuple(places.shape)
        if 0 in x.shape or 0 in shape:
            return self.xp.zeros(shape, x)
        return self.call(EMBEDDING, x.reshape((-1, 1)), places).reshape(shape)

    def _rows(self, x: Any, indices: Any, axis: int) -> Any:
        """The parts of x along an axis at indices, an array with one axis."""
        turned = x.swapaxes(0, axis)
        if 0 in x.shape or not len(indices):
            found = self.xp.zeros((len(indices), *turned.shape[1:]), x)
        else:
            rows = self.call(EMBEDDING, turned.reshape((turned.shape[0], -1)), indices)
            found = rows.reshape((len(indices), *turned.shape[1:]))
        return found.swapaxes(0, axis)


def _pairs(widths: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    """Numbers of elements before and after each of the last axes."""
    fits = isinstance(widths, tuple | list) and len(widths) <= ndim
    if not fits or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in widths):
        raise ValueError(f"widths={quoted(widths)}; allowed is a pair of ints for each of at most {ndim} last axes")
    return tuple([(check_int("widths", first, 0), check_int("widths", last, 0)) for first, last in widths])


def _is_span(index: Any) -> bool:
    """True of an int, and of a slice of step 1."""
    if isinstance(index, slice):
        return index.step is None or index.step == 1
    return isinstance(index, int) and not isinstance(index, bool)


def _ends(one: Any, length: int) -> tuple[Any, ...]:
    """Start, stop and step of an index along an axis of a length."""
    if isinstance(one, slice):
        return one.start, one.stop, one.step
    if not -length <= one < length:
        raise IndexError(f"index {one} is out of bounds of an axis of length {length}")
    return one, one + 1 or None, 1
