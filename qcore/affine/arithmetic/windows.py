"""Where the windows of a pool lie: plain integers, known before any array is seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from qcore.arguments import check_flag, check_int, check_sizes


class Windows(NamedTuple):
    """The windows along the last dimensions of an array.

    Attributes:
        kernel, stride, dilation, before: of each dimension; `before` is the padding at its start.
        after: how much is added at its end, so that all windows are inside.
        places: how many windows there are.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    places: tuple[int, ...]

    def padded(self, xp: Any, x: Any, value: int) -> Any:
        """The array with a value around it; what windows do not reach at the end is left out."""
        inner = [min(0, end) for end in self.after]
        sizes = x.shape[x.ndim - len(inner) :]
        x = x[(..., *(slice(0, size + end) for size, end in zip(sizes, inner, strict=True)))]
        rest = [(0, 0)] * (x.ndim - len(inner))
        widths = [(start, max(0, end)) for start, end in zip(self.before, self.after, strict=True)]
        return xp.pad(x, [*rest, *widths], value) if any(map(any, widths)) else x

    def reduced(self, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """What an associative function makes of the padded array's elements in each window, a dimension at a time."""
        for number, size in enumerate(self.kernel):
            rest = (slice(None),) * (x.ndim - len(self.kernel) + number)
            step, gap, count = self.stride[number], self.dilation[number], self.places[number]
            cuts = [slice(place * gap, place * gap + step * (count - 1) + 1, step) for place in range(size)]
            x = reduce(combine, [x[(*rest, cut)] for cut in cuts])
        return x

    def inside(self, sizes: tuple[int, ...], number: int, margin: int) -> list[int]:
        """How many of each window's elements along a dimension are within the array and so much of its padding."""
        start, step, size = self.before[number], self.stride[number], self.kernel[number]
        low, high = -margin, sizes[number] + margin
        begins = [place * step - start for place in range(self.places[number])]
        return [min(begin + size, high) - max(begin, low) for begin in begins]


def make_windows(
    shape: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, dimensions: int
) -> Windows:
    """The windows of a pool over the last dimensions of a shape, as `torch.nn.functional` places them.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if it is out of range, padding is above half a kernel, or there is no place for one.
    """
    check_flag("ceil_mode", ceil_mode)
    check_images(shape, dimensions)
    kernel = check_sizes("kernel_size", kernel_size, 1, dimensions)
    as_kernel = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    steps = check_sizes("stride", kernel if as_kernel else stride, 1, dimensions)
    margins = check_sizes("padding", padding, 0, dimensions)
    gaps = check_sizes("dilation", dilation, 1, dimensions)
    places, after = [], []
    sizes = shape[-dimensions:]
    for size, count, step, margin, gap in zip(sizes, kernel, steps, margins, gaps, strict=True):
        extent, room = gap * (count - 1) + 1, size + 2 * margin
        if 2 * margin > count or room < extent:
            raise ValueError(
                f"input has shape {shape} with kernel_size={kernel}, padding={margins} and dilation={gaps}; allowed "
                "are paddings of at most half a kernel, and inputs that hold one"
            )
        number = -(-(room - extent) // step) + 1 if ceil_mode else (room - extent) // step + 1
        if (number - 1) * step >= size + margin:  # a window that would lie in the padding alone
            number -= 1
        places.append(number)
        after.append((number - 1) * step + extent - size - margin)
    return Windows(kernel, steps, gaps, margins, tuple(after), tuple(places))


def check_images(shape: tuple[int, ...], dimensions: Any) -> None:
    """Raises unless a shape has so many sizes behind the channels, with a batch or without."""
    dimensions = check_int("dimensions", dimensions, 1, 3)
    if len(shape) not in (dimensions + 1, dimensions + 2):
        raise ValueError(f"input has shape {shape}; allowed are {dimensions + 1} or {dimensions + 2} dimensions")
