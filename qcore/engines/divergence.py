"""How far a trainer's log-probabilities are from those of the server that made a text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arguments import numbers_of
from qcore.engines.arrays import Attending
from qcore.engines.attribution import Factor, draw, table
from qcore.engines.layers import log_softmax as by_tiles


@dataclass(frozen=True, eq=False, repr=False)
class Mismatch:
    """What two engines say of one text: the trainer, and the server that drew it.

    With d = log p of the trainer - log p of the server, of the tokens that were drawn:

    Attributes:
        d: of each position.
        kl: the exact divergence KL(server || trainer) of the whole vocabulary, of each position, in nats.
        positions: whether any logit of a position differs.
        flipped: whether the most likely token of a position differs.
        routed: bools of shape (routers, *d.shape): whether a router chose another set of experts. None without routers.
        factors: what each difference between the engines does alone, from the engine whose floor is lower, and the
            floor as the last one: one number of each embedding moves by one unit. () where engines are not known.

    Example:
        >>> logits = np.float32([[0, 1], [0, 2]])
        >>> found = mismatch(logits, logits + np.float32([[0, 0], [0, 0.5]]), np.array([1, 0]))
        >>> found.first, found.flips, round(found.rms, 3)
        (2, 0, 0.32)
    """

    d: np.ndarray
    kl: np.ndarray
    positions: np.ndarray
    flipped: np.ndarray
    routed: np.ndarray | None = None
    factors: tuple[Factor, ...] = ()

    @property
    def first(self) -> int | None:
        """The first position whose logits differ, counted from 1: the number of keys of its query. None if none is."""
        rows = self.positions.reshape(-1, self.positions.shape[-1]).any(0)
        return int(np.argmax(rows)) + 1 if rows.any() else None

    @property
    def flips(self) -> int:
        """The number of positions whose most likely token differs."""
        return int(self.flipped.sum())

    @property
    def router_flips(self) -> int:
        """The number of times that a router chose another set of experts."""
        return 0 if self.routed is None else int(self.routed.sum())

    @property
    def rms(self) -> float:
        """The root of the mean square of d."""
        return float(np.sqrt((self.d**2).mean()))

    @property
    def k1(self) -> float:
        """The mean of -d, an estimate of the divergence."""
        return float(-self.d.mean())

    @property
    def k2(self) -> float:
        """The mean of d^2 / 2."""
        return float((self.d**2).mean() / 2)

    @property
    def k3(self) -> float:
        """The mean of exp(d) - 1 - d, which is never below zero."""
        return float((np.expm1(self.d) - self.d).mean())

    @property
    def error(self) -> float:
        """The mean of exp |d|, NeMo-RL's token_mult_prob_error."""
        return float(np.exp(abs(self.d)).mean())

    def __str__(self) -> str:
        rows = {
            "positions": str(self.d.size),
            "first that differs": "none" if self.first is None else str(self.first),
            "flips of the first token": str(self.flips),
            "KL, exact": f"{self.kl.mean():.3e}",
            "k1, k2, k3": f"{self.k1:.3e}, {self.k2:.3e}, {self.k3:.3e}",
            "RMS of d": f"{self.rms:.4f}",
            "mean of exp |d|": f"{self.error:.4f}",
        }
        if self.routed is not None:
            rows["flips of routers"] = f"{self.router_flips} of {self.routed.size}"
        lines = [f"{name:26}{value}" for name, value in rows.items()]
        return "\n".join([*lines, *(["", *table(self.factors)] if self.factors else [])])

    __repr__ = __str__

    def draw(self, path: str | Path) -> None:
        """Draws the factors as bars, and the floor as a line. It needs matplotlib.

        Args:
            path: the file, which ends in .svg or .png.

        Raises:
            ValueError: if there are no factors.

        Example:
            >>> found.draw("factors.svg")  # doctest: +SKIP
        """
        if not self.factors:
            raise ValueError("factors=(); allowed is a mismatch of a model with two engines, which has factors")
        draw(self.factors, Path(path))


def mismatch(
    trainer: np.ndarray,
    server: np.ndarray,
    tokens: np.ndarray,
    *,
    log_softmax: tuple[int | None, int | None] = (None, None),
) -> Mismatch:
    """Compares the logits of a trainer and of a server for the tokens that the server drew.

    Log-probabilities are computed in float64 from the logits as they are: at temperature 1, without top-k or top-p.

    Args:
        trainer: array of logits of shape (..., positions, vocabulary).
        server: array of the same shape.
        tokens: array of ints of shape (..., positions): the token that was drawn by the logits of each position.
        log_softmax: how trainer and server compute log-probabilities, as the field of `Engine`; None is float64.

    Returns:
        A `Mismatch`.

    Raises:
        ValueError: if shapes do not fit, a logit is not finite, or a token is not in the vocabulary.

    Example:
        >>> logits = np.float32([[0, 1], [0, 2]])
        >>> mismatch(logits, logits, np.array([1, 0])).first is None
        True
    """
    a, b = _logits("trainer", trainer), _logits("server", server)
    drawn = numbers_of("tokens", tokens)
    if a.shape != b.shape or a.ndim < 2 or drawn.shape != a.shape[:-1] or not drawn.size:
        raise ValueError(
            f"trainer has shape {a.shape}, server {b.shape}, tokens {drawn.shape}; allowed are (..., positions, "
            "vocabulary), the same, and (..., positions), of at least one position"
        )
    if drawn.dtype.kind not in "iu" or drawn.min() < 0 or drawn.max() >= a.shape[-1]:
        raise ValueError(f"tokens has other numbers than ints from 0 to {a.shape[-1] - 1}; allowed are these")
    left, right = (log_probabilities(x, tile) for x, tile in zip((a, b), log_softmax, strict=True))
    d = np.take_along_axis(left - right, drawn[..., None].astype(np.int64), -1)[..., 0]
    kl = (np.exp(right) * (right - left)).sum(-1)
    return Mismatch(d, kl, (a != b).any(-1), a.argmax(-1) != b.argmax(-1))


def _logits(name: str, x: Any) -> np.ndarray:
    found = numbers_of(name, x).astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has logits that are not finite; allowed are finite ones")
    return found


def log_probabilities(logits: np.ndarray, tile: int | None) -> np.ndarray:
    if tile is not None:
        with Attending.arithmetic():
            return by_tiles(Attending, logits.astype(np.float32), tile).astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
