"""Convolutions with a defined accumulator, and their gradients."""

from __future__ import annotations

from typing import Any

import torch

from qcore.arguments import check_sizes, quoted
from qcore.linalg.accumulator import AccumulatorLike
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.product import Operands, ProductLike
from qcore.names import in_dimensions
from qtorch._rounding.keys import Key
from qtorch.linalg.call import add_bias, check_operand, differentiable_product, in_float32, prepare


def _conv(dimensions: int):  # its result has the type of the function, which checkers infer
    def conv(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        *,
        c: torch.Tensor | None = None,
        operands: Operands = None,
        accumulator: AccumulatorLike = None,
        grad_input: ProductLike = None,
        grad_weight: ProductLike = None,
        key: Key = None,
        scaling: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A convolution of (batch, channels, {sizes}) with a defined accumulator.

        It sums over the channel of the group and the taps, row-major. The gradient of the input sums over the output
        channel of the group and the taps, that of the weight over the example and the output position. Terms that the
        padding or a stride leaves out are products with zero. The bias is added in float32, as in `linear`.

        For blocks a convolution is a linear layer at each position and tap, in each group. Axis -1 of blocks is the
        channels of the group; axis -2 is the batch of inputs and gradients, and the outputs of the group in weights. So
        {{-1: 32}} has blocks along the input channels, as microxcaling's convolutions, and {{-2: 128, -1: 128}} tiles
        of outputs and input channels for each tap. Operands with tiles or transforms sum over the channels of a tap
        first, in chunks that end with it, and in the gradient of the weight over the batch of an output position.

        Args:
            input: float32 tensor of shape (batch, channels, {sizes}), or without the batch.
            weight: float32 tensor of shape (outputs, channels / groups, {sizes}).
            bias: float32 tensor of shape (outputs,), or None.
            stride, padding, dilation: an int, or one for each spatial dimension. Padding is a number of zeros on both
                sides, "valid" for 0, or "same" for a result with the sizes of the input.
            groups: the number of parts into which channels and outputs are split.
            c: float32 tensor of the result's shape, at which the accumulators start; None is +0.
            operands, accumulator, key, scaling: as for `matmul`.
            grad_input, grad_weight: the products of both gradients, as grad_a and grad_b of `matmul`.

        Returns:
            A float32 tensor of shape (batch, outputs, {sizes}).

        Raises:
            ValueError: if shapes do not fit, or an argument is out of range.

        Example:
            >>> {name}(torch.ones(1, 1, {ones}2), torch.ones(1, 1, {ones}3), padding="same").flatten()
            tensor([2., 2.])
        """
        settings, products = (stride, padding, dilation, groups), (operands, accumulator, grad_input, grad_weight)
        return _convolution(dimensions, input, weight, bias, settings, products, key, scaling, c)

    return in_float32(in_dimensions(dimensions, conv))


conv1d = _conv(1)
conv2d = _conv(2)
conv3d = _conv(3)


def padding_sizes(padding: Any, kernel: Any, dilation: Any) -> list[int]:
    """The padding of a convolution for `torch.nn.functional.pad`: the last dimension first, before and after.

    "same" keeps the input's sizes; an odd rest is behind.
    """
    if padding == "valid":
        return [0] * (2 * len(kernel))
    if padding != "same":
        if isinstance(padding, str):
            raise ValueError(f"padding={quoted(padding)}; allowed are ints, 'same' and 'valid'")
        return [size for one in reversed(padding) for size in (one, one)]
    dilation = (dilation,) * len(kernel) if isinstance(dilation, int) else dilation
    totals = [gap * (size - 1) for gap, size in zip(dilation, kernel, strict=True)]
    return [size for total in reversed(totals) for size in (total // 2, total - total // 2)]


def _convolution(
    dims: int,
    input: Any,
    weight: Any,
    bias: Any,
    settings: tuple[Any, Any, Any, Any],
    products: tuple[Any, Any, Any, Any],
    key: Key,
    scaling: Any,
    c: Any,
) -> torch.Tensor:
    stride, padding, dilation, groups = settings
    if isinstance(input, torch.Tensor) and input.dim() == dims + 1:  # an example without a batch
        check_operand("input", input)
        if c is not None:
            check_operand("c", c)
            c = c[None]
        return _convolution(dims, input[None], weight, bias, settings, products, key, scaling, c)[0]
    if isinstance(padding, str):
        check_operand("input", input)
        check_operand("weight", weight)
        dilation = check_sizes("dilation", dilation, 1, dims)
        fits = input.dim() == weight.dim() == dims + 2  # if not, `prepare` says what is wrong
        padding, sizes = 0, padding_sizes(padding, tuple(weight.shape[2:]) if fits else (1,) * dims, dilation)
        input = torch.nn.functional.pad(input, sizes) if any(sizes) else input
    geometry, names = convolution_geometry(dims, stride, padding, dilation, groups), ("grad_input", "grad_weight")
    call = prepare(geometry, input, weight, *products, names, key, scaling, c)
    return add_bias(differentiable_product(input, weight, *call, c), bias, weight.shape[0], -1 - dims)
