"""Layers of flax nnx by the functions of `qjax.reproducible`; parameters and their layouts are flax's."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import check_sizes
from qcore.formats.text import parse
from qjax.reproducible.modules.keys import LayerKey
from qjax.reproducible.training import FUNCTIONS


def value(parameter: Any) -> Any:
    """A parameter's array, or None."""
    return None if parameter is None else parameter[...]


class _Products:
    """What layers with products share.

    Attributes:
        products: formats of both operands and texts of the three products; None for float32.
        key: of stochastic products, else None.
    """

    products: Any
    key: LayerKey | None

    def product_arguments(self) -> dict[str, Any]:
        """The keyword arguments of products."""
        if self.products is None:
            return {}
        forward, grad_input, grad_weight = self.products
        product = parse(forward)
        arguments = {"operands": product.operands, "accumulator": product.accumulator}
        return arguments | {"grad_input": grad_input, "grad_weight": grad_weight, "key": value(self.key)}


class Linear(_Products, nnx.Linear):
    """`nnx.Linear` by `qjax.reproducible.linear`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return FUNCTIONS.linear(inputs, self.kernel[...].T, value(self.bias), **self.product_arguments())


class LinearGeneral(_Products, nnx.LinearGeneral):
    """`nnx.LinearGeneral` of the last axes by `qjax.reproducible.linear`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:  # type: ignore[override]
        count = len(self.in_features)
        kernel = self.kernel[...].reshape((prod(self.in_features), -1))
        bias = None if self.bias is None else self.bias[...].reshape(-1)
        flat = inputs.reshape((*inputs.shape[: inputs.ndim - count], -1))
        y = FUNCTIONS.linear(flat, kernel.T, bias, **self.product_arguments())
        return y.reshape((*y.shape[:-1], *self.out_features))


class Conv(_Products, nnx.Conv):
    """`nnx.Conv` with one to three spatial dimensions by `qjax.reproducible.conv2d` and its like."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        dims = kernel.ndim - 2
        function = {1: FUNCTIONS.conv1d, 2: FUNCTIONS.conv2d, 3: FUNCTIONS.conv3d}[dims]
        batch = inputs.shape[: inputs.ndim - dims - 1]
        images = jnp.moveaxis(inputs.reshape((-1, *inputs.shape[len(batch) :])), -1, 1)
        images, padding = self._padded(images, dims)
        window: Any = (self.strides or 1, padding, self.kernel_dilation or 1, self.feature_group_count)
        weight = jnp.moveaxis(kernel, (-1, -2), (0, 1))
        y = jnp.moveaxis(function(images, weight, value(self.bias), *window, **self.product_arguments()), 1, -1)
        return y.reshape((*batch, *y.shape[1:]))

    def _padded(self, images: jax.Array, dims: int) -> tuple[jax.Array, Any]:
        """The images with the padding that a convolution does not add itself, and what it adds."""
        steps = check_sizes("strides", self.strides or 1, 1, dims)
        spaces = check_sizes("kernel_dilation", self.kernel_dilation or 1, 1, dims)
        reaches = [space * (size - 1) for size, space in zip(self.kernel[...].shape, spaces, strict=False)]
        padding: Any = self.padding
        if padding in ("CIRCULAR", "REFLECT"):
            widths = [(reach // 2, reach - reach // 2) for reach in reaches]
            return FUNCTIONS.pad(images, widths, padding.lower()), 0
        if padding in ("SAME", "SAME_LOWER"):
            totals = [
                max((-(-length // step) - 1) * step + reach + 1 - length, 0)
                for length, step, reach in zip(images.shape[2:], steps, reaches, strict=True)
            ]
            odd = int(padding == "SAME_LOWER")
            pairs = [((total + odd) // 2, total - (total + odd) // 2) for total in totals]
        elif padding == "CAUSAL":
            pairs = [(reaches[0], 0)]
        elif padding == "VALID":
            pairs = [(0, 0)] * dims
        else:
            given = padding if isinstance(padding, tuple | list) else (padding,) * dims
            pairs = [tuple(one) if isinstance(one, tuple | list) else (one, one) for one in given]
        if all(before == after for before, after in pairs):
            return images, tuple([before for before, _ in pairs])
        return FUNCTIONS.pad(images, pairs), 0


class BatchNorm(nnx.BatchNorm):
    """`nnx.BatchNorm` by `qjax.reproducible.batch_norm`; the running variance is the unbiased one, as in torch."""

    def __call__(self, x: jax.Array, use_running_average: bool | None = None) -> jax.Array:  # type: ignore[override]
        x, parameters = jnp.moveaxis(x, -1, 1), (value(self.scale), value(self.bias))
        fixed = self.use_running_average if use_running_average is None else use_running_average
        if fixed:
            y = FUNCTIONS.normalize(x, self.mean[...], self.var[...], *parameters, self.epsilon)
            return jnp.moveaxis(y, 1, -1)
        y, *statistics = FUNCTIONS.batch_norm(x, *parameters, self.epsilon)
        for running, new in zip((self.mean, self.var), statistics, strict=True):
            running[...] = FUNCTIONS.moving_average(running[...], jax.lax.stop_gradient(new), 1 - self.momentum)
        return jnp.moveaxis(y, 1, -1)


class LayerNorm(nnx.LayerNorm):
    """`nnx.LayerNorm` of the last axis by `qjax.reproducible.layer_norm`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.layer_norm(x, value(self.scale), value(self.bias), -1, self.epsilon)


class RMSNorm(nnx.RMSNorm):
    """`nnx.RMSNorm` of the last axis by `qjax.reproducible.rms_norm`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.rms_norm(x, value(self.scale), -1, self.epsilon)


class Embed(nnx.Embed):
    """`nnx.Embed` by `qjax.reproducible.embedding`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.embedding(inputs, self.embedding[...])


class Dropout(nnx.Dropout):
    """`nnx.Dropout` by `qjax.reproducible.dropout`, with the key that `set_key` sets."""

    key: LayerKey

    def __call__(self, inputs: jax.Array, *, deterministic: bool | None = None) -> jax.Array:  # type: ignore[override]
        still = self.deterministic if deterministic is None else deterministic
        return inputs if still else FUNCTIONS.dropout(inputs, self.rate, self.key[...])


class GroupNorm(nnx.GroupNorm):
    """`nnx.GroupNorm` by `qjax.reproducible.group_norm`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        y = FUNCTIONS.group_norm(
            jnp.moveaxis(x, -1, 1), self.num_groups, value(self.scale), value(self.bias), self.epsilon
        )
        return jnp.moveaxis(y, 1, -1)


class InstanceNorm(nnx.InstanceNorm):
    """`nnx.InstanceNorm` by `qjax.reproducible.group_norm`, with as many groups as features."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        y = FUNCTIONS.group_norm(
            jnp.moveaxis(x, -1, 1), self.num_features, value(self.scale), value(self.bias), self.epsilon
        )
        return jnp.moveaxis(y, 1, -1)


class PReLU(nnx.PReLU):
    """`nnx.PReLU` by `qjax.reproducible.prelu`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.prelu(inputs, self.negative_slope[...].reshape(1))
