"""Layers of flax nnx by the functions of `qjax.reproducible`; parameters and their layouts are flax's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

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

    def said(self) -> dict[str, Any]:
        """The keyword arguments of products."""
        if self.products is None:
            return {}
        forward, grad_input, grad_weight = self.products
        product = parse(forward)
        said = {"operands": product.operands, "accumulator": product.accumulator}
        return said | {"grad_input": grad_input, "grad_weight": grad_weight, "key": value(self.key)}


class Linear(_Products, nnx.Linear):
    """`nnx.Linear` by `qjax.reproducible.linear`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return FUNCTIONS.linear(inputs, self.kernel[...].T, value(self.bias), **self.said())


class Conv(_Products, nnx.Conv):
    """`nnx.Conv` with one to three spatial dimensions by `qjax.reproducible.conv2d` and its like."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        functions = {1: FUNCTIONS.conv1d, 2: FUNCTIONS.conv2d, 3: FUNCTIONS.conv3d}
        padding: Any = 0 if self.padding == "VALID" else self.padding
        window: Any = (self.strides or 1, padding, self.kernel_dilation or 1, self.feature_group_count)
        weight, images = jnp.moveaxis(kernel, (-1, -2), (0, 1)), jnp.moveaxis(inputs, -1, 1)
        y = functions[kernel.ndim - 2](images, weight, value(self.bias), *window, **self.said())
        return jnp.moveaxis(y, 1, -1)


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
