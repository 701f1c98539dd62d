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
    """A layer's kernel with outputs first and inputs second; slopes of a PReLU as they are.

    Kernels of transposed convolutions are mirrored: flax stores the kernel of the convolution that is applied to the
    image with zeros between its numbers. (torch itself stores these kernels with inputs first.)
    """
    if isinstance(layer, PReLU):
        return layer.weight[...]
    kernel = jnp.moveaxis(layer.kernel[...], (-1, -2), (0, 1))
    return mirrored(kernel) if isinstance(layer, nnx.ConvTranspose) else kernel


def flax_layout(weight: Any, transposed: bool = False) -> Any:
    """A weight with outputs first as flax stores it: inputs and outputs last, mirrored if `transposed`."""
    weight = mirrored(weight) if transposed else weight
    return jnp.asarray(weight.transpose(*range(2, weight.ndim), 1, 0))  # NumPy's arrays turn without a program


def mirrored(weight: Any) -> Any:
    """A weight with its kernels reversed along all dimensions."""
    return jnp.flip(weight, range(2, weight.ndim))


def torch_weight(layer: Any) -> jax.Array:
    """A layer's weight as torch stores it: as `torch_layout`, but with inputs first in a transposed convolution."""
    if isinstance(layer, nnx.Embed):
        return layer.embedding[...]
    weight = torch_layout(layer)
    return jnp.swapaxes(weight, 0, 1) if isinstance(layer, nnx.ConvTranspose) else weight


def set_torch_weight(layer: Any, weight: jax.Array | None) -> None:
    """Puts a weight in torch's layout into a layer; None removes the layer's weight."""
    name = "weight" if isinstance(layer, PReLU) else "kernel"
    if weight is not None and isinstance(layer, nnx.ConvTranspose):
        weight = flax_layout(jnp.swapaxes(weight, 0, 1), transposed=True)
    elif weight is not None and not isinstance(layer, PReLU):
        weight = flax_layout(weight)
    setattr(layer, name, nnx.data(None) if weight is None else nnx.Param(weight))
