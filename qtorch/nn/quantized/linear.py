"""Layers with a matrix in integers: linear layers multiply with it, embeddings look up its rows."""

from __future__ import annotations

from typing import ClassVar, Self

import torch

from qcore.affine import UINT8, AffineInteger
from qcore.affine.quantized import check_linear
from qcore.arguments import check_flag, check_int, check_size, check_type
from qtorch._affine.functional import WIDTHS, linear_to
from qtorch._affine.products import Geometry
from qtorch._affine.tensor import QTensor
from qtorch._conversion import converted
from qtorch._torch_internals import Unscripted
from qtorch.nn.quantized.base import ProductLayer, checked, layer_name
from qtorch.nn.quantized.weights import QuantizedWeight, empty_weight, in_float32, weight_of

__all__ = ["Embedding", "Linear"]


class Linear(ProductLayer):
    """input @ weight.T + bias in integers: exact sums, requantized (`qcore.affine.requantize`).

    Args:
        in_features, out_features: sizes of input and result.
        bias_: whether there is a bias.
        dtype: of the weight's integers: torch.qint8, or an `AffineInteger` of up to 16 bits.
        output_dtype: of the result's integers.

    Attributes:
        weight: `weight()` is the quantized weight, of shape (out_features, in_features).
        bias: float32 of shape (out_features,), or None.
        scale, zero_point: of the result.

    Example:
        >>> from qtorch.quantization import quantize_per_tensor
        >>> layer = Linear(2, 1)
        >>> layer.set_weight_bias(
        ...     quantize_per_tensor(torch.tensor([[0.5, 0.25]]), 0.01, 0, torch.qint8), None
        ... )
        >>> _ = layer.scale.fill_(0.1)
        >>> layer(quantize_per_tensor(torch.tensor([[1.0, 2.0]]), 0.1, 0, torch.quint8))
        QTensor([[1.]], size=(1, 1), dtype=torch.quint8, scale=0.10000000149011612, zero_point=0)
    """

    settings: ClassVar = ("in_features", "out_features")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias_: bool = True,
        dtype: torch.dtype | AffineInteger = torch.qint8,
        *,
        output_dtype: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        check_flag("bias_", bias_)
        check_size("in_features", in_features)
        check_size("out_features", out_features)
        super().__init__((out_features, in_features), out_features, bias_, dtype, output_dtype)
        self.in_features, self.out_features = in_features, out_features

    @property
    def _outputs(self) -> int:
        return self.out_features

    def forward(self, input: QTensor) -> QTensor:
        """The layer of a quantized tensor of shape (..., in_features).

        Raises:
            TypeError: if input is not a QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        result = self._by_kernel(input, Geometry())
        if result is not None:
            return result
        self._check_input(input)
        weight = self.weight()
        checked(self, check_linear, input, weight, WIDTHS)
        result = linear_to(input, weight, in_float32(self.bias), self.output, self.form)
        return result.relu() if self._relu else result

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {super().extra_repr()}"


class Embedding(Unscripted, torch.nn.Module):
    """Rows of a quantized table as numbers, in float32, or in the dtype of the layer that was converted.

    Args:
        num_embeddings, embedding_dim: rows and columns of the table.
        dtype: of the table's integers: torch.quint8, or an `AffineInteger` of up to 16 bits.

    Attributes:
        weight: `weight()` is the quantized table.

    Example:
        >>> Embedding(10, 4)(torch.tensor([1, 2])).shape
        torch.Size([2, 4])
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, dtype: torch.dtype | AffineInteger = UINT8) -> None:
        super().__init__()
        self.num_embeddings = check_int("num_embeddings", num_embeddings, 1)
        self.embedding_dim = check_int("embedding_dim", embedding_dim, 1)
        self.weight = QuantizedWeight(empty_weight((num_embeddings, embedding_dim), dtype))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows at the indices in input, of shape (*input.shape, embedding_dim); only these rows are dequantized.

        Raises:
            TypeError: if input is not a tensor of int32 or int64.
        """
        checked(self, check_type, "input", input, torch.Tensor, "a torch.Tensor of int32 or int64")
        if input.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{layer_name(self)}: input has dtype {input.dtype}; allowed are int32 and int64")
        return converted(self.weight.rows(input), self.weight.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    @classmethod
    def from_float(cls, mod: torch.nn.Embedding) -> Self:
        """The layer of a `torch.nn.Embedding` with a `qconfig` whose weight has one scale, or one for each row."""
        weight = weight_of(mod, mod.weight.detach().to(torch.float32))
        made = cls(mod.num_embeddings, mod.embedding_dim, dtype=weight.form)
        made.weight = QuantizedWeight(weight, mod.weight.dtype)
        return made
