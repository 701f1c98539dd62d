"""Normalisation of quantized arrays with channels last, by the law of `qcore.affine.functional`."""

from __future__ import annotations

from typing import Any, ClassVar

from flax import nnx

from qcore.affine import AffineInteger, QParams
from qcore.arguments import check_float
from qjax._rounding.inputs import ArrayLike
from qjax.nnx.quantized.base import Quantized, check_real, checked, float_variable
from qjax.quantization import QTensor
from qjax.quantization.functional import batch_norm, group_norm, layer_norm

__all__ = ["BatchNorm", "GroupNorm", "LayerNorm"]


def _value(variable: Any) -> Any:
    return None if variable is None else variable[...]


class Norm(Quantized):
    """The base of the norms: an affine transformation, epsilon, and the parameters of the result.

    Attributes:
        floats: the layers of flax that it replaces.
    """

    floats: ClassVar[tuple[type[nnx.Module], ...]]

    def __init__(
        self, weight: ArrayLike | None, bias: ArrayLike | None, epsilon: float, output: QParams, form: AffineInteger
    ) -> None:
        super().__init__(output, form)
        self.weight, self.bias = float_variable("weight", weight), float_variable("bias", bias)
        self.epsilon = check_float("epsilon", epsilon)

    @property
    def _parameters(self) -> tuple[Any, ...]:
        return _value(self.weight), _value(self.bias)


class BatchNorm(Norm):
    """`nnx.BatchNorm` of quantized arrays, by its running statistics (`qcore.affine.functional.batch_norm`).

    Args:
        weight, bias: float32 of shape (features,), or None.
        running_mean, running_var: float32 of that shape.
        epsilon: added to variances.
        output: the parameters of the result.
        form: the result's integers.
        relu: True if a ReLU follows.

    Example:
        >>> import jax.numpy as jnp
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> ones = jnp.ones(1)
        >>> layer = BatchNorm(ones, None, ones, ones, 1e-5, QParams.of(0.1, 100), UINT8)
        >>> run = nnx.jit(lambda layer, q: layer(q))
        >>> run(layer, quantize_per_tensor(jnp.float32([[1], [3]]), 0.1, 7, "quint8")).int_repr()
        Array([[100],
               [120]], dtype=uint8)
    """

    floats = (nnx.BatchNorm,)

    def __init__(
        self,
        weight: ArrayLike | None,
        bias: ArrayLike | None,
        running_mean: ArrayLike,
        running_var: ArrayLike,
        epsilon: float,
        output: QParams,
        form: AffineInteger,
        relu: bool = False,
    ) -> None:
        super().__init__(weight, bias, epsilon, output, form)
        for name, value in (("running_mean", running_mean), ("running_var", running_var)):
            check_real(name, value)  # not None, as the others may be
        self.running_mean = float_variable("running_mean", running_mean)
        self.running_var = float_variable("running_var", running_var)
        self.relu = relu

    def __call__(self, x: QTensor) -> QTensor:
        """The result for a quantized array of shape (batch, *sizes, features).

        Raises:
            TypeError: if x is not a QTensor.
            ValueError: if its shape does not fit.
        """
        self._check_input(x)
        given = *self._parameters, self.running_mean[...], self.running_var[...]
        given = x, *given, self.epsilon, self.output, self.form, self.relu
        return checked(self, batch_norm, *given, channels_last=True)

    @classmethod
    def of(cls, layer: nnx.BatchNorm, output: QParams, form: AffineInteger, relu: bool = False) -> BatchNorm:
        """The integer form of an `nnx.BatchNorm`."""
        given = _value(layer.scale), _value(layer.bias), layer.mean[...], layer.var[...]
        return cls(*given, layer.epsilon, output, form, relu)


class LayerNorm(Norm):
    """`nnx.LayerNorm` of quantized arrays over their last axis (`qcore.affine.functional.layer_norm`).

    Args:
        weight, bias, epsilon, output, form: as for `BatchNorm`.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> layer = nnx.jit(LayerNorm(None, None, 1e-5, QParams.of(0.1, 100), UINT8))
        >>> layer(quantize_per_tensor(jnp.float32([[1, 3]]), 0.1, 7, "quint8")).int_repr()
        Array([[ 90, 110]], dtype=uint8)
    """

    floats = (nnx.LayerNorm,)

    def __call__(self, x: QTensor) -> QTensor:
        """The result for a quantized array of shape (..., features)."""
        self._check_input(x)
        weight, bias = self._parameters
        return checked(self, layer_norm, x, x.shape[-1:], weight, bias, self.epsilon, self.output, self.form)

    @classmethod
    def of(cls, layer: nnx.LayerNorm, output: QParams, form: AffineInteger) -> LayerNorm:
        """The integer form of an `nnx.LayerNorm`."""
        return cls(_value(layer.scale), _value(layer.bias), layer.epsilon, output, form)


class GroupNorm(Norm):
    """`nnx.GroupNorm` of quantized arrays (`qcore.affine.functional.group_norm`).

    Args:
        weight, bias, epsilon, output, form: as for `BatchNorm`.
        num_groups: the number of groups into which the features are split; None for one feature in each group, which
            is instance norm.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from qcore.affine import UINT8
        >>> from qjax.quantization import quantize_per_tensor
        >>> layer = nnx.jit(GroupNorm(None, None, 1e-5, QParams.of(0.1, 100), UINT8, num_groups=1))
        >>> layer(quantize_per_tensor(jnp.float32([[[1, 3]]]), 0.1, 7, "quint8")).int_repr()
        Array([[[ 90, 110]]], dtype=uint8)
    """

    floats = (nnx.GroupNorm, nnx.InstanceNorm)

    def __init__(
        self,
        weight: ArrayLike | None,
        bias: ArrayLike | None,
        epsilon: float,
        output: QParams,
        form: AffineInteger,
        num_groups: int | None = None,
    ) -> None:
        super().__init__(weight, bias, epsilon, output, form)
        self.num_groups = num_groups

    def __call__(self, x: QTensor) -> QTensor:
        """The result for a quantized array of shape (batch, *sizes, features)."""
        self._check_input(x)
        groups = x.shape[-1] if self.num_groups is None else self.num_groups
        given = groups, *self._parameters, self.epsilon, self.output, self.form
        return checked(self, group_norm, x, *given, channels_last=True)

    @classmethod
    def of(cls, layer: nnx.GroupNorm | nnx.InstanceNorm, output: QParams, form: AffineInteger) -> GroupNorm:
        """The integer form of an `nnx.GroupNorm` or `nnx.InstanceNorm`."""
        groups = getattr(layer, "num_groups", None)
        return cls(_value(layer.scale), _value(layer.bias), layer.epsilon, output, form, groups)
