"""The common parts of layers that compute with integers: variables, the output's parameters, and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx

from qcore.affine import AffineInteger, QParams, check_qparams
from qcore.affine.functional.operands import check_operand
from qcore.arguments import check_type
from qcore.workflow.conversion import uncalibrated
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike
from qjax.quantization import QTensor


class IntegerVariable(nnx.Variable):
    """Integers, scales, zero points and biases of a converted model, which no optimizer changes.

    Example:
        >>> from flax import nnx
        >>> # optimizers see no parameter
        >>> nnx.state(nnx.Dict(scale=IntegerVariable(jnp.float32(0.5))), nnx.Param)
        State({})
    """


class Quantized(nnx.Module):
    """A layer that holds the scale and the zero point of its result in variables.

    Args:
        output: the parameters of the result.
        form: the result's integers.

    Raises:
        TypeError, ValueError: if output is not a QParams of one scale and zero point for these integers.

    Attributes:
        layer_name: the layer's name in a model, for its errors; `convert` writes it.
        observed_by: the observer that chose the parameters, for `report`.
        is_uncalibrated: True if the layer saw no data before `convert`; a call then raises.

    Example:
        >>> from qcore.affine import UINT8
        >>> layer = Quantized(QParams.of(0.5, 3), UINT8)
        >>> layer.output.zero_point
        Array(3, dtype=int32)
    """

    layer_name = observed_by = ""
    is_uncalibrated = False

    def __init__(self, output: QParams, form: AffineInteger) -> None:
        check_type("output", output, QParams, "a QParams")
        check_qparams(output, form, (), Names)
        self.form = form
        self.scale = IntegerVariable(jnp.asarray(output.scale))
        self.zero_point = IntegerVariable(jnp.asarray(output.zero_point))

    @property
    def output(self) -> QParams:
        """The result's parameters."""
        return QParams(self.scale[...], self.zero_point[...])

    def _check_input(self, x: QTensor, name: str = "input") -> None:
        """Raises unless x is a quantized array of up to 16 bits, with one scale.

        Raises:
            TypeError, ValueError: if it is something else.
            RuntimeError: if the layer saw no data before it was converted.
        """
        check_calibrated(self)
        check_quantized(self, x, name)
        checked(self, check_operand, name, x)
        if x.form.storage == "int32":
            raise TypeError(f"{layer_name(self)}: {name} has integers of int32; allowed are up to 16 bits")


LEFT_OUT = "leave it in floats (the settings None for its name)"


def check_calibrated(module: Any) -> None:
    """Raises RuntimeError if a layer saw no data in calibration."""
    if module.is_uncalibrated:
        raise uncalibrated(layer_name(module), LEFT_OUT)


def check_quantized(module: nnx.Module, x: Any, name: str = "input") -> None:
    """Raises unless a layer's argument is a quantized array.

    Raises:
        TypeError: if it is something else; the message names the layer, and the module to insert before it.
    """
    if not isinstance(x, QTensor):
        raise TypeError(
            f"{layer_name(module)}: {name} is a {type(x).__name__}; allowed is a QTensor: insert a QuantStub before "
            "this layer (prepare and convert make it a Quantize), or wrap the model in QuantWrapper"
        )


def checked(module: nnx.Module, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """The result of a function; its errors get the name of the layer."""
    try:
        return function(*arguments, **settings)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{layer_name(module)}: {error}") from error


def layer_name(module: Any) -> str:
    """A layer's name in a model, or its type if it has no name."""
    return getattr(module, "layer_name", "") or type(module).__name__


def float_variable(name: str, value: Any, shape: tuple[int, ...] | None = None) -> Any:
    """An argument in a variable of float32, or None.

    Raises:
        TypeError: if it is not an array of real numbers.
        ValueError: if it has another shape.
    """
    if value is None:
        return nnx.data(None)
    check_real(name, value)
    if shape not in (None, value.shape):
        raise ValueError(f"{name} has shape {value.shape}; allowed is {shape}")
    return IntegerVariable(jnp.asarray(value, jnp.float32))


def check_real(name: str, value: Any) -> None:
    """Raises TypeError unless an argument is an array of real numbers."""
    known = isinstance(value, ArrayLike)
    if not known or not (jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)):
        found = f"an array of {value.dtype}" if known else f"a {type(value).__name__}"
        raise TypeError(f"{name} is {found}; allowed is a jax.Array or NumPy array of floats")
