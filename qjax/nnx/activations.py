"""Activations as modules: ReLUs, which keep the input's scale, and functions whose results get their own scale."""

from __future__ import annotations

from math import isfinite
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine.rows import OPERATIONS
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


_DOCUMENT = """{sentence}.

Args:
{settings}
Example:
    >>> import jax.numpy as jnp
    >>> {name}({values})(jnp.float32({numbers})).tolist()
    {shows}
"""


class Activation(nnx.Module):
    """A function of floats whose result is observed; `convert` replaces it by a `quantized.Activation`.

    Attributes:
        law: the name of the function of quantized arrays, whose row has JAX's function and the layer's document.
        settings: its arguments.

    Example:
        >>> ELU(2.0).law, ELU(2.0).settings
        ('elu', (('alpha', 2.0),))
    """

    law: ClassVar[str]
    settings: tuple[tuple[str, float], ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "law" in vars(cls):
            row = OPERATIONS[cls.law]
            template = _DOCUMENT if row.settings else _DOCUMENT.replace("Args:\n{settings}\n", "")
            cls.__doc__ = row.document(template, cls.__name__)

    def __call__(self, x: jax.Array) -> jax.Array:
        function = getattr(jax.nn, OPERATIONS[self.law].flax)
        return function(x, *[value for _, value in self.settings])


class ELU(Activation):
    law = "elu"

    def __init__(self, alpha: float = 1.0) -> None:
        self.settings = (("alpha", check_float("alpha", alpha, "a number", isfinite)),)


class LeakyReLU(Activation):
    law = "leaky_relu"

    def __init__(self, slope: float = 0.01) -> None:
        self.settings = (("slope", check_float("slope", slope, "a number", isfinite)),)


class Hardswish(Activation):
    law = "hardswish"


class Sigmoid(Activation):
    law = "sigmoid"


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
