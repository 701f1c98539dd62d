"""Base classes of layers that compute with integers: parameters of results, weights, kernels and checks."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch

from qcore.affine import AffineInteger, QParams, check_qparams
from qcore.affine.functional.operands import check_operand
from qcore.affine.rows import OPERATIONS
from qcore.arguments import quoted
from qtorch._affine import exported
from qtorch._affine.documents import of_layer
from qtorch._affine.dtypes import FixedDtypes, integers
from qtorch._affine.namespace import Names
from qtorch._affine.products import Geometry, Product, Rounding, product_of
from qtorch._affine.tensor import QTensor
from qtorch._rounding.dense import listed
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch._states import keeps_zero_point
from qtorch.nn.quantized.weights import (
    QuantizedWeight,
    check_weight,
    empty_weight,
    float_parameters,
    in_float32,
    output_of,
    weight_of,
)

T = TypeVar("T")
_versions = attrgetter("_version")


class _Kept(NamedTuple):
    """A cached object, and the tensors and settings of which it was made."""

    tensors: tuple[torch.Tensor, ...]
    states: tuple[int, ...]
    settings: Any
    made: Any


class KeepsMade(FixedDtypes):
    """A layer that caches objects made of its buffers for kernels, such as a packed weight.

    An object is made again if a buffer was replaced, has other memory, or was written to. `torch.Tensor._version`
    counts writes, but not writes through `.data`, through NumPy or by another process. Copies and saved files of the
    layer have no such objects.
    """

    def kept(self, tensors: tuple[torch.Tensor, ...], settings: Any, make: Callable[[], T]) -> T:
        """The result of `make`, kept from an earlier call while tensors and settings are the same."""
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
        # torch does not count writes to inference tensors; tensors without memory are an export's, not the layer's.
        if any(one.is_inference() for one in tensors) or not are_plain_tensors(tensors):
            return make()
        states = _states(tensors)
        made = make()
        self.__dict__["_kept"] = _Kept(tensors, states, settings, made)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}


class Quantized(KeepsMade):
    """A layer whose result has the scale and the zero point in its buffers.

    Args:
        scale, zero_point: of the result.
        form: the result's integers.

    Attributes:
        settings: the attributes of the float layer that are arguments of this one.
        layer_name: the layer's path in a model, for error messages; `convert` writes it.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    scale: torch.Tensor
    zero_point: torch.Tensor
    layer_name = ""

    def __init__(
        self,
        scale: float | torch.Tensor = 1.0,
        zero_point: int | torch.Tensor = 0,
        form: torch.dtype | AffineInteger = torch.quint8,
    ) -> None:
        super().__init__()
        self.form = integers(form, argument="form")
        self.register_buffer("scale", _parameter("scale", scale, torch.float32))
        self.register_buffer("zero_point", _parameter("zero_point", zero_point, torch.int32))

    @classmethod
    def from_float(cls, mod: Any) -> Self:
        """The integer layer of a float layer that was observed, or trained with fake quantization.

        Args:
            mod: the float layer, or a fused one, with `activation_post_process`; a layer with a weight has
                `weight_fake_quant` or `qconfig` as well.

        Raises:
            TypeError: if it has none of these.
            ValueError: if the observer has seen nothing.
        """
        scale, zero_point, form = output_of(mod)
        given = {name: getattr(mod, name) for name in cls.settings}
        return cls(scale=scale, zero_point=zero_point, form=form, **given)

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
        """The result's parameters, after a check that they fit its integers; the check runs again after a change."""
        scale, zero_point = self.scale, self.zero_point

        def make() -> QParams:
            output = QParams(scale, zero_point)
            check_qparams(output, self.form, (), Names)
            return output

        return self.kept((scale, zero_point), self.form, make)

    def _check_input(self, x: Any, name: str = "input") -> None:
        """Raises TypeError or ValueError unless x is a quantized tensor of up to 16 bits, with one scale."""
        check_quantized(self, x, name)
        checked(self, check_operand, name, x)
        if x.form.storage == "int32":
            raise TypeError(f"{layer_name(self)}: {name} has integers of int32; allowed are up to 16 bits")

    def extra_repr(self) -> str:
        return f"scale={listed(self.scale)}, zero_point={listed(self.zero_point)}, form={self.form}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in ("scale", "zero_point"):  # of shape (1,) in some of torch's
            if (value := state_dict.get(prefix + name)) is not None and value.numel() == 1:
                state_dict[prefix + name] = value.reshape(())
        if keeps_zero_point(self, state_dict, prefix, others[-1]):
            super()._load_from_state_dict(state_dict, prefix, *others)


class FunctionLayer(Quantized):
    """A layer that is one function of `qcore.affine.functional`; a subclass names it, or calls it in `_function`.

    Attributes:
        law: the name of the function, whose row has the settings and the document of the layer.
    """

    law: ClassVar[str]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "law" in vars(cls):
            row = OPERATIONS[cls.law]
            cls._law, cls.settings = staticmethod(row.law), tuple(row.in_torch(row.settings))
            cls.__doc__ = of_layer(cls, row)

    _law: ClassVar[Callable[..., QTensor]]

    def _function(self, input: QTensor) -> QTensor:
        """Applies the function to a checked tensor."""
        return self._law(input, self.output, self.form, *[getattr(self, name) for name in self.settings])

    def forward(self, input: QTensor) -> QTensor:
        """Applies the layer's function to a quantized tensor.

        Raises:
            TypeError: if input is not a QTensor, or has more than 16 bits.
            ValueError: if its shape does not fit.
        """
        self._check_input(input)
        if exported.is_near():
            return exported.of_numbers(self._of_numbers, input, output=self.output, form=self.form)
        return checked(self, self._function, input)

    def _of_numbers(self, x: torch.Tensor) -> torch.Tensor:
        """The float layer's function: that of the row's layer with these settings."""
        layer = getattr(torch.nn, OPERATIONS[self.law].layers[0])
        return layer(**{name: getattr(self, name) for name in self.settings})(x)


