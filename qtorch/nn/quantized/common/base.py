"""What all layers that compute with integers have in common: the result's parameters, and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qcore.affine import QParams, check_qparams
from qcore.affine.arithmetic.operands import check_operand
from qcore.arguments import quoted
from qtorch._affine.dtypes import integers
from qtorch._affine.namespace import Names
from qtorch._affine.tensor import QTensor
from qtorch.nn.quantized.common.kept import KeepsMade


def _parameter(name: str, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A number, or a tensor of one, as a buffer."""
    try:
        return torch.as_tensor(value).to(dtype).reshape(()).clone()
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch raises any of them
        kind = type(value).__name__
        raise TypeError(f"{name}={quoted(value)} is a {kind}; allowed is a number, or a tensor of one") from None


class Quantized(KeepsMade):
    """A layer whose result has the scale and the zero point in its buffers.

    Args:
        scale, zero_point: of the result.
        form: the result's integers.

    Attributes:
        layer_name: where the layer is in a model, for its errors; `convert` writes it.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    layer_name = ""

    def __init__(self, scale: Any = 1.0, zero_point: Any = 0, form: Any = torch.quint8) -> None:
        super().__init__()
        self.form = integers(form, argument="form")
        self.register_buffer("scale", _parameter("scale", scale, torch.float32))
        self.register_buffer("zero_point", _parameter("zero_point", zero_point, torch.int32))

    def __setattr__(self, name: str, value: Any) -> None:
        """Takes `layer.scale = 0.5`, as torch's layers do."""
        if name in ("scale", "zero_point") and not isinstance(value, torch.Tensor):
            old = getattr(self, name)
            value = torch.as_tensor(value, dtype=old.dtype, device=old.device)
        super().__setattr__(name, value)

    @property
    def output(self) -> QParams:
        """The result's parameters."""
        return qparams_of(self)

    def checked_output(self) -> QParams:
        """The result's parameters, which fit its integers; they are checked again after a change.

        Raises:
            TypeError, ValueError: if they do not fit.
        """
        scale, zero_point = self.scale, self.zero_point

        def make() -> QParams:
            output = QParams(scale, zero_point)
            check_qparams(output, self.form, (), Names)
            return output

        return self.kept((scale, zero_point), self.form, make)

    def check_input(self, x: Any, name: str = "input") -> None:
        """Raises unless x is a quantized tensor of up to 16 bits, with one scale.

        Raises:
            TypeError, ValueError: if it is something else.
        """
        check_quantized(self, x, name)
        checked(self, check_operand, name, x)
        if x.form.storage == "int32":
            raise TypeError(f"{place_of(self)}: {name} has integers of int32; allowed are up to 16 bits")

    def extra_repr(self) -> str:
        return f"scale={self.scale.item()}, zero_point={self.zero_point.item()}, form={self.form}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in ("scale", "zero_point"):  # of shape (1,) in some of torch's
            if (value := state_dict.get(prefix + name)) is not None and value.numel() == 1:
                state_dict[prefix + name] = value.reshape(())
        super()._load_from_state_dict(state_dict, prefix, *others)


def qparams_of(module: Any, axis: int | None = None) -> QParams:
    """The parameters in a module's buffers."""
    return QParams(module.scale, module.zero_point, axis)


def check_quantized(module: torch.nn.Module, x: Any, name: str = "input") -> None:
    """Raises unless a layer's argument is a quantized tensor.

    Raises:
        TypeError: if it is something else; the message says where the layer is, and what to insert before it.
    """
    if not isinstance(x, QTensor):
        raise TypeError(
            f"{place_of(module)}: {name} is a {type(x).__name__}; allowed is a QTensor: insert a QuantStub before this "
            "layer (prepare and convert make it a Quantize), or wrap the model in QuantWrapper"
        )


def checked(module: torch.nn.Module, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns; the errors that it raises then say in which layer that was."""
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{place_of(module)}: {error}") from error


def uncalibrated(place: str) -> RuntimeError:
    """What a layer raises that runs and saw no data in calibration."""
    return RuntimeError(
        f"{place} runs for the first time, and has no range: it saw no data before convert; calibrate with data that "
        "reaches it, or switch it off before prepare (qconfig = None)"
    )


def place_of(module: Any) -> str:
    """Where a layer is in a model, or what it is, if it does not know."""
    return getattr(module, "layer_name", "") or type(module).__name__
