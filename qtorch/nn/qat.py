"""Linear layers and convolutions for training: they compute in floats with a fake-quantized weight."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from qcore.affine.quantized import PADDING_MODES, check_convolution_sizes
from qcore.arguments import check_choice, check_flag, check_size, check_sizes
from qcore.lazy import public_names
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.qconfig import QConfig
from qtorch._classes import plain_class

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Linear"]
__dir__ = public_names(__name__)


_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d


def make_weight_fake_quant(layer: nn.Module, qconfig: Any) -> nn.Module:
    """The module that rounds a layer's weight, made from the layer's qconfig; it observes in training only."""
    name = type(layer).__name__
    if not isinstance(qconfig, QConfig):
        raise TypeError(
            f"qconfig of qat.{name} is a {type(qconfig).__name__}; allowed is a QConfig: default_qat_qconfig"
        )
    made = qconfig.weight()
    if not isinstance(made, nn.Module):
        raise TypeError(f"qconfig.weight of qat.{name} made a {type(made).__name__}; allowed are modules")
    if isinstance(made, FakeQuantize):
        made.observes_in_eval = False
        made.expect(layer.weight.shape)  # type: ignore[union-attr]
    return made


class QATLayer(nn.Module):
    """A layer with `weight_fake_quant`.

    Attributes:
        floats: the type of float layers that `from_float` takes.
    """

    floats: ClassVar[type[nn.Module]]
    weight: torch.Tensor
    weight_fake_quant: nn.Module
    qconfig: Any

    @classmethod
    def from_float(cls, module: nn.Module) -> QATLayer:
        """A layer for training with the parameters and the qconfig of a float layer.

        Args:
            module: exactly of the type `floats`.

        Raises:
            TypeError: if it has another type, or no `QConfig`.
        """
        if plain_class(module) is not cls.floats:
            raise TypeError(f"module is a {type(module).__name__}; allowed is exactly {cls.floats.__name__}")
        layer: Any = module[0] if isinstance(module, nn.Sequential) else module
        made = cls(**settings_of(layer), qconfig=getattr(module, "qconfig", None), **cls._more_settings(module))
        made.weight, made.bias = layer.weight, layer.bias
        made._copy_state(module)
        made.weight_fake_quant.to(layer.weight.device)
        return made.train(module.training)

    @classmethod
    def _more_settings(cls, module: nn.Module) -> dict[str, Any]:
        """The constructor's arguments that are not settings of the first part of a fused layer."""
        return {}

    def _copy_state(self, module: nn.Module) -> None:
        """Copies the state of the other parts of a fused layer."""

    def rounded_weight(self) -> torch.Tensor:
        """The fake-quantized weight of the forward pass."""
        return self.weight_fake_quant(self.weight)

    @property
    def has_relu(self) -> bool:
        """True if a ReLU follows."""
        return "relu" in getattr(self.floats, "parts", ())


def settings_of(layer: Any) -> dict[str, Any]:
    """The constructor's arguments for another linear layer or convolution like this one."""
    if isinstance(layer, nn.Linear):
        return {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    names += ["output_padding"] if layer.transposed else []
    return {name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None}


def convolve(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: dict[str, Any]
) -> torch.Tensor:
    """The convolution of `torch.nn.Conv1d`, 2d or 3d, with settings of `settings_of`."""
    padding, mode = settings["padding"], settings["padding_mode"]
    if mode != "zeros":
        margins = [gap * (size - 1) for gap, size in zip(settings["dilation"], weight.shape[2:], strict=True)]
        ends = [(margin // 2, margin - margin // 2) for margin in margins]
        if padding != "same":
            ends = [(0, 0) for _ in margins] if padding == "valid" else [(size, size) for size in padding]
        input = nn.functional.pad(input, [size for pair in reversed(ends) for size in pair], mode=mode)
        padding = 0
    function: Any = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[weight.dim() - 3]
    return function(input, weight, bias, settings["stride"], padding, settings["dilation"], settings["groups"])


class Linear(QATLayer, nn.Linear):
    """`torch.nn.Linear` with a fake-quantized weight.

    Args:
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> Linear(2, 3, qconfig=default_qat_qconfig)(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
    """

    floats = nn.Linear

    def __init__(self, in_features: int, out_features: int, bias: bool = True, qconfig: QConfig | None = None) -> None:
        check_size("in_features", in_features)
        check_size("out_features", out_features)
        check_flag("bias", bias)
        super().__init__(in_features, out_features, bias)
        self.qconfig = qconfig
        self.weight_fake_quant = make_weight_fake_quant(self, qconfig)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(input, self.rounded_weight(), self.bias)


class QATConv(QATLayer):
    """A convolution with a fake-quantized weight."""

    bias: torch.Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        qconfig: QConfig | None = None,
    ) -> None:
        dimensions = next(n for n, kind in enumerate(_CONVOLUTIONS, 1) if isinstance(self, kind))
        sizes = check_convolution_sizes(in_channels, out_channels, kernel_size, stride, dilation, groups, dimensions)
        kernel_size, stride, dilation = sizes
        if isinstance(padding, str):
            check_choice("padding", padding, ("valid", "same"))
        else:
            padding = check_sizes("padding", padding, 0, dimensions)
        check_flag("bias", bias)
        check_choice("padding_mode", padding_mode, PADDING_MODES)
        settings: tuple[Any, ...] = kernel_size, stride, padding, dilation, groups, bias, padding_mode
        super().__init__(in_channels, out_channels, *settings)  # type: ignore[call-arg]
        self.qconfig = qconfig
        self.weight_fake_quant = make_weight_fake_quant(self, qconfig)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.convolve(input, self.rounded_weight(), self.bias)

    def convolve(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The convolution with a given weight and bias."""
        return convolve(input, weight, bias, settings_of(self))


class Conv1d(QATConv, nn.Conv1d):
    """`torch.nn.Conv1d` with a fake-quantized weight; qconfig is that of `Conv2d`."""

    floats = nn.Conv1d


class Conv2d(QATConv, nn.Conv2d):
    """`torch.nn.Conv2d` with a fake-quantized weight, and one more argument, qconfig, after the others.

    Args:
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> Conv2d(1, 3, 2, qconfig=default_qat_qconfig)(torch.zeros(1, 1, 4, 4)).shape
        torch.Size([1, 3, 3, 3])
    """

    floats = nn.Conv2d


class Conv3d(QATConv, nn.Conv3d):
    """`torch.nn.Conv3d` with a fake-quantized weight; qconfig is that of `Conv2d`."""

    floats = nn.Conv3d
