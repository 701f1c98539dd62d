"""Functions of JAX arrays with the same bits in NumPy and PyTorch, gradients too; see `qcore.numerics`."""

from qjax.reproducible.functional import exp, softmax, sum

__all__ = ["exp", "softmax", "sum"]
