"""Convolutions with a defined accumulator, and their gradients."""

from __future__ import annotations

from typing import Any

import jax

from qcore.linalg.accumulator import AccumulatorLike
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.product import Operands, ProductLike
from qcore.names import in_dimensions
from qjax._rounding.inputs import ArrayLike
from qjax._rounding.keys import Key
from qjax.linalg.call import add_bias, call
from qjax.linalg.states import ScalingState


def _conv(dimensions: int):  # its result has the type of the function, which checkers infer
    def conv(
        input: ArrayLike,
        weight: ArrayLike,
        bias: ArrayLike | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        *,
        c: ArrayLike | None = None,
        operands: Operands = None,
        accumulator: AccumulatorLike = None,
        grad_input: ProductLike = None,
        grad_weight: ProductLike = None,
        key: Key = None,
        scaling: jax.Array | ScalingState | None = None,
    ) -> jax.Array:
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
            input: float32 array of shape (batch, channels, {sizes}).
            weight: float32 array of shape (outputs, channels / groups, {sizes}).
            bias: float32 array of shape (outputs,), or None.
            stride, padding, dilation: an int, or one for each spatial dimension. Padding is zeros on both sides.
            groups: the number of parts into which channels and outputs are split.
            c: float32 array of the result's shape, at which the accumulators start; None is +0.
            operands, accumulator, key, scaling: as for `matmul`.
            grad_input, grad_weight: the products of both gradients, as grad_a and grad_b of `matmul`.

        Returns:
            A float32 array of shape (batch, outputs, {sizes}).

        Raises:
            ValueError: if shapes do not fit, stochastic rounding has no key, or an argument is out of range.

        Example:
            >>> import jax.numpy as jnp
            >>> {name}(jnp.ones((1, 1, {ones}3)), jnp.ones((1, 1, {ones}2))).ravel()
            Array([2., 2.], dtype=float32)
        """
        settings, products = (stride, padding, dilation, groups), (operands, accumulator, grad_input, grad_weight)
        return _convolution(dimensions, input, weight, bias, settings, products, key, scaling, c)

    return in_dimensions(dimensions, conv)


conv1d = _conv(1)
conv2d = _conv(2)
conv3d = _conv(3)


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
) -> jax.Array:
    geometry, names = convolution_geometry(dims, *settings), ("grad_input", "grad_weight")
    y = call(geometry, input, weight, *products, names, key, scaling, c)
    return add_bias(y, bias, y.shape[1], -1 - dims)
