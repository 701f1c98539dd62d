"""Double quantization: scales of blocks that are themselves codes, around their mean. Arithmetic in float32.

    offset = mean of the scales            their sum in a tree: zeros are appended up to a power of two, then the second
                                           half is added to the first until one number is left; divided by their count
    d = scale - offset                     is encoded in blocks, as any array
    scale' = decoded d + offset

Sums are at most the largest float, and d, decoded d and scale' below the smallest normal float are 0, so that it makes
no difference whether a backend has subnormal numbers.
"""

from __future__ import annotations

from typing import Any

_MOST, _LEAST = (2.0 - 2.0**-23) * 2.0**127, 2.0**-126


def differences(xp: Any, scales: Any) -> tuple[Any, Any]:
    """The differences from the mean, of a float32 array of any shape, and the mean."""
    count = scales.reshape(-1).shape[0]
    whole = 1 << max(count - 1, 0).bit_length()
    total = xp.pad(scales.reshape(-1), [(0, whole - count)])
    while whole > 1:
        whole //= 2
        total = total[:whole] + total[whole:]
    offset = xp.divide(xp.clip(total.reshape(()), None, _MOST), float(max(count, 1)))
    return _normal(xp, scales - offset), offset


def sums(xp: Any, decoded: Any, offset: Any) -> Any:
    """The scales of decoded differences."""
    return _normal(xp, _normal(xp, decoded) + offset)


def _normal(xp: Any, x: Any) -> Any:
    return xp.where(abs(x) < _LEAST, x - x, x)
