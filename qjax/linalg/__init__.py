"""Products of arrays with a defined accumulator: the bits of `qcore.accumulate` and `qtorch.linalg`."""

from qjax.linalg.matrices import bmm, linear, matmul

__all__ = ["bmm", "linear", "matmul"]