class ProductLayer(Quantized):
    """A layer with a quantized weight and a bias.

    It keeps a second copy of the weight in the kernel's layout (`KeepsMade`). Weights of at most 4 bits have no second
    copy; they are unpacked at each call.

    Args:
        shape: of the weight.
        outputs: the number of channels of the result, and of elements of the bias.
        bias: whether there is a bias.
        dtype, output_dtype: the integers of weight and result.

    Attributes:
        weight: `weight()` is the quantized weight.
        bias: float32 of shape (outputs,), or None.
    """

    weight_class: ClassVar[type[QuantizedWeight]] = QuantizedWeight
    bias: torch.Tensor | None
    _relu = False

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        bias: bool,
        dtype: torch.dtype | AffineInteger,
        output_dtype: torch.dtype | AffineInteger,
    ) -> None:
        super().__init__(form=integers(output_dtype, argument="output_dtype"))
        self.weight = self.weight_class(empty_weight(shape, dtype))
        self.register_buffer("bias", torch.zeros(outputs) if bias else None)

    @property
    def _outputs(self) -> int:
        """The number of channels of the result."""
        raise NotImplementedError

    @classmethod
    def from_float(cls, mod: Any) -> Self:
        layer: Any = mod[0] if isinstance(mod, torch.nn.Sequential) else mod
        numbers, bias = float_parameters(mod)
        scale, zero_point, form = output_of(mod)
        weight = cls._quantized(mod, numbers)
        given = {name: getattr(layer, name) for name in cls.settings}
        made = cls(**given, dtype=weight.form, output_dtype=form)  # type: ignore[call-arg]
        made.set_weight_bias(weight, bias)
        made.scale, made.zero_point = scale.clone(), zero_point.clone()
        return made

    @classmethod
    def _quantized(cls, mod: Any, numbers: torch.Tensor) -> QTensor:
        """The weight, quantized by the float layer's settings."""
        return weight_of(mod, numbers)

    def set_weight_bias(self, weight: QTensor, bias: torch.Tensor | None) -> None:
        """Replaces weight and bias; raises TypeError or ValueError if one has the wrong type or shape."""
        check_weight(self, weight)
        allowed = (self._outputs,)
        if bias is not None and (bias.dtype is not torch.float32 or bias.shape != allowed):
            raise ValueError(f"bias is {bias.dtype} of shape {tuple(bias.shape)}; allowed is float32 of {allowed}")
        self.weight, self.bias = self.weight_class(weight), bias

    def _by_kernel(self, input: Any, geometry: Geometry) -> QTensor | None:
        """The layer's result by one call of C; None where the kernel does not support the input or the layer."""
        weight: Any = self.weight
        if type(input) is not QTensor or type(weight) is not QuantizedWeight or torch.compiler.is_dynamo_compiling():
            return None
        if weight.is_packed:
            return None
        # The product is made of these tensors and settings, and made again when one of them changes.
        bias, scale, zero_point, form = self.bias, self.scale, self.zero_point, self.form
        tensors = weight.int_repr, weight.scale, weight.zero_point, scale, zero_point
        if bias is not None:
            tensors = *tensors, bias

        def make() -> tuple[Product | None, QParams]:
            output = QParams(scale, zero_point)
            return product_of(weight(), geometry, Rounding(in_float32(bias), output, form), self._relu), output

        product, output = self.kept(tensors, (geometry, form), make)
        values = None if product is None else product(input.values, input.qparams)
        return None if values is None else QTensor._made(values, output, form)


def check_quantized(module: torch.nn.Module, x: Any, name: str = "input") -> None:
    """Raises TypeError, with the layer's name and the remedy, unless a layer's argument is a quantized tensor."""
    if not isinstance(x, QTensor):
        raise TypeError(
            f"{layer_name(module)}: {name} is a {type(x).__name__}; allowed is a QTensor: insert a QuantStub before "
            "this layer (prepare and convert make it a Quantize), or wrap the model in QuantWrapper"
        )


def checked(module: torch.nn.Module, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result; an error that it raises begins with the layer's place in the model."""
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{layer_name(module)}: {error}") from error


# How a layer stays in floats, by the steps and by the one call.
LEFT_OUT = "leave it in floats (qconfig = None before prepare, or in quantize_model the settings None for its name)"


def layer_name(module: Any) -> str:
    """The layer's name in its model, or its type where it has no name."""
    return getattr(module, "layer_name", "") or type(module).__name__


def _parameter(name: str, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A number, or a tensor of one element, as the value of a buffer."""
    try:
        return torch.as_tensor(value).to(dtype).reshape(()).clone()
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch raises any of them
        kind = type(value).__name__
        raise TypeError(f"{name}={quoted(value)} is a {kind}; allowed is a number, or a tensor of one") from None


def _states(tensors: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """The tensors' counts of writes, and their addresses, since `x.data = y` does not count as a write."""
    return (*map(_versions, tensors), *map(torch.Tensor.data_ptr, tensors))
