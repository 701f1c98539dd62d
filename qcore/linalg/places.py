"""Where the elements of a convolution's two matrices lie in memory: kernels read them there, and need no columns."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from qcore.linalg.convolution import ConvolutionForm, Windows
from qcore.linalg.forms import FORWARD, GRAD_B, Shape

Axis = int | np.ndarray  # places as multiples of a stride, or each of them


class Places(NamedTuple):
    """The elements of C = A B for each of a batch, as numbers of elements from the operands' first ones.

    Attributes:
        sizes: of the batch, M, N and K.
        axes: the batch in A and in B, M, K in A and in B, and N: a place is the sum of its axes' places.
    """

    sizes: tuple[int, int, int, int]
    axes: tuple[Axis, Axis, Axis, Axis, Axis, Axis]


def convolution_places(form: ConvolutionForm, which: str, first: Shape, second: Shape, windows: Windows) -> Places:
    """The places of `ConvolutionForm.matrices` in row-major memory.

    Args:
        form, which: the product.
        first, second: the operands' shapes.
        windows: of one of them, whose x lies in memory in its place.
    """
    taps = tuple(windows.places), windows.positions, windows.strides
    return _places(form, which, first, second, tuple(windows.x.shape), *taps)


@lru_cache(maxsize=64)
def _places(
    form: ConvolutionForm,
    which: str,
    first: Shape,
    second: Shape,
    padded: Shape,
    places: tuple[Shape, ...],
    positions: Shape,
    strides: Shape,
) -> Places:
    groups, batch = form.groups, padded[0]
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
    """All sums of one place of each axis, the last one fastest."""
    found = axes[0]
    for axis in axes[1:]:
        found = np.add.outer(found, axis).ravel()
    return found
