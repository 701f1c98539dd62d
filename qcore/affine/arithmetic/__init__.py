"""Arithmetic of quantized arrays, by one law that NumPy, PyTorch and JAX run alike.

The functions take quantized arrays of any framework (`QArray`, `qtorch.quantization.QTensor`,
`qjax.quantization.QTensor`) and return arrays of the same kind. docs/affine.md has the law.
"""

from qcore.affine.arithmetic.elementwise import add, add_scalar, cat, clamp, mul, mul_scalar

__all__ = ["add", "add_scalar", "cat", "clamp", "mul", "mul_scalar"]
