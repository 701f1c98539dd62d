"""Laws that move numbers, choose among them and find their places; only the gradients of copies are rounded.

A number that is copied to several places gets the sum of their gradients. Numbers that are taken by their places follow
the law of an embedding. Laws that cut arrays into parts, or return them unchanged, define gradients only: frameworks
differ in the sign of zeros where gradients of slices meet, and in subnormal numbers where gradients are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan, prod
from typing import Any

from qcore.arguments import check_broadcast, check_choice, check_flag, check_float, check_int, quoted
from qcore.binding import public
from qcore.reproducible.binding import check_axis, check_numbers
from qcore.reproducible.differentiable import Differentiable, without_gradients
from qcore.reproducible.norms import NormFunctions
from qcore.reproducible.operations import normal, unbroadcast

Pairs = tuple[tuple[int, int], ...]

_MODES = ("constant", "reflect", "replicate", "circular")


def _where(xp: Any, condition: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, ...]]:
    """A choice. Arrays of the result's shape are not saved: gradients only read shapes."""
    found = xp.where(condition, a, b)
    return found, (condition, *(None if tuple(x.shape) == tuple(found.shape) else x for x in (a, b)))


def _of_where(xp: Any, saved: tuple[Any, ...], gradient: Any) -> tuple[Any, ...]:
    condition, a, b = saved
    zero = xp.zeros((), gradient)
    pairs = (xp.where(condition, gradient, zero), a), (xp.where(condition, zero, gradient), b)
    return None, *(found if x is None else unbroadcast(xp, found, x.shape) for found, x in pairs)


def _broadcast(xp: Any, x: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[Any]]:
    return xp.broadcast_to(x, shape), (x,)


def _of_broadcast(xp: Any, saved: tuple[Any], gradient: Any, shape: tuple[int, ...]) -> tuple[Any]:
    return (unbroadcast(xp, gradient, saved[0].shape),)


def padded(xp: Any, x: Any, widths: Pairs, value: float) -> Any:
    """x with the given numbers of elements before and after the last axes."""
    for axis, width in enumerate(widths, x.ndim - len(widths)):
        before, after = (xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), x) + value for size in width)
        x = xp.concatenate([before, x, after], axis) if any(width) else x
    return x


def unpadded(x: Any, widths: Pairs) -> Any:
    """The inner part of an array that `padded` returned."""
    lengths = x.shape[x.ndim - len(widths) :]
    inner = [slice(before, length - after) for (before, after), length in zip(widths, lengths, strict=True)]
    return x[(slice(None),) * (x.ndim - len(widths)) + tuple(inner)]


def greatest_place(xp: Any, x: Any, axis: int) -> Any:
    """The first place along an axis that has the greatest number, or NaN."""
    last = x.shape[axis] - 1
    from_end = (last - xp.arange(last + 1, x)).reshape((-1, *(1,) * (x.ndim - 1 - axis)))
    hits = (x == xp.greatest(x, (axis,))) | (x != x)
    return last - xp.greatest(xp.where(hits, from_end, -1), (axis,))


def _order(xp: Any, x: Any, descending: bool) -> Any:
    """Places along the last axis in the order of their numbers; equal numbers keep their order, NaN is the greatest."""
    if not descending:
        return xp.to_int32(xp.argsort(x))
    backward = x.shape[-1] - 1 - xp.arange(x.shape[-1], x)
    return xp.to_int32((x.shape[-1] - 1 - xp.argsort(x[..., backward]))[..., backward])


def _places(xp: Any, indices: Any, shape: tuple[int, ...], axis: int) -> Any:
    """Row-major places, in an array of a shape, of the numbers at indices along an axis; -1 for wrong indices."""
    known = xp.to_float64(indices)  # int8 may not have the length of the axis
    known = (known >= 0) & (known < shape[axis])
    places = xp.to_int32(indices) * prod(shape[axis + 1 :])
    for other, length in enumerate(indices.shape):
        if other != axis:
            step = xp.arange(length, indices) * prod(shape[other + 1 :])
            places = places + step.reshape((-1, *(1,) * (len(shape) - 1 - other)))
    return xp.where(known, places, -1)


