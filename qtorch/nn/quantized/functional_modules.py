"""Sums, products and concatenations as modules, so that their results can be observed and quantized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from qcore.affine import functional
from qcore.workflow.conversion import uncalibrated
from qtorch._affine import exported
from qtorch._affine.launch import binary_on_cpu
from qtorch._affine.tensor import QTensor
from qtorch.nn.quantized.base import LEFT_OUT, Quantized, layer_name

__all__ = ["FXFloatFunctional", "FloatFunctional", "QFunctional"]


class FXFloatFunctional(torch.nn.Module):
    """The operations of `FloatFunctional`, without an observer.

    Example:
        >>> FXFloatFunctional().add_relu(torch.tensor([1.0]), torch.tensor([-3.0]))
        tensor([0.])
    """

    def forward(self, *_: object) -> NoReturn:
        """Raises RuntimeError: there is more than one operation."""
        raise RuntimeError(f"{type(self).__name__} has no forward; allowed are its methods: add, mul, cat, ...")

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x + y."""
        return self._observed(torch.add(x, y))

    def add_relu(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """max(x + y, 0)."""
        return self._observed(torch.relu(torch.add(x, y)))

    def mul(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x * y."""
        return self._observed(torch.mul(x, y))

    def mul_relu(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """max(x * y, 0)."""
        return self._observed(torch.relu(torch.mul(x, y)))

    def matmul(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The product of matrices, or of stacks of them."""
        return self._observed(torch.matmul(x, y))

    def einsum(self, equation: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The contraction that an equation describes."""
        return self._observed(torch.einsum(equation, x, y))

    def cat(self, x: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
        """The tensors one after the other."""
        return self._observed(torch.cat(list(x), dim))

    def add_scalar(self, x: torch.Tensor, y: float) -> torch.Tensor:
        """x + y for a number y; not observed: in quantized form it only changes the zero point."""
        return self._unobserved(torch.add(x, y))

    def mul_scalar(self, x: torch.Tensor, y: float) -> torch.Tensor:
        """x * y for a number y; not observed: in quantized form it only changes the scale."""
        return self._unobserved(torch.mul(x, y))

    def _observed(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def _unobserved(self, x: torch.Tensor) -> torch.Tensor:
        return x


class FloatFunctional(FXFloatFunctional):
    """Operations of floats whose results are observed; `convert` replaces the module with a `QFunctional`.

    Use one for each place in a model. Without an observer the results are those of torch.

    Attributes:
        activation_post_process: sees the results of all methods but `add_scalar` and `mul_scalar`.
        has_scalars: whether one of these two methods ran; `convert` needs no range for them.

    Example:
        >>> FloatFunctional().add(torch.tensor([1.0]), torch.tensor([2.0]))
        tensor([3.])
    """

    def __init__(self) -> None:
        super().__init__()
        self.activation_post_process: torch.nn.Module = torch.nn.Identity()
        self.has_scalars = False

    def _observed(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation_post_process(x)

    def _unobserved(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_dynamo_compiling():
            self.has_scalars = True
        return x


class QFunctional(Quantized):
    """The operations of `FloatFunctional` on quantized tensors, by `qcore.affine.functional`.

    Args:
        scale, zero_point: of the results of all methods but `add_scalar` and `mul_scalar`.
        form: the results' integers.

    Attributes:
        is_uncalibrated: whether it saw no data before it was converted, so that its methods raise; `convert` writes it.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> x = quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.quint8)
        >>> QFunctional(scale=1.0).add(x, x)
        QTensor([2., 4.], size=(2,), dtype=torch.quint8, scale=1.0, zero_point=0)
    """

    is_uncalibrated = False

    def forward(self, *_: object) -> NoReturn:
        """Raises RuntimeError: there is more than one operation."""
        raise RuntimeError("QFunctional has no forward; allowed are its methods: add, mul, cat, ...")

    def add(self, x: QTensor, y: QTensor) -> QTensor:
        """x + y; see `qcore.affine.functional.add`."""
        return self._elementwise("add", x, y)

    def add_relu(self, x: QTensor, y: QTensor) -> QTensor:
        """max(x + y, 0)."""
        return self._elementwise("add", x, y, relu=True)

    def mul(self, x: QTensor, y: QTensor) -> QTensor:
        """x * y; see `qcore.affine.functional.mul`."""
        return self._elementwise("mul", x, y)

    def mul_relu(self, x: QTensor, y: QTensor) -> QTensor:
        """max(x * y, 0)."""
        return self._elementwise("mul", x, y, relu=True)

    def matmul(self, x: QTensor, y: QTensor) -> QTensor:
        """The product of matrices, or of stacks of them; see `qcore.affine.functional.matmul`."""
        self._check(x, y)
        if exported.is_near():
            return self._of_numbers("matmul", x, y)
        return functional.matmul(x, y, self.output, self.form)

    def einsum(self, equation: str, x: QTensor, y: QTensor) -> QTensor:
        """The contraction that an equation describes; see `qcore.affine.functional.einsum`."""
        self._check(x, y)
        if exported.is_near():
            return self._of_numbers("einsum", equation, x, y)
        return functional.einsum(equation, x, y, self.output, self.form)

    def cat(self, x: Sequence[QTensor], dim: int = 0) -> QTensor:
        """The tensors one after the other; see `qcore.affine.functional.cat`."""
        self._check(*x)
        if exported.is_near():
            return self._of_numbers("cat", x, dim)
        return functional.cat(x, dim, self.output, self.form)

    def add_scalar(self, x: QTensor, y: float) -> QTensor:
        """x + y for a number y; see `qcore.affine.functional.add_scalar`."""
        self._check(x)
        return functional.add_scalar(x, y)

    def mul_scalar(self, x: QTensor, y: float) -> QTensor:
        """x * y for a number y; see `qcore.affine.functional.mul_scalar`."""
        self._check(x)
        return functional.mul_scalar(x, y)

    def _elementwise(self, name: str, x: Any, y: Any, relu: bool = False) -> QTensor:
        plain = type(x) is QTensor and type(y) is QTensor and not self.is_uncalibrated
        if plain and not torch.compiler.is_dynamo_compiling():
            output = self.checked_output()
            values = binary_on_cpu(name, x, y, output, self.form, relu)
            if values is not None:
                return QTensor._made(values, output, self.form)
        self._check(x, y)
        if exported.is_near():
            return self._of_numbers(f"{name}_relu" if relu else name, x, y)
        return getattr(functional, name)(x, y, self.output, self.form, relu=relu)

    def _of_numbers(self, name: str, *operands: Any) -> QTensor:
        function = getattr(FXFloatFunctional(), name)
        return exported.of_numbers(function, *operands, output=self.output, form=self.form)

    def _check(self, *operands: Any) -> None:
        if self.is_uncalibrated:
            raise uncalibrated(layer_name(self), LEFT_OUT)
        for number, operand in enumerate(operands):
            self._check_input(operand, f"operand {number}")
