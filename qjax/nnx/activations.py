"""Activations as modules: ReLUs, which keep the input's scale, and functions whose results get their own scale."""

from __future__ import annotations

from math import isfinite
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import check_float, check_size
from qcore.lazy import public_names
from qjax.nnx.functional import relu, relu6

__all__ = ["ELU", "Activation", "Hardswish", "LeakyReLU", "PReLU", "ReLU", "ReLU6", "Sigmoid"]
__dir__ = public_names(__name__)


class ReLU(nnx.Module):
    """max(x, 0) of arrays and of QTensors, as a module that `fuse_modules` can name.

    Example:
        >>> import jax.numpy as jnp
        >>> ReLU()(jnp.float32([-1, 2]))
        Array([0., 2.], dtype=float32)
    """

    def __call__(self, x: Any) -> Any:
        return relu(x)


class ReLU6(nnx.Module):
    """min(max(x, 0), 6) of arrays and of QTensors.

    Example:
        >>> import jax.numpy as jnp
        >>> ReLU6()(jnp.float32([-1, 2, 8]))
        Array([0., 2., 6.], dtype=float32)
    """

    def __call__(self, x: Any) -> Any:
        return relu6(x)


class Activation(nnx.Module):
    """A function of floats whose result is observed; `convert` replaces it by a `quantized.Activation`.

    Attributes:
        law: the name of the function of quantized arrays.
        settings: its arguments.

    Example:
        >>> ELU(2.0).law, ELU(2.0).settings
        ('elu', (('alpha', 2.0),))
    """

    law: ClassVar[str]
    settings: tuple[tuple[str, float], ...] = ()


class ELU(Activation):
    """x where it is above 0, else alpha * (exp(x) - 1).

    Args:
        alpha: any number.

    Example:
        >>> import jax.numpy as jnp
        >>> ELU(2.0)(jnp.float32([-99, 2]))
        Array([-2.,  2.], dtype=float32)
    """

    law = "elu"

    def __init__(self, alpha: float = 1.0) -> None:
        self.settings = (("alpha", check_float("alpha", alpha, "a number", isfinite)),)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.elu(x, self.settings[0][1])


class LeakyReLU(Activation):
    """x where it is above 0, else x * slope.

    Args:
        slope: any number.

    Example:
        >>> import jax.numpy as jnp
        >>> LeakyReLU(0.5)(jnp.float32([-1, 2]))
        Array([-0.5,  2. ], dtype=float32)
    """

    law = "leaky_relu"

    def __init__(self, slope: float = 0.01) -> None:
        self.settings = (("slope", check_float("slope", slope, "a number", isfinite)),)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.leaky_relu(x, self.settings[0][1])


class PReLU(nnx.Module):
    """x where it is above 0, else x * w, with a slope w that is trained, for all or for each channel.

    `convert` replaces it by a `quantized.PReLU`.

    Args:
        num_parameters: the number of slopes: 1, or the number of channels, on the last axis.
        init: the initial slope.

    Attributes:
        weight: the slopes, of shape (num_parameters,).

    Example:
        >>> import jax.numpy as jnp
        >>> PReLU()(jnp.float32([-1, 2]))
        Array([-0.25,  2.  ], dtype=float32)
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        init = check_float("init", init, "a number", isfinite)
        self.weight = nnx.Param(jnp.full(check_size("num_parameters", num_parameters), init, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.where(x > 0, x, x * self.weight[...].astype(x.dtype))


class Hardswish(Activation):
    """x * clip(x + 3, 0, 6) / 6.

    Example:
        >>> import jax.numpy as jnp
        >>> Hardswish()(jnp.float32([-4, 4]))
        Array([-0.,  4.], dtype=float32)
    """

    law = "hardswish"

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.hard_swish(x)


class Sigmoid(Activation):
    """1 / (1 + exp(-x)).

    Example:
        >>> import jax.numpy as jnp
        >>> Sigmoid()(jnp.float32([0]))
        Array([0.5], dtype=float32)
    """

    law = "sigmoid"

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(x)
