"""What lies around the images of a convolution: other integers of the same image, by the modes of `torch.nn.Conv2d`."""

from __future__ import annotations

from typing import Any


def pad_images(input: Any, padding: tuple[tuple[int, int], ...], mode: str, first: int = 2) -> Any:
    """The images with so many of their own integers around them; scale and zero point stay.

    Args:
        input: quantized array with one scale.
        padding: how many before and after the image, for each of its dimensions.
        mode: "reflect": mirrored at the last integer, which is not repeated; "replicate": the last integer; "circular":
            from the other side. Where there are more than the image has, it is mirrored, or repeated, again, as by
            NumPy's `pad` and flax; torch allows no more (`qcore.affine.quantized.check_convolution`).
        first: where the images' dimensions begin: 2 behind channels, 1 before them.

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
