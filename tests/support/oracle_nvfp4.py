"""NVFP4 as Transformer Engine's reference defines it, in NumPy's float32 arithmetic; nothing here is the library's.

Every line is one operation of IEEE 754 float32, subnormal numbers and overflow included. Arrays are matrices whose
sides the tiles divide.
"""

from __future__ import annotations

import numpy as np

LARGEST = np.finfo(np.float32).max
E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.float32(
    [mantissa * 2.0**-9 for mantissa in range(8)]
    + [(8 + mantissa) * 2.0 ** (field - 10) for field in range(1, 16) for mantissa in range(8)][:-1]
)


def codes_of(values, table):
    """The places of the nearest numbers of an ascending table, at ties the even ones; larger ones get the last."""
    table, values = table.astype(np.float64), np.minimum(values.astype(np.float64), table[-1])
    above = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    down, up = values - table[above - 1], table[above] - values
    return np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1).astype(np.uint8)


def split(x, tile):
    """A matrix as (rows of tiles, rows, columns of tiles, columns)."""
    return x.reshape(x.shape[0] // tile[0], tile[0], x.shape[1] // tile[1], tile[1])


def encoded(x, factor):
    """The codes of x times a factor for each tile."""
    scaled = x * factor  # float32
    return codes_of(np.minimum(np.abs(scaled), np.float32(6)), E2M1) | (np.signbit(x) * np.uint8(8))


def transformer_engine(x, tile=(1, 16)):
    """Codes of elements, codes of the tiles' scales, and the array's scale 1 / g."""
    with np.errstate(all="ignore"):
        tiles, one = split(x, tile), np.float32(1)
        largest = np.abs(tiles).max((1, 3), keepdims=True)
        whole = np.abs(x).max()
        g = np.minimum(np.float32(448 * 6) / whole, LARGEST) if whole > 0 else one
        g = one if g == 0 else g
        scale = codes_of(np.minimum(largest * (g * (one / np.float32(6))), np.float32(448)), E4M3)
        factor = np.minimum(one / (E4M3[scale] * (one / g)), LARGEST)
        return encoded(tiles, factor).reshape(x.shape), scale[:, 0, :, 0], one / g


def four_over_six(x, tile=(1, 16), measure="mae", scale_max=256):
    """The same where each tile has the better of two scales: its largest number becomes 6, or 4."""
    f = np.float32
    with np.errstate(all="ignore"):
        tiles, whole = split(x, tile), np.abs(x).max()
        g = np.minimum(f(6 * scale_max) / whole, LARGEST) if whole > 0 else f(1)
        base = np.abs(tiles).max((1, 3), keepdims=True) / f(6) * g
        found = []
        for wanted in (base, base * f(1.5)):
            scale = codes_of(np.minimum(wanted, f(448)), E4M3)
            codes = encoded(tiles, np.minimum(f(1) / (E4M3[scale] * (f(1) / g)), LARGEST))
            numbers = np.where(codes > 7, -E2M1[codes & 7], E2M1[codes & 7]).astype(f)
            errors = numbers * E4M3[scale] * whole / f(6 * scale_max) - tiles
            errors = errors * errors if measure == "mse" else np.abs(errors)
            sums = np.zeros(errors.shape[:3], f)
            for column in range(errors.shape[3]):
                sums = sums + errors[..., column]
            while sums.shape[1] > 1:  # rows i and i + half
                half = sums.shape[1] // 2
                sums = sums[:, :half] + sums[:, half:]
            found.append((codes, scale, sums[..., None]))
        (codes6, scale6, error6), (codes4, scale4, error4) = found
        better = error4 < error6
        codes, scale = np.where(better, codes4, codes6), np.where(better, scale4, scale6)
        return codes.reshape(x.shape).astype(np.uint8), scale[:, 0, :, 0].astype(np.uint8), f(1) / g
