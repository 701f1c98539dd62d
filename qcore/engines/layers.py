"""Laws of the layers around attention: RMS norms and log-probabilities in the order of an engine."""

from __future__ import annotations

from typing import Any

from qcore.engines.engine import ONCE, RSQRT, Engine
from qcore.reproducible.operations import dot
from qcore.reproducible.reductions import log


def rms_norm(xp: Any, x: Any, weight: Any, eps: float, engine: Engine) -> Any:
    """The norm of float32 numbers x along the last axis; the mean of squares is that of `reproducible.rms_norm`.

    Args:
        xp: the namespace of attention.
        x: numbers in the engine's activations.
        weight: what the normed numbers are multiplied with.
        eps: what is added to the mean.
        engine: its `norm`, which is given, `root` and `activations`.
    """
    squares = dot(xp, x, x, (x.ndim - 1,))
    mean = xp.add(xp.div(squares, float(x.shape[-1])), eps)
    # In float64 the reciprocal is rounded once in effect: both operations there have 29 bits to spare.
    inverse = xp.float32(1.0 / xp.root(xp.to_float64(mean))) if engine.root == RSQRT else xp.div(1.0, xp.sqrt(mean))
    normed = xp.mul(x, inverse)
    if engine.norm != ONCE:
        normed = rounded(xp, normed, engine.activations)
    return rounded(xp, xp.mul(normed, weight), engine.activations)


def rounded(xp: Any, x: Any, number: Any) -> Any:
    """x in a format; None does not round."""
    return x if number is None else xp.quantized(x, number)


def log_softmax(xp: Any, x: Any, tile: int) -> Any:
    """x - max - log(sum) along the last axis in float32, whose sum adds the sums of tiles upward.

    In a tile neighbours are added in pairs. Each exponential is rounded once.
    """
    shifted = xp.sub(x, xp.greatest(x, (x.ndim - 1,)))
    total = None
    for begin in range(0, x.shape[-1], tile):
        part = xp.float32(xp.exp(xp.to_float64(shifted[..., begin : begin + tile])))
        while part.shape[-1] > 1:
            part = xp.pad(part, ((0, 0),) * (part.ndim - 1) + ((0, part.shape[-1] % 2),))
            part = xp.add(part[..., ::2], part[..., 1::2])
        total = part if total is None else xp.add(total, part)
    return xp.sub(shifted, log(xp, total))
