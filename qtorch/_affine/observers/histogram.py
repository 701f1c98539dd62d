"""The histogram observer's rule for tensors: counts in few passes, the search by NumPy, both as operators.

Which path they take depends on numbers, so that `torch.compile` cannot trace them; it calls the operators as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch

from qcore.affine import AffineInteger, Counts, Histogram, QParams
from qtorch._affine.namespace import Names


@dataclass(frozen=True)
class TensorHistogram(Histogram):
    """The same rule; counts are exact up to 2^24 a bin."""

    def update(self, state: Counts, x: torch.Tensor, xp: Any = Names) -> Counts:
        if torch.compiler.is_dynamo_compiling():
            return Counts(*torch.ops.qtorch.histogram_update(*state, x, self.upsample_rate))
        return super().update(state, x, xp)

    def qparams(self, state: Counts, xp: Any = Names) -> QParams:
        """By NumPy, which takes the search's thousands of small steps faster than torch."""
        if torch.compiler.is_dynamo_compiling():
            form = self.form
            arguments = form.qmin, form.qmax, form.signed, form.middle, self.scheme, self.eps
            return QParams(*torch.ops.qtorch.histogram_qparams(*state, *arguments))
        found = super().qparams(Counts(*(value.numpy(force=True) for value in state)))
        scale, zero_point = (torch.from_numpy(np.asarray(part)) for part in (found.scale, found.zero_point))
        return QParams(scale.to(state.min_val.device), zero_point.to(state.min_val.device))

    def _update(self, state: Counts, x: torch.Tensor, xp: Any) -> Counts:
        """Elements that are all finite need neither be selected nor weighed."""
        low, high = xp.extremes(x, (0,))
        if not isfinite(low) or not isfinite(high):
            x = x[torch.isfinite(x)]
            if x.numel() == 0:
                return state
            low, high = xp.extremes(x, (0,))
        low = xp.minimum(state.min_val, xp.unsigned(low))
        high = xp.maximum(state.max_val, xp.unsigned(high))
        return self._merge(xp, state, low, high, self._count(xp, x, None, low, high))

    def _count(self, xp: Any, x: torch.Tensor, weight: Any, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """By torch's own function, whose weights are 1 as all are here; it has these bits on the CPU."""
        if x.is_cpu:
            return torch.histc(x, self.bins, float(low), float(high))
        return super()._count(xp, x, torch.ones_like(x), low, high)


def _update(
    histogram: torch.Tensor, low: torch.Tensor, high: torch.Tensor, x: torch.Tensor, upsample_rate: int
) -> tuple[torch.Tensor, ...]:
    rule = TensorHistogram(bins=len(histogram), upsample_rate=upsample_rate)
    return tuple(value.clone() for value in rule.update(Counts(histogram, low, high), x))


def _qparams(
    histogram: torch.Tensor, low: torch.Tensor, high: torch.Tensor, *form: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    if low > high:  # nothing was seen; a traced program does not raise
        return torch.ones_like(low), torch.zeros_like(low, dtype=torch.int32)
    *integers, scheme, eps = form
    found = TensorHistogram(AffineInteger(*integers), scheme, eps, len(histogram)).qparams(Counts(histogram, low, high))
    return found.scale, found.zero_point


_STATE = "Tensor histogram, Tensor low, Tensor high"
_library = torch.library.Library("qtorch", "FRAGMENT")
_library.define(f"histogram_update({_STATE}, Tensor x, int upsample_rate) -> (Tensor, Tensor, Tensor)")
_library.define(
    f"histogram_qparams({_STATE}, int qmin, int qmax, bool signed, int middle, str scheme, float eps)"
    " -> (Tensor, Tensor)"
)
_library.impl("histogram_update", _update, "CompositeExplicitAutograd")
_library.impl("histogram_qparams", _qparams, "CompositeExplicitAutograd")
torch.library.register_fake(
    "qtorch::histogram_update", lambda *state_and_x: tuple(map(torch.empty_like, state_and_x[:3])), lib=_library
)
torch.library.register_fake(
    "qtorch::histogram_qparams",
    lambda _, low, *rest: (torch.empty_like(low), torch.empty_like(low, dtype=torch.int32)),
    lib=_library,
)
