"""What tests of designs by name share: operands, addends and scales on which their laws differ."""

import numpy as np
from peer_support import numbers_of

from qcore.linalg.designs import DESIGNS


def hard(rng, number, shape):
    """Numbers of a format: any code, mostly within a few binades of each other, with subnormals, ends and zeros."""
    if number in ("binary(8,23)", "tf32"):
        wild = rng.integers(0, 1 << 32, shape, np.uint32).view(np.float32)
        wild = np.where(np.isnan(wild), np.float32(np.nan), wild)
        near = rng.standard_normal(shape).astype(np.float32) * np.exp2(rng.integers(-6, 7, shape)).astype(np.float32)
        ends = np.float32([0, -0.0, 2.0**127, -(2.0**127), 2.0**-126, 1e-45, -1e-40, 1.5, -1, 1 - 2.0**-11])
        special = np.float32([np.inf, -np.inf, np.nan])
    else:
        numbers = numbers_of(number).astype(np.float32)
        finite = np.sort(np.abs(numbers[np.isfinite(numbers)]))
        wild = rng.choice(finite, shape) * rng.choice(np.float32([1, -1]), shape)
        few = finite[(finite >= 2.0**-3) & (finite <= 2.0**3)]
        near = rng.choice(few, shape) * rng.choice(np.float32([1, -1]), shape)
        tiny = finite[:9]
        ends = np.concatenate([tiny, -tiny, finite[-3:], -finite[-3:], np.float32([0, -0.0, 1, -1])])
        special = numbers[~np.isfinite(numbers)]
    found = np.where(rng.random(shape) < 0.5, near, wild)
    found = np.where(rng.random(shape) < 0.25, rng.choice(ends, shape), found)
    if len(special):
        found = np.where(rng.random(shape) < 0.002, rng.choice(special, shape), found)
    return found.astype(np.float32)


def cases(rng, name, rows, terms, columns):
    """Operands and an addend: all hard; then half of the columns cancel, and addends near the sum's negative."""
    design = DESIGNS[name]
    a = hard(rng, design.operands[0], (rows, terms))
    b = hard(rng, design.operands[1], (terms, columns))
    if terms > 1:
        b[terms // 2 : terms // 2 * 2, ::2] = b[: terms // 2, ::2]
        a[::2, terms // 2 : terms // 2 * 2] = -a[::2, : terms // 2]
    c = hard(rng, "float16" if design.number == "float16" else "binary(8,23)", (rows, columns))
    with np.errstate(all="ignore"):
        close = np.float32(np.float16(-(a @ b)) if design.number == "float16" else -(a @ b))
    c[:, ::3] = np.where(np.isnan(close), np.float32(np.nan), close)[:, ::3]
    return a, b, c


def scales_of(rng, scale, shape):
    """Scales near 1, and a few of all codes; zeros and NaN among them."""
    number = "e8m0fnu" if scale == "e8m0" else scale
    numbers = np.abs(numbers_of(number).astype(np.float32))
    near = numbers[(numbers >= 0.25) & (numbers <= 16)]
    found = np.where(rng.random(shape) < 0.7, rng.choice(near, shape), rng.choice(numbers[~np.isnan(numbers)], shape))
    return np.where(rng.random(shape) < 0.001, np.float32(np.nan), found).astype(np.float32)
