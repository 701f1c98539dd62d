"""Embeddings whose tables are quantized."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import UINT8
from qcore.arguments import check_int, check_type
from qtorch.nn.quantized.common.base import checked, place_of
from qtorch.nn.quantized.common.observed import weight_of
from qtorch.nn.quantized.common.weights import QuantizedWeight, empty_weight


class Embedding(torch.nn.Module):
    """Rows of a quantized table as numbers, in float32, or in the dtype of the layer that was converted.

    Args:
        num_embeddings, embedding_dim: rows and columns of the table.
        dtype: of its integers: torch.quint8, or an `AffineInteger` of up to 16 bits.

    Attributes:
        weight: `weight()` is the quantized table.

    Example:
        >>> Embedding(10, 4)(torch.tensor([1, 2])).shape
        torch.Size([2, 4])
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, dtype: Any = UINT8) -> None:
        super().__init__()
        self.num_embeddings = check_int("num_embeddings", num_embeddings, 1)
        self.embedding_dim = check_int("embedding_dim", embedding_dim, 1)
        self.weight = QuantizedWeight(empty_weight((num_embeddings, embedding_dim), dtype))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows, of shape (*indices.shape, embedding_dim); only they are dequantized.

        Raises:
            TypeError: if indices is no tensor of int32 or int64.
        """
        checked(self, check_type, "indices", indices, torch.Tensor, "a torch.Tensor of int32 or int64")
        if indices.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{place_of(self)}: indices has dtype {indices.dtype}; allowed are int32 and int64")
        return self.weight.rows(indices).to(self.weight.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    @classmethod
    def from_float(cls, mod: Any) -> Embedding:
        """Of a `torch.nn.Embedding` with a `qconfig` whose weight has one scale, or one for each row.

        Raises:
            TypeError: if it has none.
        """
        weight = weight_of(mod, mod.weight.detach().to(torch.float32))
        made = cls(mod.num_embeddings, mod.embedding_dim, dtype=weight.form)
        made.weight = QuantizedWeight(weight, mod.weight.dtype)
        return made
