"""Laws of dropout and pooling.

Dropout: a number's random word, by its index, decides whether the number stays. Pooling: a number in several windows
gets a gradient from each. They are summed in float64, in the order of the number's place in the window (its tap,
row-major), and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product
from math import ceil, inf, prod
from typing import Any

from qcore.arguments import check_flag, check_int, quoted
from qcore.binding import public
from qcore.random.threefry import element_words
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.moves import MovingFunctions, Pairs, padded, unpadded

Shape = tuple[int, ...]
Pair = tuple[int, int]

_BITS = 24  # of a random word, that dropout reads


def _dropout(xp: Any, x: Any, key: Any, rate: float) -> tuple[Any, tuple[Any]]:
    """`LayerFunctions.dropout`, with the key as two words."""
    return _masked(xp, x, key, rate), (key,)


def _dropout_gradient(xp: Any, saved: tuple[Any], gradient: Any, rate: float) -> tuple[Any, None]:
    return _masked(xp, gradient, saved[0], rate), None


def _masked(xp: Any, x: Any, key: Any, rate: float) -> Any:
    shape = tuple(x.shape) or (1,)
    arange = lambda size: xp.arange(size, key)  # noqa: E731
    zero = key[0] & 0
    words = element_words(arange, shape, (key[0], key[1]), (zero, zero), prod(shape) >= 2**31, xp.materialize)
    stays = ((words >> (32 - _BITS)) & ((1 << _BITS) - 1)) >= round(rate * (1 << _BITS))
    return xp.where(stays.reshape(x.shape), xp.mul(x, 1 / (1 - rate)), xp.zeros((), x))


def window_padding(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The padding after an axis. With ceil_mode it reaches to the end of the last window that begins in the array."""
    if not ceil_mode:
        return padding
    reach = dilation * (kernel - 1) + 1
    count = ceil((length + 2 * padding - reach) / stride) + 1
    if (count - 1) * stride >= length + padding:
        count -= 1
    return max((count - 1) * stride + reach - length - padding, padding)


def _max_pool(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape) -> tuple[Any, tuple[Any]]:
    return _largest(xp, x, kernel, stride, widths, dilation)[0], (x,)


def _largest(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape) -> tuple[Any, Any]:
    """The largest number of each window, and the first tap that has it; the last tap with NaN if there is one."""
    largest = taps = None
    for tap, number in enumerate(_taps(padded(xp, x, widths, -inf), kernel, stride, dilation)):
        if largest is None:
            largest, taps = number, xp.zeros(number.shape, xp.arange(1, number))
            continue
        better = (number > largest) | (number != number)
        largest, taps = xp.where(better, number, largest), xp.where(better, tap, taps)
    return largest, taps


def _max_pool_gradient(
    xp: Any, saved: tuple[Any], gradient: Any, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape
) -> tuple[Any]:
    taps, wide = _largest(xp, saved[0], kernel, stride, widths, dilation)[1], xp.float64(gradient)
    parts = (xp.where(taps == tap, wide, xp.zeros((), wide)) for tap in range(prod(kernel)))
    return (_gathered(xp, parts, saved[0].shape, kernel, stride, widths, dilation),)


def _avg_pool(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, counted: Pairs) -> tuple[Any, tuple[Any]]:
    """counted: how much of the padding counts as numbers, which are zeros."""
    numbers = _taps(xp.float64(padded(xp, x, widths, 0.0)), kernel, stride, (1,) * len(kernel))
    total = xp.float32(reduce(lambda total, number: total + number, numbers))
    return xp.div(total, _counts(xp, x, kernel, stride, widths, counted)), (x,)


def _avg_pool_gradient(
    xp: Any, saved: tuple[Any], gradient: Any, kernel: Shape, stride: Shape, widths: Pairs, counted: Pairs
) -> tuple[Any]:
    (x,) = saved
    each = xp.float64(xp.div(gradient, _counts(xp, x, kernel, stride, widths, counted)))
    parts = (each for _ in range(prod(kernel)))
    return (_gathered(xp, parts, x.shape, kernel, stride, widths, (1,) * len(kernel)),)