def _fitting(xp: Any, x: Any, least: float, most: float) -> Any:
    """Numbers from least to below most, and zeros elsewhere: all processors convert these to the same integers."""
    return xp.where((x >= least) & (x < most), x, 0.0)


def _mask(xp: Any, x: Any, mask: Any) -> Any:
    if mask is not None:
        return mask
    return xp.arange(x.shape[-2], x)[:, None] >= xp.arange(x.shape[-1], x)[None]


def _masked(xp: Any, x: Any, mask: Any) -> tuple[Any, tuple[Any]]:
    """Scores, -inf where the mask is False; without a mask where a key comes after the query."""
    return xp.where(_mask(xp, x, mask), x, -inf), (mask,)


def _masked_gradient(xp: Any, saved: tuple[Any], gradient: Any) -> tuple[Any, None]:
    return xp.where(_mask(xp, gradient, saved[0]), gradient, xp.zeros((), gradient)), None


def _embedding(xp: Any, weight: Any, indices: Any, padding: int = -1) -> tuple[Any, tuple[Any, ...]]:
    count = weight.shape[0]
    known = xp.to_float64(indices)  # int8 may not have the number of rows
    known = (known >= 0) & (known < count)
    indices = xp.to_int32(indices)
    rows = xp.where(known[..., None], weight[xp.where(known, indices, 0)], nan)
    # Gradients of indices that are not rows, and of the padding, go to a row behind the last one, which is dropped.
    # The number of rows is saved as a table without columns.
    return rows, (xp.where(known & (indices != padding), indices, count), weight[:, :0])


def _embedding_gradient(xp: Any, saved: tuple[Any, ...], gradient: Any, padding: int = -1) -> tuple[Any, None]:
    indices, empty = saved
    count, width = empty.shape[0], gradient.shape[-1]
    rows = gradient.reshape((prod(indices.shape), width))
    return xp.float32(xp.sums_by_index(rows, indices.reshape(-1), count + 1)[:-1]), None


def _chunk(xp: Any, x: Any, chunks: int, axis: int) -> tuple[tuple[Any, ...], tuple[()]]:
    length = x.shape[axis] // chunks
    before = (slice(None),) * axis
    return tuple([x[(*before, slice(i * length, (i + 1) * length))] for i in range(chunks)]), ()


def _chunk_gradient(xp: Any, saved: tuple[()], gradients: tuple[Any, ...], chunks: int, axis: int) -> tuple[Any]:
    return (xp.concatenate(list(gradients), axis),)


def _narrow(xp: Any, x: Any, axis: int, start: int, length: int, rest: int) -> tuple[Any, tuple[()]]:
    return x[(*(slice(None),) * axis, slice(start, start + length))], ()


def _narrow_gradient(
    xp: Any, saved: tuple[()], gradient: Any, axis: int, start: int, length: int, rest: int
) -> tuple[Any]:
    """Zeros are +0 before and after the part."""
    before, after = ((*gradient.shape[:axis], n, *gradient.shape[axis + 1 :]) for n in (start, rest))
    return (xp.concatenate([xp.zeros(before, gradient), gradient, xp.zeros(after, gradient)], axis),)


WHERE = Differentiable(_where, _of_where, by_pieces=True)
BROADCAST = Differentiable(_broadcast, _of_broadcast, by_pieces=True)
PAD = Differentiable(
    lambda xp, x, widths, value: (padded(xp, x, widths, value), ()),
    lambda xp, saved, gradient, widths, value: (unpadded(gradient, widths),),
    by_pieces=True,
)
FITTING = without_gradients(_fitting, fusible=False)
GREATEST_PLACE = without_gradients(greatest_place, fusible=False)
ORDER = without_gradients(_order, fusible=False)
PLACES = without_gradients(_places, fusible=False)
MASKED = Differentiable(_masked, _masked_gradient, by_pieces=True)
EMBEDDING = Differentiable(_embedding, _embedding_gradient, by_pieces=True, fusible=False)
NARROW = Differentiable(_narrow, _narrow_gradient, by_pieces=True)
CHUNK = Differentiable(_chunk, _chunk_gradient, by_pieces=True, several=True)
SETTLE = Differentiable(lambda xp, x: (x, ()), lambda xp, saved, gradient: (gradient,), by_pieces=True)


