"""Softmax in a fixed order, and the arguments of attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from qcore.arguments import check_flag, check_float, quoted
from qcore.linalg.law import tree_sum


def softmax(xp: Any, x: Any) -> Any:
    """exp(x - max) / sum along the last axis, of float32 numbers, each step rounded once to float32.

    Exponentials, quotients and the sum are computed in float64. The sum goes by halves: each number of the first half
    is added to the number in the same place of the second half, the middle one of an odd length to zero.
    """
    exponentials = xp.float32(xp.exp(xp.float64(x - xp.greatest(x, (-1,)))))
    total = xp.float32(tree_sum(xp, xp.float64(exponentials)))
    return xp.float32(xp.float64(exponentials) / xp.float64(total))


def softmax_gradient(xp: Any, y: Any, gradient: Any) -> Any:
    """The gradient of softmax with the result y: y * (gradient - sum of y * gradient), rounded to float32 in steps."""
    total = xp.float32(tree_sum(xp, xp.float64(y) * xp.float64(gradient)))
    return xp.float32(xp.float64(y) * xp.float64(xp.float32(xp.float64(gradient) - xp.float64(total))))


def check_attention(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None) -> float:
    """The scale, as a float32 number; raises if shapes do not fit, or arguments contradict each other."""
    check_flag("is_causal", is_causal)
    fits = len(query) >= 2 and len(query) == len(key) == len(value) and query[:-2] == key[:-2] == value[:-2]
    if not fits or query[-1] != key[-1] or key[-2] != value[-2]:
        allowed = "(..., L, E), (..., S, E) and (..., S, V) with the same leading dimensions"
        raise ValueError(f"query has shape {query}, key {key}, value {value}; allowed are {allowed}")
    if is_causal and mask is not None:
        raise ValueError("attn_mask is given with is_causal=True; allowed is None")
    if scale is not None and (not isinstance(scale, int | float) or isinstance(scale, bool)):
        raise TypeError(f"scale={quoted(scale)} is a {type(scale).__name__}; allowed are a number and None")
    known = 1 / sqrt(max(query[-1], 1)) if scale is None else check_float("scale", scale, "a number", lambda _: True)
    return float(np.float32(known))


def check_mask(mask: Any, query: Any, key: Any) -> None:
    """Raises unless a mask can be added to scores, or can select the scores that count; None is allowed.

    `query` and `key` are shapes, which `check_attention` has checked.
    """
    if mask is None:
        return
    if not hasattr(mask, "dtype"):
        raise TypeError(f"attn_mask is a {type(mask).__name__}; allowed are arrays of bool and float32, and None")
    dtype = str(mask.dtype).removeprefix("torch.")
    if dtype not in ("bool", "float32"):
        raise TypeError(f"attn_mask has dtype {dtype}; allowed are bool and float32")
    shape, scores = tuple(mask.shape), (*query[:-1], key[-2])
    pairs = zip(reversed(shape), reversed(scores), strict=False)
    if len(shape) > len(scores) or any(size not in (1, most) for size, most in pairs):
        raise ValueError(f"attn_mask has shape {shape}; allowed is what broadcasts to the scores' {scores}")
