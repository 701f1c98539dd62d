"""Transposed convolutions as convolutions: of images whose integers stand apart, with mirrored kernels.

Between and around the integers is the zero point, so that sums are exact, and rounded as those of a convolution.
"""

from __future__ import annotations

from typing import Any

from qcore.affine.parameters import QParams


def filters_of(weight: Any, groups: int) -> Any:
    """The filters of the convolution that a transposed one is.

    Args:
        weight: quantized array of shape (inputs, outputs / groups, *kernel), with one scale, or one along axis 1.
        groups: into how many parts channels and outputs are split.

    Returns:
        A quantized array of shape (outputs, inputs / groups, *kernel), with one scale, or one for each output.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import INT8, QArray
        >>> weight = QArray(np.int8([[[1, 2, 3]], [[4, 5, 6]]]), QParams.of(0.5, 0), INT8)
        >>> filters_of(weight, 1).values
        array([[[3, 2, 1],
                [6, 5, 4]]], dtype=int8)
    """
    xp, qparams = weight.names, weight.qparams
    values = as_convolution(weight.values, groups)
    for axis, size in enumerate(weight.shape[2:], 2):
        mirrored = xp.constant(list(range(size))[::-1], "int32", values)
        values = values[(*(slice(None),) * axis, mirrored)]
    if qparams.axis is not None:
        scale, zero_point = (xp.concatenate([part] * groups, 0) for part in (qparams.scale, qparams.zero_point))
        qparams = QParams(scale, zero_point, 0)
    return type(weight)(values, qparams, weight.form)


def as_convolution(weight: Any, groups: int) -> Any:
    """An array of shape (inputs, outputs / groups, *kernel) as one of shape (outputs, inputs / groups, *kernel).

    Its own inverse: of a convolution's weight it makes one of a transposed convolution.
    """
    inputs, outputs, *kernel = weight.shape
    parts = weight.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    return parts.reshape(groups * outputs, inputs // groups, *kernel)


def margins_of(
    kernel: tuple[int, ...], padding: tuple[int, ...], output_padding: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """How many zero points stand before and after each dimension of the images; fewer than 0 take integers away.

    Example:
        >>> margins_of((3, 3), (1, 3), (1, 0), (1, 1))
        ((1, 2), (-1, -1))
    """
    whole = zip(kernel, padding, output_padding, dilation, strict=True)
    reach = [(gap * (size - 1) - margin, more) for size, margin, more, gap in whole]
    return tuple((before, before + more) for before, more in reach)
