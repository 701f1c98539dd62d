"""How far a trainer's log-probabilities are from those of the server that made a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qcore.arguments import numbers_of


@dataclass(frozen=True, eq=False, repr=False)
class Mismatch:
    """What two engines say of one text: the trainer, and the server that drew it.

    With d = log p of the trainer - log p of the server, of the tokens that were drawn:

    Attributes:
        d: of each position.
        kl: the exact divergence KL(server || trainer) of the whole vocabulary, of each position, in nats.
        positions: whether any logit of a position differs.
        flipped: whether the most likely token of a position differs.

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
        return "\n".join(f"{name:26}{value}" for name, value in rows.items())

    __repr__ = __str__


def mismatch(trainer: np.ndarray, server: np.ndarray, tokens: np.ndarray) -> Mismatch:
    """Compares the logits of a trainer and of a server for the tokens that the server drew.

    Log-probabilities are computed in float64 from the logits as they are: at temperature 1, without top-k or top-p.

    Args:
        trainer: array of logits of shape (..., positions, vocabulary).
        server: array of the same shape.
        tokens: array of ints of shape (..., positions): the token that was drawn by the logits of each position.

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
    left, right = _log_probabilities(a), _log_probabilities(b)
    d = np.take_along_axis(left - right, drawn[..., None].astype(np.int64), -1)[..., 0]
    kl = (np.exp(right) * (right - left)).sum(-1)
    return Mismatch(d, kl, (a != b).any(-1), a.argmax(-1) != b.argmax(-1))


def _logits(name: str, x: Any) -> np.ndarray:
    found = numbers_of(name, x).astype(np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has logits that are not finite; allowed are finite ones")
    return found


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
