"""Convolutions as products of matrices: every output, and every gradient, gathers its terms in a fixed order.

The contraction index, ascending, with the last name the fastest: forward (channel of the group, tap); gradient of the
input (output channel of the group, tap), for each input position; gradient of the weight (example, output position).
Taps and positions are in row-major order. Where the padding or a stride leaves no number the term has a zero.

For blocks, tiles and transforms a convolution is a linear layer at each place, which is a position or a tap: operands
are laid out as (groups, *places, rows, channels of the group), where rows are examples of inputs and gradients, and
outputs of the group in weights. So the axes -1 and -2 are those of linear layers, no block crosses a position, a tap or
a group, and padding adds nothing to a block. If an operand is rounded as a matrix, its sums run over (tap, channel of
the group), (tap, output channel of the group) and (output position, example) instead. Blocks along the channels,
forward and in the gradient of the input, and along the batch in the gradient of the weight, are those of Microsoft's
microxcaling, whose blocks of inputs and gradients go on from one group into the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import check_size, check_sizes
from qcore.formats.block import BlockScaled
from qcore.law.tiles import block_text
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, Contraction, MatrixGeometry, Shape


class Windows(NamedTuple):
    """The numbers that each tap of a convolution reads.

    Attributes:
        x: the operand, with zeros around its spatial dimensions, and between its numbers.
        places: for each tap the spatial place that it reads for the first position.
        positions: the number of positions in each spatial dimension.
        strides: the distances of their places.
    """

    x: Any
    places: list[Shape]
    positions: Shape
    strides: Shape


@dataclass(frozen=True)
class ConvolutionGeometry:
    """A convolution of (batch, channels, *positions) with a weight (outputs, channels / groups, *taps).

    Attributes:
        stride, padding, dilation: one number for each spatial dimension.
        groups: the number of parts into which channels and outputs are split.
    """

    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1

    names = ("input", "weight")

    @property
    def text(self) -> str:
        """What `geometry_of` makes the geometry from."""
        fields = (self.stride, self.padding, self.dilation, (self.groups,))
        return "convolution " + " ".join(",".join(map(str, field)) for field in fields)

    def check(self, a: Shape, b: Shape) -> None:
        """Raises for shapes that do not fit."""
        dims = len(self.stride)
        fits = len(a) == len(b) == dims + 2 and a[1] == b[1] * self.groups and b[0] % self.groups == 0
        if not fits or min(self._positions(a, b)) < 1 or 0 in b:
            raise ValueError(
                f"input has shape {a}, weight has shape {b}; allowed are {dims + 2} dimensions each, (batch, channels, "
                f"...) and (outputs, channels / {self.groups}, ...) with groups={self.groups}, whose taps fit the input"
            )

    def _positions(self, a: Shape, b: Shape) -> Shape:
        """The lengths of the result's spatial dimensions."""
        sizes = zip(a[2:], b[2:], self.stride, self.padding, self.dilation, strict=False)
        return tuple((length + 2 * pad - gap * (taps - 1) - 1) // step + 1 for length, taps, step, pad, gap in sizes)

    def result(self, a: Shape, b: Shape) -> Shape:
        """The shape of the result."""
        return (a[0], b[0], *self._positions(a, b))

    def contraction(self, which: str, first: Shape, second: Shape, other: Shape) -> Contraction:
        """See `MatrixGeometry.contraction`."""
        spatial = tuple(range(2, len(first)))
        if which == FORWARD:
            return Contraction(prod(second[1:]), (1, *spatial), (1, *spatial), second[1])
        if which == GRAD_A:
            outputs = second[0] // self.groups
            return Contraction(outputs * prod(second[2:]), (1, *spatial), (0, *spatial), outputs)
        return Contraction(prod(first) // first[1], (0, *spatial), (0, *spatial), first[0])

    def is_swapped(self, which: str) -> bool:
        """See `MatrixGeometry.is_swapped`."""
        return which != GRAD_B

    def kept_axes(self, which: str, first: int, second: int, other: int) -> tuple[dict[int, int], dict[int, int]]:
        """See `MatrixGeometry.kept_axes`; channels of several groups are not among them."""
        one = self.groups == 1
        if which == FORWARD:
            return {0: 0}, {0: 1} if one else {}
        if which == GRAD_A:
            return {0: 0}, {1: 1} if one else {}
        return ({1: 0}, {1: 1}) if one else ({}, {})

    def is_laid_out(self, number: Any) -> bool:
        """See `MatrixGeometry.is_laid_out`: blocks with axes that count from the end."""
        if not isinstance(number, BlockScaled):
            return False
        behind = [axis for axis, _ in number.block if isinstance(axis, int) and axis < 0]
        if behind and min(behind) < -2:
            raise ValueError(
                f"block={block_text(number.block)} in a convolution; allowed are -1, the channels of a group, -2, the "
                "examples or the outputs of a group, and axes of the tensor that count from the start"
            )
        return bool(behind)

    def laid_out(self, which: str, index: int, x: Any) -> Any:
        """An operand, 0 or 1 by its index, as (groups, places, rows, channels of the group), see above."""
        shape = tuple(x.shape)
        if _is_weight(which, index):
            rows, channels = shape[0] // self.groups, shape[1]
            split = x.reshape(self.groups, rows, channels, prod(shape[2:]))
        else:
            rows, channels = shape[0], shape[1] // self.groups
            split = x.reshape(rows, self.groups, channels, prod(shape[2:])).swapaxes(0, 1)
        split = split.reshape(self.groups, rows * channels, prod(shape[2:]))
        return split.swapaxes(1, 2).reshape(self.groups, prod(shape[2:]), rows, channels)

    def put_back(self, which: str, index: int, x: Any, sizes: Shape) -> Any:
        """The inverse of `laid_out`, for spatial dimensions of these sizes, and any number of rows and channels."""
        groups, count, rows, channels = x.shape
        split = x.reshape(groups, count, rows * channels).swapaxes(1, 2).reshape(groups, rows, channels, count)
        if _is_weight(which, index):
            return split.reshape(groups * rows, channels, *sizes)
        return split.swapaxes(0, 1).reshape(rows, groups * channels, *sizes)

    def sums_over_rows(self, which: str, index: int) -> bool:
        """True if a product sums over the rows of an operand that is laid out, and not over its channels."""
        return which == GRAD_B or (which == GRAD_A and index == 1)

    def matrices(
        self, xp: Any, which: str, first: Any, second: Any, other: Shape, by_places: bool = False
    ) -> tuple[Any, Any]:
        """See `MatrixGeometry.matrices`; with `by_places` sums run over all channels, or examples, of each place."""
        left = second if self.is_swapped(which) else first
        windows = self.windows(xp, which, first, second, other)
        return self.left(which, left, by_places), self.right(xp, which, windows, by_places)

    def left(self, which: str, x: Any, by_places: bool) -> Any:
        """The left matrix: the weight, (1, groups, M, K), or in its gradient the result's, (groups, M, K)."""
        rows, channels, count, groups = x.shape[0], x.shape[1], prod(x.shape[2:]), self.groups
        if which == GRAD_B:
            split = x.reshape(rows, groups, channels // groups, count).swapaxes(0, 1).swapaxes(1, 2)
            split = split.swapaxes(2, 3) if by_places else split
            return split.reshape(groups, channels // groups, rows * count)
        split = x.reshape(groups, rows // groups, channels, count)
        split = split.swapaxes(1, 2) if which == GRAD_A else split
        split = split.swapaxes(2, 3) if by_places else split
        return split.reshape(1, groups, split.shape[1], split.shape[2] * split.shape[3])

    def right(self, xp: Any, which: str, windows: Windows, by_places: bool) -> Any:
        """The right matrix, of windows: (batch, groups, K, N), or in the gradient of the weight (groups, K, N)."""
        if which != GRAD_B:
            return self._gathered(xp, windows, by_places)
        columns = self._gathered(xp, windows, False).swapaxes(0, 1).swapaxes(2, 3)
        groups, batch, positions, taps = columns.shape
        columns = columns.swapaxes(1, 2) if by_places else columns
        return columns.reshape(groups, batch * positions, taps)

    def windows(self, xp: Any, which: str, first: Any, second: Any, other: Shape) -> Windows:
        """The windows of the gradient for the input's gradient, else of the input; see `MatrixGeometry.matrices`."""
        if which == GRAD_A:
            return self._of_gradient(xp, first, tuple(second.shape[2:]), other[2:])
        x, positions = (first, self._positions(first.shape, other)) if which == FORWARD else (second, first.shape[2:])
        x = xp.pad(x, [(0, 0), (0, 0), *((size, size) for size in self.padding)])
        places = [
            tuple(tap * gap for tap, gap in zip(place, self.dilation, strict=True)) for place in _places(other[2:])
        ]
        return Windows(x, places, tuple(positions), self.stride)

    def _of_gradient(self, xp: Any, gradient: Any, taps: Shape, positions: Shape) -> Windows:
        """The gradients that each input position reads."""
        before, pads = [], []
        for axis, step in enumerate(self.stride):
            length = gradient.shape[axis + 2]
            gradient = _interleaved(xp, gradient, axis + 2, step)
            reach, padding = self.dilation[axis] * (taps[axis] - 1), self.padding[axis]
            low = max(reach - padding, 0)
            before.append(low + padding)
            pads.append((low, max(positions[axis] + padding - ((length - 1) * step + 1), 0)))
        gradient = xp.pad(gradient, [(0, 0), (0, 0), *pads])
        places = [
            tuple(first - tap * gap for first, tap, gap in zip(before, place, self.dilation, strict=True))
            for place in _places(taps)
        ]
        return Windows(gradient, places, tuple(positions), (1,) * len(taps))

    def _gathered(self, xp: Any, windows: Windows, by_places: bool) -> Any:
        """The numbers that each tap reads for all positions: (batch, groups, channels of a group * taps, positions).

        With `by_places` a tap's channels are neighbours, else a channel's taps.
        """
        x, places, positions, strides = windows
        parts = []
        for first in places:
            spans = zip(first, positions, strides, strict=True)
            parts.append(x[(..., *(slice(low, low + (count - 1) * step + 1, step) for low, count, step in spans))])
        batch, channels = x.shape[0], x.shape[1] // self.groups
        if by_places:
            parts = [part.reshape(batch, self.groups, channels, prod(positions)) for part in parts]
        return xp.stack(parts, 2).reshape(batch, self.groups, channels * len(places), prod(positions))


def _is_weight(which: str, index: int) -> bool:
    """True if an operand of a product, by its index, is the weight; the gradient of the weight has none."""
    return index == 1 and which != GRAD_B


def _places(taps: Shape) -> list[Shape]:
    return list(product(*map(range, taps)))


def _interleaved(xp: Any, x: Any, axis: int, step: int) -> Any:
    """x with step - 1 zeros between neighbours along an axis."""
    if step == 1:
        return x
    *before, length = x.shape[: axis + 1]
    after = x.shape[axis + 1 :]
    spread = xp.pad(
        x.reshape(*before, length, 1, *after), [(0, 0)] * (axis + 1) + [(0, step - 1)] + [(0, 0)] * len(after)
    )
    spread = spread.reshape(*before, length * step, *after)
    return spread[(slice(None),) * axis + (slice(0, (length - 1) * step + 1),)]


class WeightLayout(NamedTuple):
    """Where the blocks of a convolution's weight lie if it is rounded by itself: where the product has them.

    Attributes:
        taps: the lengths of the kernel.
        groups: see `ConvolutionGeometry`.
        is_transposed: True if the weight is (inputs, outputs / groups, *taps), that of a transposed convolution.
    """

    taps: Shape
    groups: int = 1
    is_transposed: bool = False

    @property
    def geometry(self) -> ConvolutionGeometry:
        ones = (1,) * len(self.taps)
        return ConvolutionGeometry(ones, (0,) * len(ones), ones, self.groups)

    def laid_out(self, weight: Any) -> Any:
        """The weight as (groups, taps, outputs of a group, channels of a group)."""
        return self.geometry.laid_out(FORWARD, 1, self._exchanged(weight) if self.is_transposed else weight)

    def put_back(self, weight: Any) -> Any:
        """The inverse of `laid_out`."""
        weight = self.geometry.put_back(FORWARD, 1, weight, self.taps)
        return self._exchanged(weight) if self.is_transposed else weight

    def _exchanged(self, weight: Any) -> Any:
        """The weight with inputs and outputs exchanged within each group."""
        first, second = weight.shape[0] // self.groups, weight.shape[1]
        split = weight.reshape(self.groups, first, second, *self.taps).swapaxes(1, 2)
        return split.reshape(self.groups * second, first, *self.taps)


def weight_layout(number: Any, taps: Shape, groups: int = 1, is_transposed: bool = False) -> WeightLayout | None:
    """The layout of a convolution's weight for a format; None if the format follows the axes of the array."""
    layout = WeightLayout(tuple(taps), groups, is_transposed)
    return layout if layout.geometry.is_laid_out(number) else None


def convolution_geometry(dims: int, stride: Any, padding: Any, dilation: Any, groups: Any) -> ConvolutionGeometry:
    """The geometry of a convolution's arguments: ints, or one for each spatial dimension."""
    steps, pads, gaps = (
        check_sizes(name, value, low, dims)
        for name, value, low in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    )
    return ConvolutionGeometry(steps, pads, gaps, check_size("groups", groups))


Geometry = MatrixGeometry | ConvolutionGeometry
_GEOMETRIES = {geometry.text: geometry for geometry in (MatrixGeometry(), MatrixGeometry(transposed=True))}


@lru_cache(maxsize=1024)
def geometry_of(text: str) -> Geometry:
    """The inverse of a geometry's `text`."""
    if text in _GEOMETRIES:
        return _GEOMETRIES[text]
    stride, padding, dilation, groups = (tuple(map(int, field.split(","))) for field in text.split(" ")[1:])
    return ConvolutionGeometry(stride, padding, dilation, groups[0])


Axis = int | np.ndarray  # places as multiples of a stride, or each of them


class Places(NamedTuple):
    """The places of the elements of C = A B for a batch, counted in elements from the operands' first elements.

    Attributes:
        sizes: the sizes of the batch, M, N and K.
        axes: the places along the batch in A and in B, M, K in A and in B, and N; an element's place is their sum.
    """

    sizes: tuple[int, int, int, int]
    axes: tuple[Axis, Axis, Axis, Axis, Axis, Axis]


def convolution_places(
    geometry: ConvolutionGeometry, which: str, first: Shape, second: Shape, windows: Windows
) -> Places:
    """The places of `ConvolutionGeometry.matrices` in row-major memory, for operands of these shapes.

    The x of the windows replaces its operand in memory.
    """
    taps = tuple(windows.places), windows.positions, windows.strides
    return _places_in_memory(geometry, which, first, second, tuple(windows.x.shape), *taps)


@lru_cache(maxsize=64)
def _places_in_memory(
    geometry: ConvolutionGeometry,
    which: str,
    first: Shape,
    second: Shape,
    padded: Shape,
    places: tuple[Shape, ...],
    positions: Shape,
    strides: Shape,
) -> Places:
    groups, batch = geometry.groups, padded[0]
    steps = [prod(padded[axis + 1 :]) for axis in range(len(padded))]
    taps = np.array(places, np.int64).reshape(len(places), -1) @ np.array(steps[2:], np.int64)
    channels = _sums(_multiples(padded[1] // groups, steps[1]), taps)
    of_groups = _multiples(groups, padded[1] // groups * steps[1])
    spans = zip(positions, strides, steps[2:], strict=True)
    reads = _sums(*(_multiples(count, stride * step) for count, stride, step in spans))
    if which == GRAD_B:
        outputs, size = first[1] // groups, prod(first[2:])
        sizes = groups, outputs, len(channels), batch * size
        terms = _sums(_multiples(batch, first[1] * size), _multiples(size, 1))
        examples = _sums(_multiples(batch, steps[0]), reads)
        return Places(sizes, (outputs * size, of_groups, size, terms, examples, channels))
    outputs, size = second[0] // groups, len(taps)
    weight = outputs * second[1] * size  # of a group
    batches = _sums(_multiples(batch, 0), _multiples(groups, weight)), _sums(_multiples(batch, steps[0]), of_groups)
    if which == FORWARD:
        sizes = batch * groups, outputs, len(reads), len(channels)
        return Places(sizes, (*batches, len(channels), 1, channels, reads))
    sizes = batch * groups, second[1], len(reads), len(channels)
    terms = _sums(_multiples(outputs, second[1] * size), _multiples(size, 1))
    return Places(sizes, (*batches, size, terms, channels, reads))


def _multiples(count: int, step: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * step


def _sums(*axes: np.ndarray) -> np.ndarray:
    """The sums of all combinations of one place from each axis, the last axis fastest."""
    found = axes[0]
    for axis in axes[1:]:
        found = np.add.outer(found, axis).ravel()
    return found
