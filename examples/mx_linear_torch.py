"""A linear layer as Microscaling hardware trains it: each product's operands share scales along what it sums over.

The three products of a layer sum over three different axes, so that each tensor is quantized twice, in two directions:

    output        x @ weight^T        over the features in: x and weight, each along its last axis
    gradient of x      grad @ weight       over the features out: grad along its last axis, weight along its first
    gradient of weight grad^T @ x          over the batch: grad and x, each along its first axis

A `Quantizer` rounds one tensor on its way forward and one on its way back, each along axes of its own; here the same
tensors come back in other products, and so this is a function with a gradient of its own.

    python -m examples.mx_linear_torch

Two such layers are trained on images: in float32, in MXFP8 with E5M2 gradients, and in NVFP4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from examples.data import Data, load
from examples.models_torch import fit
from examples.report import Epoch, arguments, finish, follow
from qtorch import NAMED, NVFP4, BlockScaled, quantize


def along(number: BlockScaled, axis: int) -> BlockScaled:
    """A format whose tiles lie along one axis, with these tiles along another."""
    ((_, size),) = number.block
    return replace(number, block={axis: size})


def linear(
    x: torch.Tensor, weight: torch.Tensor, forward_number: BlockScaled, backward_number: BlockScaled
) -> torch.Tensor:
    """x @ weight^T with quantized operands, and so its gradients.

    Args:
        x: tensor of shape (..., features in).
        weight: tensor of shape (features out, features in).
        forward_number: of x and weight; its tiles lie along one axis, no matter which.
        backward_number: of the gradient of the output.
    """
    return _Linear.apply(x, weight, forward_number, backward_number)  # type: ignore[return-value]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        x: torch.Tensor, weight: torch.Tensor, number: BlockScaled, backward_number: BlockScaled
    ) -> torch.Tensor:
        return _rounded(x, number, -1) @ _rounded(weight, number, -1).mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, weight, *ctx.numbers = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:  # type: ignore[override]
        (x, weight), (number, backward_number) = ctx.saved_tensors, ctx.numbers
        grad_x = _rounded(grad, backward_number, -1) @ _rounded(weight, number, 0)
        rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        grad_weight = _rounded(rows, backward_number, 0).mT @ _rounded(x_rows, number, 0)
        return grad_x, grad_weight, None, None


def _rounded(x: torch.Tensor, number: BlockScaled, axis: int) -> torch.Tensor:
    return quantize(x, along(number, axis), "nearest")


class MXLinear(nn.Linear):
    """`torch.nn.Linear` with quantized products; the bias is added as it is.

    Args:
        in_features, out_features, bias: as for `torch.nn.Linear`.
        forward_number, backward_number: the formats, say of `NAMED`; their tiles lie along one axis.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        forward_number: Any = NAMED["mxfp8_e4m3"][0],
        backward_number: Any = NAMED["mxfp8_e5m2"][0],
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.forward_number, self.backward_number = forward_number, backward_number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the layer's output, of shape (..., features out)."""
        y = linear(x, self.weight, self.forward_number, self.backward_number)
        return y if self.bias is None else y + self.bias


LAYERS: dict[str, Any] = {
    "fp32": nn.Linear,
    "mxfp8": MXLinear,
    "nvfp4": partial(MXLinear, forward_number=NVFP4(), backward_number=NVFP4()),
}


def train(name: str, data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    """Two layers of a kind on images."""
    torch.manual_seed(seed)
    layer = LAYERS[name]
    model = nn.Sequential(nn.Flatten(), layer(3 * 32 * 32, 64), nn.ReLU(), layer(64, 10))
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.01), data, epochs, seed)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 10, argv)
    data = load(options.limit)
    curves = [follow(name, train(name, data, options.epochs, options.seed)) for name in LAYERS]
    finish(f"Two linear layers on {data.name}, PyTorch", curves, options.plot or "mx_linear_torch.svg")


if __name__ == "__main__":
    main()