class MovingFunctions(NormFunctions):
    """`NormFunctions`, and functions that move numbers and choose among them."""

    @public
    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """a where a condition holds, else b, of arrays that broadcast; the gradients of copies are summed.

        Args:
            condition: array of bools.
            a, b: float32 arrays, or one of them a number.

        Returns:
            A float32 array of the shape that all three broadcast to.

        Example:
            >>> reproducible.where(np.array([True, False]), np.float32([1.0, 2]), 0.5).tolist()
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

    @public
    def broadcast_to(self, x: Any, shape: Sequence[int]) -> Any:
        """Copies of x along new axes, and along axes of length 1; the gradients of copies are added by `sum`.

        Args:
            x: float32 array.
            shape: the shape of the result.

        Returns:
            A float32 array of this shape.

        Raises:
            TypeError, ValueError: if an argument is not as above, or x does not broadcast to the shape.

        Example:
            >>> reproducible.broadcast_to(np.float32([[1.0], [2]]), (2, 3)).tolist()
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

    @public
    def pad(self, x: Any, widths: Any, mode: str = "constant", value: float = 0.0) -> Any:
        """x with numbers before and after each axis.

        Args:
            x: float32 array.
            widths: a pair of numbers of elements for each of the last axes, such as ((1, 1), (2, 0)).
            mode: "constant", or "reflect" (without the number at the end), "replicate" (the number at the end) or
                "circular" (from the other end). A number that is copied gets the sum of its gradients.
            value: the number for "constant".

        Returns:
            A float32 array.

        Raises:
            TypeError, ValueError: if an argument is not as above, or an axis is too short for its padding.

        Example:
            >>> reproducible.pad(np.float32([1.0, 2, 3]), ((2, 1),), "reflect").tolist()
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

    @public
    def moved(self, x: Any, move: Callable[[Any], Any]) -> Any:
        """The numbers of x after a function has moved them: any function that cuts, copies and rearranges arrays.

        The gradient of a number is the sum over its copies: float64, pairs of neighbours, rounded once.

        Args:
            x: float32 array.
            move: a function of the places of x's numbers, an array of integers of x's shape. It returns an array of
                places, in which -1 stands for NaN.

        Returns:
            A float32 array of the shape that `move` returns.

        Raises:
            TypeError: if x is not a float32 array, or move does not return an array of integers.

        Example:
            >>> reproducible.moved(np.float32([1.0, 2, 3]), lambda places: np.roll(places, 1)).tolist()
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

    @public
    def part(self, x: Any, index: Any) -> Any:
        """x[index] for any index. Numbers that are left out get the gradient +0, copies are summed as for `moved`.

        Args:
            x: float32 array.
            index: an int, slice, None, Ellipsis, array of integers or bools, or a tuple of them.

        Returns:
            A float32 array.

        Raises:
            TypeError, IndexError, ValueError: if x is not a float32 array, index is something else, or does not fit its
                shape.

        Example:
            >>> reproducible.part(np.float32([[1.0, 2], [3, 4]]), (..., -1)).tolist()
            [2.0, 4.0]
        """
        x = self.float32("x", x)
        given = list(index) if isinstance(index, tuple) else [index]
        for one in given:
            if not _is_index(one):
                raise TypeError(
                    f"index has {quoted(one)}, a {type(one).__name__}; allowed are ints, slices, None, Ellipsis and "
                    "arrays of integers or bools"
                )
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
            size = x.shape[axis]
            start, stop = _ends(one, size)
            if (start, stop) != (0, size):
                x = self.call(NARROW, x, axis=axis, start=start, length=stop - start, rest=size - stop)
            shape += [stop - start] if isinstance(one, slice) else []
            axis += 1
        return x.reshape(tuple(shape))

    @public
    def take(self, x: Any, indices: Any, axis: int = 0) -> Any:
        """Parts of x along an axis, by their indices; the gradients of copies are summed, as for `moved`.

        Args:
            x: float32 array, with at least one number along the axis.
            indices: array of integers from 0 to the axis's length - 1; other integers give NaN.
            axis: the axis.

        Returns:
            A float32 array of x's shape, in which the shape of indices replaces the axis.

        Example:
            >>> reproducible.take(np.float32([[1.0, 2, 3]]), np.array([2, 0, 2]), 1).tolist()
            [[3.0, 1.0, 3.0]]
        """
        x, indices = self.float32("x", x), self.integers("indices", indices)
        axis = check_axis(axis, x)
        check_numbers(x, (axis,))
        found = self._rows(x, indices.reshape(-1), axis)
        return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    @public
    def take_along_axis(self, x: Any, indices: Any, axis: int = -1) -> Any:
        """Numbers of x at indices along one axis, as torch's gather; gradients as for `moved`.

        Args:
            x: float32 array.
            indices: array of integers with x's number of axes, along all other axes at most as long as x. Indices that
                are not from 0 to the axis's length - 1 give NaN.
            axis: the axis.

        Returns:
            A float32 array of the shape of indices.

        Example:
            >>> x = np.float32([[1.0, 2], [3, 4]])
            >>> reproducible.take_along_axis(x, np.array([[1], [0]])).tolist()
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

    @public
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
            >>> int(reproducible.argmax(np.float32([1.0, 3, 3])))
            1
        """
        x = self.detached(self.float32("x", x))
        axis = check_axis(axis, x)
        check_numbers(x, (axis,))
        return self.call(GREATEST_PLACE, x, axis=axis).reshape((*x.shape[:axis], *x.shape[axis + 1 :]))

    @public
    def argsort(self, x: Any, axis: int = -1, descending: bool = False) -> Any:
        """The places of numbers in ascending order; equal numbers keep their order, and NaN is the greatest.

        Args:
            x: float32 array.
            axis: the axis.
            descending: True for descending order; equal numbers still keep their order.

        Returns:
            An int32 array of x's shape; it has no gradients.

        Example:
            >>> reproducible.argsort(np.float32([2.0, 1, 2, 0]), descending=True).tolist()
            [0, 2, 1, 3]
        """
        x = self.detached(self.float32("x", x))
        check_flag("descending", descending)
        axis = check_axis(axis, x)
        return self.call(ORDER, x.swapaxes(axis, -1), descending=descending).swapaxes(axis, -1)

    @public
    def sort(self, x: Any, axis: int = -1, descending: bool = False) -> Any:
        """The numbers in the order of `argsort`; a number's gradient goes where it came from.

        Args:
            x: float32 array.
            axis: the axis.
            descending: True for descending order.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.sort(np.float32([2.0, 1, 2, 0])).tolist()
            [0.0, 1.0, 2.0, 2.0]
        """
        return self.take_along_axis(x, self.argsort(x, axis, descending), axis)

    @public
    def to_integers(self, x: Any) -> Any:
        """The numbers without their fractions, as int32; 0 for NaN and for numbers outside of int32.

        Args:
            x: float32 array.

        Returns:
            An int32 array of x's shape; it has no gradients.

        Example:
            >>> reproducible.to_integers(np.float32([2.7, -2.7, np.nan, 1e10])).tolist()
            [2, -2, 0, 0]
        """
        x = self.detached(self.float32("x", x))
        return self.xp.to_int32(self.call(FITTING, x, least=-(2.0**31), most=2.0**31))

    @public
    def settle(self, x: Any) -> Any:
        """x with 0 for every number of magnitude at most 2^-126; the same happens to its gradient.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.settle(np.float32([1.0, 2.0**-126, -(2.0**-127)])).tolist()
            [1.0, 0.0, -0.0]
        """
        return self.call(SETTLE, self.float32("x", x))

    @public
    def chunk(self, x: Any, chunks: int, axis: int = -1) -> tuple[Any, ...]:
        """Equal parts along an axis.

        Args:
            x: float32 array.
            chunks: the number of parts, a divisor of the axis's length.
            axis: the axis.

        Returns:
            A tuple of float32 arrays of x's shape, with length / chunks along the axis.

        Example:
            >>> [part.tolist() for part in reproducible.chunk(np.float32([1.0, 2, 3, 4]), 2)]
            [[1.0, 2.0], [3.0, 4.0]]
        """
        x, chunks = self.float32("x", x), check_int("chunks", chunks, 1)
        axis = check_axis(axis, x)
        if x.shape[axis] % chunks:
            raise ValueError(f"chunks={chunks}; allowed are divisors of the length {x.shape[axis]}")
        return self.call(CHUNK, x, chunks=chunks, axis=axis)

    @public
    def narrow(self, x: Any, axis: int, start: int, length: int) -> Any:
        """A part along an axis; numbers that are left out get the gradient +0.

        Args:
            x: float32 array.
            axis: the axis.
            start: the index of the first number.
            length: the length of the part.

        Returns:
            A float32 array of x's shape, with this length along the axis.

        Example:
            >>> reproducible.narrow(np.float32([1.0, 2, 3, 4]), 0, 1, 2).tolist()
            [2.0, 3.0]
        """
        x, start, length = self.float32("x", x), check_int("start", start, 0), check_int("length", length, 0)
        axis = check_axis(axis, x)
        rest = x.shape[axis] - start - length
        if rest < 0:
            raise ValueError(f"start={start} and length={length}; allowed are parts of the length {x.shape[axis]}")
        return self.call(NARROW, x, axis=axis, start=start, length=length, rest=rest)

    @public
    def embedding(self, indices: Any, weight: Any, padding_idx: int | None = None) -> Any:
        """Rows of a table. The gradient of a row is the sum over its uses: float64, pairs of neighbours, rounded once.

        Args:
            indices: array of integers from 0 to rows - 1; other integers give rows of NaN.
            weight: float32 array of shape (rows, width), with at least one row.
            padding_idx: a row without a gradient, from -rows to rows - 1; or None.

        Returns:
            A float32 array of shape (*indices.shape, width).

        Example:
            >>> reproducible.embedding(np.array([1, 0, 1]), np.float32([[10.0], [20.0]])).tolist()
            [[20.0], [10.0], [20.0]]
        """
        weight, indices = self.float32("weight", weight), self.integers("indices", indices)
        if weight.ndim != 2 or weight.shape[0] == 0:
            raise ValueError(f"weight has shape {tuple(weight.shape)}; allowed is (rows, width), at least one row")
        rows = weight.shape[0]
        if padding_idx is None:
            return self.call(EMBEDDING, weight, indices)
        row = check_int("padding_idx", padding_idx, -rows, rows - 1) % rows
        return self.call(EMBEDDING, weight, indices, padding=row)

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


