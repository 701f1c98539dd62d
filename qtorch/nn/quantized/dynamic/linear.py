"""Linear layers of floats, with quantized weights."""

from __future__ import annotations

from typing import Any

import torch

from qcore.arguments import check_flag, check_size
from qtorch.nn.quantized.common.observed import float_parameters
from qtorch.nn.quantized.dynamic.product import DynamicProduct, dtype_of


class Linear(DynamicProduct):
    """A linear layer of floats: its weight is quantized, and its input by its own range (`DynamicProduct`).

    Args:
        in_features, out_features: sizes of input and result.
        bias_: whether there is a bias.
        dtype: of the weight: torch.qint8, an `AffineInteger` of up to 16 bits, or torch.float16.

    Example:
        >>> from qtorch.quantization import default_dynamic_qconfig
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(layer.weight)
        >>> layer.qconfig = default_dynamic_qconfig
        >>> Linear.from_float(layer)(torch.tensor([[1.0, 0.0]]))
        tensor([[0.9961]])
    """

    def __init__(self, in_features: int, out_features: int, bias_: bool = True, dtype: Any = torch.qint8) -> None:
        check_flag("bias_", bias_)
        self.in_features = check_size("in_features", in_features)
        self.out_features = check_size("out_features", out_features)
        super().__init__((out_features, in_features), bias_, dtype)

    @classmethod
    def from_float(cls, mod: Any) -> Linear:
        """The dynamic layer of one in floats, with `qconfig` or `weight_fake_quant`.

        Raises:
            TypeError: if it has none of these.
        """
        linear: Any = mod[0] if isinstance(mod, torch.nn.Sequential) else mod
        weight, bias = float_parameters(mod)
        dtype = dtype_of(mod)
        layer = cls(linear.in_features, linear.out_features, bias is not None, dtype)
        layer.take(mod, weight, bias, dtype)
        return layer
