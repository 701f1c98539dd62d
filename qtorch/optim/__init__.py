"""Optimizers whose weights, gradients, momenta and accumulators have low precision."""

from qtorch.optim.low_precision import OptimLP

__all__ = ["OptimLP"]