def _is_index(index: Any) -> bool:
    """True of what arrays of all packages take in brackets, alone or in a tuple."""
    whole = isinstance(index, slice | int) or index is None or index is ...
    if isinstance(index, list):
        return all(map(_is_index, index))
    return whole or any(kind in str(getattr(index, "dtype", "")) for kind in ("int", "bool"))


def _is_span(index: Any) -> bool:
    """True of an int, and of a slice of step 1."""
    if isinstance(index, slice):
        return index.step is None or index.step == 1
    return isinstance(index, int) and not isinstance(index, bool)


def _ends(one: Any, length: int) -> tuple[int, int]:
    """The first and the last place, which is left out, of an index along an axis of a length.

    As `slice.indices` has them, which would make a program for each length in `torch.compile`.
    """
    if isinstance(one, slice):
        start = 0 if one.start is None else _place(one.start, length)
        stop = length if one.stop is None else _place(one.stop, length)
        return start, stop if stop > start else start
    if not -length <= one < length:
        raise IndexError(f"index {one} is out of bounds of an axis of length {length}")
    start = one + length if one < 0 else one
    return start, start + 1


def _place(end: int, length: int) -> int:
    """An end of a slice, counted from the first place, within the axis."""
    end = end + length if end < 0 else end
    return 0 if end < 0 else length if end > length else end
