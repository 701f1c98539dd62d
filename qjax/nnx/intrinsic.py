"""Fused layers: a convolution or linear layer, a batch norm and a ReLU, in this order, that are quantized as one."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
from flax import nnx

from qcore.lazy import public_names
from qjax.nnx.functional import relu

__all__ = ["BNReLU", "ConvBn", "ConvBnReLU", "ConvReLU", "Fused", "LinearReLU"]
__dir__ = public_names(__name__)


class Fused(nnx.Module):
    """A layer and the layers that follow it, with one observer for the last result.

    Args:
        layer: a layer of the type in the class's name.
        bn: an `nnx.BatchNorm` for the layer's outputs, in `ConvBn` and `ConvBnReLU`.

    Attributes:
        has_relu: True if max(x, 0) is the last step.

    Raises:
        TypeError: if a part has another type.

    Example:
        >>> import jax.numpy as jnp
        >>> LinearReLU(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))(jnp.zeros((1, 2))).shape
        (1, 3)
    """

    float_layer: ClassVar[type[nnx.Module]] = nnx.Conv
    has_norm: ClassVar[bool] = False
    has_relu: ClassVar[bool] = False

    def __init__(self, layer: nnx.Module, bn: nnx.BatchNorm | None = None) -> None:
        if type(layer) is not self.float_layer or (type(bn) is nnx.BatchNorm) is not self.has_norm:
            given = ", ".join(type(part).__name__ for part in (layer, bn) if part is not None)
            allowed = self.float_layer.__name__ + (", BatchNorm" if self.has_norm else "")
            raise TypeError(f"layer and bn of {type(self).__name__} are ({given}); allowed are exactly ({allowed})")
        self.layer: Any = layer
        self.bn = nnx.data(bn)

    def __getattr__(self, name: str) -> Any:
        """An attribute of the layer, for code that reads `conv.strides`."""
        if name == "layer" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.layer, name)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        x = self.layer(inputs)
        x = x if self.bn is None else self.bn(x)
        return relu(x) if self.has_relu else x


class LinearReLU(Fused):
    """A linear layer and its ReLU.

    Args:
        layer: an `nnx.Linear`.
        bn: None.

    Example:
        >>> import jax.numpy as jnp
        >>> LinearReLU(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))(jnp.zeros((1, 2))).shape
        (1, 3)
    """

    float_layer, has_relu = nnx.Linear, True


class ConvReLU(Fused):
    """A convolution and its ReLU.

    Args:
        layer: an `nnx.Conv`.
        bn: None.

    Example:
        >>> import jax.numpy as jnp
        >>> ConvReLU(nnx.Conv(2, 3, (2,), rngs=nnx.Rngs(0)))(jnp.zeros((1, 4, 2))).shape
        (1, 4, 3)
    """

    has_relu = True


class BNReLU(Fused):
    """A batch norm and its ReLU.

    Args:
        layer: an `nnx.BatchNorm`.
        bn: None.

    Example:
        >>> import jax.numpy as jnp
        >>> norm = nnx.BatchNorm(1, use_running_average=True, epsilon=0.0, rngs=nnx.Rngs(0))
        >>> BNReLU(norm)(jnp.float32([[-1], [2]])).ravel()
        Array([0., 2.], dtype=float32)
    """

    float_layer, has_relu = nnx.BatchNorm, True


class ConvBn(Fused):
    """A convolution and its batch norm, for training.

    Args:
        layer: an `nnx.Conv`.
        bn: an `nnx.BatchNorm` of its outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> conv, bn = nnx.Conv(2, 3, (2,), rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        >>> nnx.jit(lambda layer, x: layer(x))(ConvBn(conv, bn), jnp.zeros((1, 4, 2))).shape
        (1, 4, 3)
    """

    has_norm = True


class ConvBnReLU(Fused):
    """A convolution, its batch norm and its ReLU, for training.

    Args:
        layer: an `nnx.Conv`.
        bn: an `nnx.BatchNorm` of its outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> conv, bn = nnx.Conv(2, 3, (2,), rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        >>> ConvBnReLU(conv, bn)(jnp.zeros((1, 4, 2))).shape
        (1, 4, 3)
    """

    has_norm = has_relu = True


FUSED = {
    (fused.float_layer, fused.has_norm, fused.has_relu): fused
    for fused in (LinearReLU, ConvReLU, BNReLU, ConvBn, ConvBnReLU)
}
