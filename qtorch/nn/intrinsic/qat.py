"""Fused layers for training: the batch norm is folded into the weight, and the result is fake-quantized."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from qcore.arguments import check_flag, check_float, check_type
from qcore.lazy import public_names
from qtorch._torch_internals import is_recomputed
from qtorch.nn import qat
from qtorch.nn.intrinsic import fused
from qtorch.nn.qat import QATConv

__all__ = [
    "ConvBn1d",
    "ConvBn2d",
    "ConvBn3d",
    "ConvBnReLU1d",
    "ConvBnReLU2d",
    "ConvBnReLU3d",
    "ConvReLU1d",
    "ConvReLU2d",
    "ConvReLU3d",
    "LinearReLU",
    "freeze_bn_stats",
    "update_bn_stats",
]
__dir__ = public_names(__name__)


class QATConvBn(QATConv):
    """A convolution and a batch norm; the batch norm is folded into the weight, and the result is fake-quantized."""

    norm: ClassVar[type[nn.Module]]
    bn: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool | None = None,
        padding_mode: str = "zeros",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        freeze_bn: bool = False,
        qconfig: Any = None,
    ) -> None:
        for name, flag in (("bias", False if bias is None else bias), ("freeze_bn", freeze_bn)):
            check_flag(name, flag)
        check_float("eps", eps)
        if momentum is not None:
            check_float("momentum", momentum)
        settings: tuple[Any, ...] = kernel_size, stride, padding, dilation, groups, bool(bias), padding_mode, qconfig
        super().__init__(in_channels, out_channels, *settings)
        self.bn = self.norm(self.out_channels, eps, momentum)
        self.freeze_bn = freeze_bn
        self.train(self.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.bn.training:
            weight, shift = self.folded()
            return self.convolve(input, self.weight_fake_quant(weight), shift)
        plain = self.convolve(input, self.weight, None)
        shape = -1, *[1] * (self.weight.dim() - 2)
        if not is_recomputed():  # a checkpoint's second run sees the statistics that the first one left
            with torch.no_grad():  # for its running statistics only
                self.bn(plain if self.bias is None else plain + self.bias.reshape(shape))
        running = self._deviation()
        rounded = self.weight_fake_quant(self._folded_weight(running))
        # The rounded weight was divided by the running deviation; the result is rescaled to this batch's deviation.
        channels = [0, *range(2, plain.dim())]
        mean, variance = _Moments.apply(plain, channels, shape)
        deviation = (variance + self.bn.eps).sqrt()
        result = self.convolve(input, rounded, None) * (running / deviation).reshape(shape)  # float32 for 16 bits
        shift = self.bn.bias - self.bn.weight * mean / deviation
        if self.bias is not None:
            # The batch norm subtracts the bias again: its gradient is 0, but optimizers expect one.
            shift = shift + (self.bias - self.bias)
        return result.add_(shift.reshape(shape)).to(plain.dtype)

    def folded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The weight and bias into which the batch norm's running statistics are folded."""
        deviation, bn = self._deviation(), self.bn
        mean = bn.running_mean if self.bias is None else bn.running_mean - self.bias
        return self._folded_weight(deviation), (bn.bias - bn.weight * mean / deviation).to(self.weight.dtype)

    def rounded_weight(self) -> torch.Tensor:
        return self.weight_fake_quant(self._folded_weight(self._deviation()))

    def _folded_weight(self, deviation: torch.Tensor) -> torch.Tensor:
        factor = (self.bn.weight / deviation).reshape(-1, *[1] * (self.weight.dim() - 1))
        return (self.weight * factor).to(self.weight.dtype)

    def freeze_bn_stats(self) -> None:
        """Stops the updates of running statistics, in training too."""
        self.freeze_bn = True
        self.bn.eval()

    def update_bn_stats(self) -> None:
        """Updates running statistics from now on, while the layer is in training."""
        self.freeze_bn = False
        self.bn.train(self.training)

    def train(self, mode: bool = True) -> QATConvBn:
        """`torch.nn.Module.train`, but a frozen batch norm stays in evaluation mode."""
        super().train(mode)
        if hasattr(self, "bn"):
            self.bn.train(mode and not self.freeze_bn)
        return self

    def _deviation(self) -> torch.Tensor:
        running = self.bn.running_var
        if running.itemsize == 2:  # which may hold the infinity alone: the largest number divides as well
            running = running.clamp(max=torch.finfo(running.dtype).max)
        return (_wide(running) + self.bn.eps).sqrt()

    @classmethod
    def _more_settings(cls, module: nn.Module) -> dict[str, Any]:
        bn: Any = module[1]  # type: ignore[index]
        if not bn.affine or not bn.track_running_stats:
            raise ValueError("the batch norm has affine=False or track_running_stats=False; allowed is True for both")
        return {"eps": bn.eps, "momentum": bn.momentum}

    def _copy_state(self, module: nn.Module) -> None:
        self.bn = module[1]  # type: ignore[index]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        old = {"gamma": "weight", "beta": "bias"} | {name: name for name in _STATISTICS}
        for name, new in old.items():  # the names in old versions of torch.ao
            if (value := state_dict.pop(prefix + name, None)) is not None:
                state_dict[f"{prefix}bn.{new}"] = value
        super()._load_from_state_dict(state_dict, prefix, *others)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Statistics in float32 at least, as torch's batch norms compute: squares and gradients of float16 overflow."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Moments(torch.autograd.Function):
    """The mean and the biased variance of each channel; the gradient takes half of torch's passes over memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, axes: list[int], shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        x = _wide(x)
        mean = x.mean(axes)
        return mean, (x - mean.reshape(shape)).square_().mean(axes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        x, ctx.axes, ctx.shape = inputs
        ctx.save_for_backward(x, output[0])

    @staticmethod
    def backward(ctx: Any, of_mean: torch.Tensor, of_variance: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        x, mean = ctx.saved_tensors
        count = x.numel() // mean.numel()
        gradient = (x - mean.reshape(ctx.shape)) * (of_variance / count * 2).reshape(ctx.shape)
        gradient = gradient + ((of_mean - gradient.sum(ctx.axes)) / count).reshape(ctx.shape)
        return gradient.to(x.dtype), None, None


_STATISTICS = "running_mean", "running_var", "num_batches_tracked"


def freeze_bn_stats(mod: nn.Module) -> None:
    """`QATConvBn.freeze_bn_stats` as a function for `model.apply`; other modules are not changed.

    Args:
        mod: any module; `model.apply` passes each module of the model.

    Returns:
        Nothing; a `QATConvBn` is changed in place: its running statistics stay as they are from now on.

    Example:
        >>> from qtorch.nn.intrinsic.qat import ConvBn2d
        >>> from qtorch.quantization import default_qat_qconfig
        >>> model = nn.Sequential(ConvBn2d(1, 3, 2, qconfig=default_qat_qconfig), nn.ReLU())
        >>> model.apply(freeze_bn_stats)[0].freeze_bn
        True
    """
    check_type("mod", mod, nn.Module, "a torch.nn.Module")
    if isinstance(mod, QATConvBn):
        mod.freeze_bn_stats()


def update_bn_stats(mod: nn.Module) -> None:
    """`QATConvBn.update_bn_stats` as a function for `model.apply`; other modules are not changed.

    Args:
        mod: any module; `model.apply` passes each module of the model.

    Returns:
        Nothing; a `QATConvBn` is changed in place: in training it updates its running statistics from now on.

    Example:
        >>> from qtorch.nn.intrinsic.qat import ConvBn2d
        >>> from qtorch.quantization import default_qat_qconfig
        >>> model = nn.Sequential(ConvBn2d(1, 3, 2, freeze_bn=True, qconfig=default_qat_qconfig), nn.ReLU())
        >>> model.apply(update_bn_stats)[0].freeze_bn
        False
    """
    check_type("mod", mod, nn.Module, "a torch.nn.Module")
    if isinstance(mod, QATConvBn):
        mod.update_bn_stats()


class _WithReLU:
    """A mixin that applies a ReLU to a layer's results; it comes before the layer's class in the bases."""

    def forward(self, input: torch.Tensor) -> Any:
        return super().forward(input).relu_()  # type: ignore[misc]


class ConvBn1d(QATConvBn, nn.Conv1d):
    """`torch.nn.Conv1d` and a batch norm, trained like `ConvBn2d`."""

    floats, norm = fused.ConvBn1d, nn.BatchNorm1d


class ConvBn2d(QATConvBn, nn.Conv2d):
    """`torch.nn.Conv2d` and a batch norm, whose folded weight is fake-quantized.

    In training, with y = conv(x, w), the batch norm sees y + bias, and the result is
    conv(x, fq(w * gamma / s)) * s / s' + beta - gamma * mean(y) / s', with the running deviation s and the batch's s',
    each sqrt(variance + eps). In evaluation, and when statistics are frozen, it is
    conv(x, fq(w * gamma / s)) + beta + (bias - mean) * gamma / s with running statistics. Gradients reach w through
    both convolutions.

    Args:
        bias: None and False for no bias.
        eps, momentum: of the batch norm.
        freeze_bn: True leaves running statistics as they are.
        qconfig: a `QConfig`, whose weight makes `weight_fake_quant`.

    Example:
        >>> from qtorch.quantization import default_qat_qconfig
        >>> layer = ConvBn2d(1, 3, 2, qconfig=default_qat_qconfig)
        >>> layer(torch.randn(2, 1, 4, 4)).shape, layer.bn.num_batches_tracked
        (torch.Size([2, 3, 3, 3]), tensor(1))
    """

    floats, norm = fused.ConvBn2d, nn.BatchNorm2d


class ConvBn3d(QATConvBn, nn.Conv3d):
    """`torch.nn.Conv3d` and a batch norm, trained like `ConvBn2d`."""

    floats, norm = fused.ConvBn3d, nn.BatchNorm3d


class ConvBnReLU1d(_WithReLU, ConvBn1d):
    """`ConvBn1d` and a ReLU."""

    floats = fused.ConvBnReLU1d


class ConvBnReLU2d(_WithReLU, ConvBn2d):
    """`ConvBn2d` and a ReLU."""

    floats = fused.ConvBnReLU2d


class ConvBnReLU3d(_WithReLU, ConvBn3d):
    """`ConvBn3d` and a ReLU."""

    floats = fused.ConvBnReLU3d


class LinearReLU(_WithReLU, qat.Linear):
    """`qtorch.nn.qat.Linear` and a ReLU."""

    floats = fused.LinearReLU


class ConvReLU1d(_WithReLU, qat.Conv1d):
    """`qtorch.nn.qat.Conv1d` and a ReLU."""

    floats = fused.ConvReLU1d


class ConvReLU2d(_WithReLU, qat.Conv2d):
    """`qtorch.nn.qat.Conv2d` and a ReLU."""

    floats = fused.ConvReLU2d


class ConvReLU3d(_WithReLU, qat.Conv3d):
    """`qtorch.nn.qat.Conv3d` and a ReLU."""

    floats = fused.ConvReLU3d
