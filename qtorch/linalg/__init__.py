"""Products of tensors with a defined accumulator: the bits of `qcore.accumulate` and `qjax.linalg`."""

from qtorch.linalg.matrices import bmm, linear, matmul

__all__ = ["bmm", "linear", "matmul"]
