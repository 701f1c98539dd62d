"""Sums, products and concatenations of quantized arrays, as a module with the scale and zero point of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qcore.affine import functional
from qjax.nnx.quantized.base import Quantized
from qjax.quantization import QTensor


class QFunctional(Quantized):
    """The operations of `FloatFunctional` on quantized arrays, by the law of `qcore.affine.functional`.

    Args:
        output: the parameters of the results of all methods except `add_scalar` and `mul_scalar`.
        form: the results' integers.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore.affine import UINT8, QParams
        >>> from qjax.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(jnp.float32([1, 2]), 0.5, 0, "quint8")
        >>> QFunctional(QParams.of(1.0, 0), UINT8).add(x, x).dequantize()
        Array([2., 4.], dtype=float32)
    """

    def add(self, x: QTensor, y: QTensor) -> QTensor:
        """x + y; see `qcore.affine.functional.add`."""
        self._check(x, y)
        return functional.add(x, y, self.output, self.form)

    def add_relu(self, x: QTensor, y: QTensor) -> QTensor:
        """max(x + y, 0)."""
        self._check(x, y)
        return functional.add(x, y, self.output, self.form, relu=True)

    def mul(self, x: QTensor, y: QTensor) -> QTensor:
        """x * y; see `qcore.affine.functional.mul`."""
        self._check(x, y)
        return functional.mul(x, y, self.output, self.form)

    def mul_relu(self, x: QTensor, y: QTensor) -> QTensor:
        """max(x * y, 0)."""
        self._check(x, y)
        return functional.mul(x, y, self.output, self.form, relu=True)

    def matmul(self, x: QTensor, y: QTensor) -> QTensor:
        """The product of matrices, or of stacks of them; see `qcore.affine.functional.matmul`."""
        self._check(x, y)
        return functional.matmul(x, y, self.output, self.form)

    def einsum(self, equation: str, x: QTensor, y: QTensor) -> QTensor:
        """The contraction that an equation describes; see `qcore.affine.functional.einsum`."""
        self._check(x, y)
        return functional.einsum(equation, x, y, self.output, self.form)

    def cat(self, x: Sequence[QTensor], axis: int = 0) -> QTensor:
        """The arrays one after the other; see `qcore.affine.functional.cat`."""
        self._check(*x)
        return functional.cat(x, axis, self.output, self.form)

    def add_scalar(self, x: QTensor, y: float) -> QTensor:
        """x + y for a number y; see `qcore.affine.functional.add_scalar`."""
        self._check(x)
        return functional.add_scalar(x, y)

    def mul_scalar(self, x: QTensor, y: float) -> QTensor:
        """x * y for a number y; see `qcore.affine.functional.mul_scalar`."""
        self._check(x)
        return functional.mul_scalar(x, y)

    def _check(self, *operands: Any) -> None:
        for number, operand in enumerate(operands):
            self._check_input(operand, f"operand {number}")