def _counts(xp: Any, x: Any, kernel: Shape, stride: Shape, widths: Pairs, counted: Pairs) -> Any:
    """How many numbers each window has: one number for all, or an array."""
    if widths == counted:
        return float(prod(kernel))
    found = 1.0
    for axis, length in enumerate(x.shape[x.ndim - len(kernel) :]):
        (before, after), (first, last) = widths[axis], counted[axis]
        count = (before + length + after - kernel[axis]) // stride[axis] + 1
        begin = xp.arange(count, x) * stride[axis]
        end, least, most = begin + kernel[axis], before - first, before + length + last
        inside = xp.where(end > most, most, end) - xp.where(begin < least, least, begin)
        found = found * xp.to_float32(inside).reshape((-1, *(1,) * (len(kernel) - 1 - axis)))
    return found


def _taps(x: Any, kernel: Shape, stride: Shape, dilation: Shape) -> Iterator[Any]:
    """For each tap the numbers of all windows at this tap."""
    lengths = x.shape[x.ndim - len(kernel) :]
    reaches = [space * (size - 1) + 1 for size, space in zip(kernel, dilation, strict=True)]
    counts = [(length - reach) // step + 1 for length, reach, step in zip(lengths, reaches, stride, strict=True)]
    for places in product(*map(range, kernel)):
        spans = zip(places, dilation, counts, stride, strict=True)
        firsts = [(place * space, count, step) for place, space, count, step in spans]
        yield x[(..., *(slice(first, first + (count - 1) * step + 1, step) for first, count, step in firsts))]


def _gathered(
    xp: Any, parts: Iterator[Any], shape: Shape, kernel: Shape, stride: Shape, widths: Pairs, dilation: Shape
) -> Any:
    """The gradients of x, from the gradients of its taps."""
    dims = len(kernel)
    lengths = [size + sum(width) for size, width in zip(shape[len(shape) - dims :], widths, strict=True)]
    total = None
    for places, part in zip(product(*map(range, kernel)), parts, strict=True):
        axes = zip(places, dilation, stride, lengths, strict=True)
        for axis, (place, space, step, length) in enumerate(axes, part.ndim - dims):
            part = _spread(xp, part, axis, place * space, step, length)
        total = part if total is None else total + part
    return xp.float32(unpadded(total, widths))


def _spread(xp: Any, x: Any, axis: int, first: int, step: int, length: int) -> Any:
    """Zeros of a length along an axis, with x's numbers from a first place on in steps."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    gaps = xp.zeros((*before, x.shape[axis], step - 1, *after), x)
    spread = xp.concatenate([x.reshape((*before, x.shape[axis], 1, *after)), gaps], axis + 1)
    spread = spread.reshape((*before, x.shape[axis] * step, *after))[(slice(None),) * axis + (slice(length - first),)]
    ends = [xp.zeros((*before, size, *after), x) for size in (first, length - first - spread.shape[axis])]
    return xp.concatenate([ends[0], spread, ends[1]], axis)


DROPOUT = Differentiable(_dropout, _dropout_gradient, by_pieces=True, fusible=False)
MAX_POOL = Differentiable(_max_pool, _max_pool_gradient, by_pieces=True, fusible=False)
AVG_POOL = Differentiable(_avg_pool, _avg_pool_gradient, by_pieces=True, fusible=False)


class LayerFunctions(MovingFunctions):
    """`MovingFunctions`, dropout and pooling."""

    @public
    def dropout(self, x: Any, rate: float, key: Any) -> Any:
        """x times 1 / (1 - rate) where the leading 24 bits of an element's random word are at least the rate, else +0.

        1 / (1 - rate) is rounded to float32, and so is its product with x.

        Args:
            x: float32 array.
            rate: the probability of a zero, at least 0 and below 1.
            key: the key of the random words, as for `quantize`.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.dropout(np.float32([1.0] * 6), 0.5, key=0).tolist()
            [2.0, 2.0, 0.0, 0.0, 2.0, 0.0]
        """
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ValueError(f"rate={quoted(rate)}; allowed are numbers from 0 to below 1")
        return self.call(DROPOUT, self.float32("x", x), self.key_words(key), rate=float(rate))

    @public
    def max_pool2d(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        """The largest number of each window; its gradient goes to the first place that has it.

        Args:
            x: float32 array of shape (..., height, width).
            kernel_size: the window's size, an int or a pair.
            stride: the distance of windows; None is kernel_size.
            padding: the number of missing numbers on both sides, at most half of kernel_size.
            dilation: the distance of a window's numbers.
            ceil_mode: True adds windows that begin in the array, or in the padding before it, and end behind it.

        Returns:
            A float32 array of shape (..., windows down, windows across).

        Example:
            >>> reproducible.max_pool2d(np.float32([[0.0, 1, 2, 3], [4, 5, 6, 7]]), 2).tolist()
            [[5.0, 7.0]]
        """
        kernel, step, pads, space = _windows(kernel_size, stride, padding, dilation)
        x, widths = self._window_padding(x, kernel, step, pads, space, ceil_mode)
        return self.call(MAX_POOL, x, kernel=kernel, stride=step, widths=widths, dilation=space)

    @public
    def avg_pool2d(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Any:
        """The mean of each window: the float64 sum of its numbers, row by row, rounded, over their count.

        Args:
            x: float32 array of shape (..., height, width).
            kernel_size, stride, padding, ceil_mode: as for `max_pool2d`.
            count_include_pad: True if zeros of the padding count as numbers; zeros that ceil_mode adds never count.

        Returns:
            A float32 array of shape (..., windows down, windows across).

        Example:
            >>> reproducible.avg_pool2d(np.float32([[0.0, 1, 2, 3], [4, 5, 6, 7]]), 2).tolist()
            [[2.5, 4.5]]
        """
        check_flag("count_include_pad", count_include_pad)
        kernel, step, pads, space = _windows(kernel_size, stride, padding, 1)
        x, widths = self._window_padding(x, kernel, step, pads, space, ceil_mode)
        counted = tuple([(pad, pad) if count_include_pad else (0, 0) for pad in pads])
        return self.call(AVG_POOL, x, kernel=kernel, stride=step, widths=widths, counted=counted)

    def _window_padding(
        self, x: Any, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
    ) -> tuple[Any, Any]:
        """The array, and its padding before and after each of the last two axes."""
        x = self.float32("x", x)
        check_flag("ceil_mode", ceil_mode)
        axes = list(zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True)) if x.ndim >= 2 else []
        if not axes or any(
            length + 2 * pad < space * (size - 1) + 1 or 2 * pad > size for length, size, _, pad, space in axes
        ):
            raise ValueError(
                f"x has shape {tuple(x.shape)} with kernel_size={kernel}, padding={padding}, dilation={dilation}; "
                "allowed are windows within (..., height, width), and padding up to half of them"
            )
        return x, tuple([(axis[3], window_padding(*axis, ceil_mode)) for axis in axes])


def _windows(kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Pair, Pair, Pair, Pair]:
    """The sizes of a window along two axes."""
    kernel = _pair("kernel_size", kernel_size, 1)
    step = kernel if stride is None else _pair("stride", stride, 1)
    return kernel, step, _pair("padding", padding, 0), _pair("dilation", dilation, 1)


def _pair(name: str, value: Any, low: int) -> Pair:
    values = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(values) != 2:
        raise ValueError(f"{name}={quoted(value)}; allowed are an int and two ints")
    return check_int(name, values[0], low), check_int(name, values[1], low)
