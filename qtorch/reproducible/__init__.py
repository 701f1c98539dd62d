"""Functions of tensors with the same bits in NumPy and JAX, gradients too; see `qcore.numerics`."""

from qtorch.reproducible.functional import exp, softmax, sum

__all__ = ["exp", "softmax", "sum"]
