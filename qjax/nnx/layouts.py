"""Weights of flax's layers in torch's layout, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qjax.nnx.activations import PReLU


def bias_of(layer: Any) -> jax.Array | None:
    """A layer's bias in float32, or None."""
    return None if getattr(layer, "bias", None) is None else layer.bias[...].astype(jnp.float32)


def torch_layout(layer: Any) -> jax.Array:
    """A layer's kernel, outputs first and inputs second, as torch has it; slopes of a PReLU as they are.

    Kernels of transposed convolutions are mirrored: flax's lie as those of the convolution between whose numbers are
    zeros. In torch inputs are first there.
    """
    if isinstance(layer, PReLU):
        return layer.weight[...]
    kernel = jnp.moveaxis(layer.kernel[...], (-1, -2), (0, 1))
    return mirrored(kernel) if isinstance(layer, nnx.ConvTranspose) else kernel


def flax_layout(weight: Any, transposed: bool = False) -> Any:
    """A weight with outputs first in flax's layout, inputs and outputs last; that of a transposed convolution, too."""
    weight = jnp.asarray(weight)
    return jnp.moveaxis(mirrored(weight) if transposed else weight, (0, 1), (-1, -2))


def mirrored(weight: Any) -> Any:
    """A weight with its kernels the other way round along all dimensions."""
    return jnp.flip(weight, range(2, weight.ndim))


def torch_weight(layer: Any) -> jax.Array:
    """A layer's weight as torch stores it: as `torch_layout`, but with inputs first in a transposed convolution."""
    if isinstance(layer, nnx.Embed):
        return layer.embedding[...]
    weight = torch_layout(layer)
    return jnp.swapaxes(weight, 0, 1) if isinstance(layer, nnx.ConvTranspose) else weight


def set_torch_weight(layer: Any, weight: jax.Array | None) -> None:
    """Puts a weight as torch stores it into a layer, or takes the layer's out of it."""
    name = "weight" if isinstance(layer, PReLU) else "kernel"
    if weight is not None and isinstance(layer, nnx.ConvTranspose):
        weight = flax_layout(jnp.swapaxes(weight, 0, 1), transposed=True)
    elif weight is not None and not isinstance(layer, PReLU):
        weight = flax_layout(weight)
    setattr(layer, name, nnx.data(None) if weight is None else nnx.Param(weight))
