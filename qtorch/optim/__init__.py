"""Optimizers whose weights, gradients, momenta and accumulators have low precision."""

from qcore.lazy import public_names
from qtorch.optim.low_precision import OptimLP

__all__ = ["OptimLP"]
__dir__ = public_names(__name__)
