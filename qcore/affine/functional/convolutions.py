"""Images and weights of quantized convolutions: padding, and transposed convolutions as convolutions.

A transposed convolution is a convolution with mirrored kernels of spread images: zero points are put between and around
the integers. So its sums are exact, and are rounded as the sums of a convolution.
"""

from __future__ import annotations

from typing import Any

from qcore.affine.parameters import QParams


def pad_images(input: Any, padding: tuple[tuple[int, int], ...], mode: str, first: int = 2) -> Any:
    """Pads images by a mode that repeats their own integers; scale and zero point stay.

    Args:
        input: quantized array with one scale.
        padding: the numbers of integers before and after the image, for each of its dimensions.
        mode: "reflect" mirrors at the last integer, which is not repeated; "replicate" repeats the last integer;
            "circular" continues on the other side. Padding longer than the image is mirrored or repeated again, as by
            NumPy's `pad` and flax; torch does not allow it (`qcore.affine.quantized.check_convolution`).
        first: the first dimension of the image: 2 if channels come before it, 1 if they come last.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[[1, 2, 3]]]), QParams.of(0.1, 7), UINT8)
        >>> for mode in ("reflect", "replicate", "circular"):
        ...     print(pad_images(q, ((2, 1),), mode).values[0, 0])
        [3 2 1 2 3 2]
        [1 1 1 2 3 3]
        [2 3 1 2 3 1]
    """
    return type(input)(pad_values(input.names, input.values, padding, mode, first), input.qparams, input.form)


def pad_values(xp: Any, x: Any, padding: tuple[tuple[int, int], ...], mode: str, first: int) -> Any:
    """`pad_images` of the integers alone."""
    # By indices that are known from the shapes alone: one gather for each axis, the same in every framework.
    for axis, (before, after) in enumerate(padding, first):
        if before or after:
            size = x.shape[axis]
            sources = [_SOURCES[mode](place, size) for place in range(-before, size + after)]
            x = x[(*(slice(None),) * axis, xp.constant(sources, "int32", x))]
    return x


_SOURCES = {
    "reflect": lambda place, size: size - 1 - abs(size - 1 - place % max(2 * size - 2, 1)),
    "replicate": lambda place, size: min(max(place, 0), size - 1),
    "circular": lambda place, size: place % size,
}


def filters_of(weight: Any, groups: int) -> Any:
    """The filters of the convolution that equals a transposed convolution.

    Args:
        weight: quantized array of shape (inputs, outputs / groups, *kernel), with one scale, or one along axis 1.
        groups: the number of parts into which channels and outputs are split.

    Returns:
        A quantized array of shape (outputs, inputs / groups, *kernel), with one scale, or one for each output.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import INT8, QArray, QParams
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

    The function is its own inverse: it also turns the weight of a convolution into that of a transposed convolution.
    """
    inputs, outputs, *kernel = weight.shape
    parts = weight.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    return parts.reshape(groups * outputs, inputs // groups, *kernel)


def margins_of(
    kernel: tuple[int, ...], padding: tuple[int, ...], output_padding: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """The numbers of zero points before and after each dimension of the images; negative ones remove integers.

    Example:
        >>> margins_of((3, 3), (1, 3), (1, 0), (1, 1))
        ((1, 2), (-1, -1))
    """
    whole = zip(kernel, padding, output_padding, dilation, strict=True)
    reach = [(gap * (size - 1) - margin, more) for size, margin, more, gap in whole]
    return tuple((before, before + more) for before, more in reach)
