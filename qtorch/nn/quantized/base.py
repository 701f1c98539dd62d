"""What all layers that compute with integers have in common."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeVar

import torch

from qcore.affine import QParams, check_qparams
from qcore.affine.arithmetic.operands import check_operand
from qcore.arguments import quoted
from qtorch._affine.dtypes import FixedDtypes, integers
from qtorch._affine.namespace import Names
from qtorch._affine.products import Geometry, Product, Rounding, product_of
from qtorch._affine.tensor import QTensor
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.nn.quantized.weights import QuantizedWeight, set_weight_bias

T = TypeVar("T")
_versions = attrgetter("_version")


def _states(tensors: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """How often tensors were written to, and where they lie: `x.data = y` is no write."""
    return (*map(_versions, tensors), *map(torch.Tensor.data_ptr, tensors))


class _Kept(NamedTuple):
    """A thing, and the tensors and settings of which it was made."""

    tensors: tuple[torch.Tensor, ...]
    states: tuple[int, ...]
    settings: Any
    made: Any


class KeepsMade(FixedDtypes):
    """A layer that keeps what kernels read of its buffers, such as a packed weight.

    It is made anew where a buffer is another tensor or has other memory, or was written to: `torch.Tensor._version`
    counts writes, but for those by way of `.data`, of another process, and of NumPy. Copies and files of the layer do
    not have it.
    """

    def kept(self, tensors: tuple[torch.Tensor, ...], settings: Any, make: Callable[[], T]) -> T:
        """What `make` makes of tensors and settings, or made of them before."""
        last: _Kept | None = self.__dict__.get("_kept")
        if (
            last is not None
            and len(last.tensors) == len(tensors)
            and all(map(is_, last.tensors, tensors))
            and last.settings == settings
            and last.states == _states(tensors)
        ):
            return last.made
        return self._make(tensors, settings, make)

    def _make(self, tensors: tuple[torch.Tensor, ...], settings: Any, make: Callable[[], T]) -> T:
        # Writes to tensors of inference mode are not counted; those without memory are an export's, not the layer's.
        if any(one.is_inference() for one in tensors) or not are_plain_tensors(tensors):
            return make()
        states = _states(tensors)
        made = make()
        self.__dict__["_kept"] = _Kept(tensors, states, settings, made)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}


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
        return QParams(self.scale, self.zero_point)

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


class ProductLayer(Quantized):
    """A layer with a quantized weight and a bias.

    It keeps the weight as the kernel reads it (`KeepsMade`), which takes as much memory again; weights of at most 4
    bits stay small, and are unpacked at each call.

    Attributes:
        weight: a `QuantizedWeight`.
        bias: float32 of shape (outputs,), or None.
    """

    bias: torch.Tensor | None
    _relu = False

    def set_weight_bias(self, weight: QTensor, bias: torch.Tensor | None) -> None:
        """Replaces both.

        Raises:
            TypeError: if one has the wrong type.
            ValueError: if one has the wrong shape.
        """
        set_weight_bias(self, weight, bias)

    def _by_kernel(self, input: Any, geometry: Geometry) -> QTensor | None:
        """The layer of a quantized tensor in one call of C; None where the kernel does not serve it."""
        weight: Any = self.weight
        if type(input) is not QTensor or type(weight) is not QuantizedWeight or torch.compiler.is_dynamo_compiling():
            return None
        if weight.is_packed:
            return None
        bias, scale, zero_point, form = self.bias, self.scale, self.zero_point, self.form
        tensors = weight.int_repr, weight.scale, weight.zero_point, scale, zero_point
        if bias is not None:
            tensors = *tensors, bias

        def make() -> tuple[Product | None, QParams]:
            output = QParams(scale, zero_point)
            return product_of(weight(), geometry, Rounding(bias, output, form), self._relu), output

        product, output = self.kept(tensors, (geometry, form), make)
        values = None if product is None else product(input.values, input.qparams)
        return None if values is None else QTensor._made(values, output, form)
