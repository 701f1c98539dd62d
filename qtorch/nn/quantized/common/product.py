"""Layers in integers that multiply with a weight: linear ones, and convolutions."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import QParams
from qtorch._affine.integer.kernel import Geometry, Product, Rounding, product_of
from qtorch._affine.tensor import QTensor
from qtorch.nn.quantized.common.base import Quantized
from qtorch.nn.quantized.common.weights import QuantizedWeight, set_weight_bias


class ProductLayer(Quantized):
    """A layer with a quantized weight and a bias.

    It keeps the weight as the kernel reads it (`KeepsMade`), which takes as much memory again; weights of at most 4
    bits stay small, and are unpacked at each call.

    Attributes:
        weight: a `QuantizedWeight`.
        bias: float32 of shape (outputs,), or None.
    """

    bias: torch.Tensor | None
    _relu = False

    def set_weight_bias(self, weight: QTensor, bias: torch.Tensor | None) -> None:
        """Replaces both.

        Raises:
            TypeError: if one has the wrong type.
            ValueError: if one has the wrong shape.
        """
        set_weight_bias(self, weight, bias)

    def _by_kernel(self, input: Any, geometry: Geometry) -> QTensor | None:
        """The layer of a quantized tensor in one call of C; None where the kernel does not serve it."""
        weight: Any = self.weight
        if type(input) is not QTensor or type(weight) is not QuantizedWeight or torch.compiler.is_dynamo_compiling():
            return None
        if weight.is_packed:
            return None
        bias, scale, zero_point, form = self.bias, self.scale, self.zero_point, self.form
        tensors = weight.int_repr, weight.scale, weight.zero_point, scale, zero_point
        if bias is not None:
            tensors = *tensors, bias

        def make() -> tuple[Product | None, QParams]:
            output = QParams(scale, zero_point)
            return product_of(weight(), geometry, Rounding(bias, output, form), self._relu), output

        product, output = self.kept(tensors, (geometry, form), make)
        values = None if product is None else product(input.values, input.qparams)
        return None if values is None else QTensor._made(values, output, form)
