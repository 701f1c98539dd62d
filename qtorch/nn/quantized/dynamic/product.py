"""Float linear layers with quantized weights, and the product that all dynamic layers use."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch

from qcore.affine import UINT8, AffineInteger, QParams
from qcore.affine.functional import recurrent
from qcore.affine.parameters import check_input
from qcore.arguments import check_flag, check_size, check_type
from qcore.formats.block import with_scale
from qtorch._affine import exported
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.namespace import Names
from qtorch._affine.observer import RangeObserver
from qtorch._affine.products import DynamicKernel, kernel_of, sums_dtype, sums_of_products, totals_of
from qtorch._affine.programs import law
from qtorch._affine.qconfig import QConfigDynamic
from qtorch._affine.tensor import QTensor
from qtorch._conversion import converted, result_dtype
from qtorch.nn.quantized.base import KeepsMade, checked, layer_name
from qtorch.nn.quantized.weights import (
    QuantizedWeight,
    Weight,
    empty_weight,
    float_parameters,
    in_float32,
    rounds,
    weight_maker,
    weight_module,
    weight_of,
)
from qtorch.quant import Quantizer

ACTIVATIONS = UINT8.reduced()


class DynamicProduct(KeepsMade):
    """x @ weight.T + bias in float32, with a weight that is quantized, in float16, or in a format.

    With a quantized weight, x is quantized by its own range, and the result is float32(sums) * (scale of x * scale of
    weight) + bias, where sums are exact (`qcore.affine.functional.recurrent`). A NaN or an infinity in x makes all
    results with this range NaN. With a float16 weight it is the product of floats in float32. With a weight in a
    format, x is rounded to a format before the product.

    Args:
        shape: (outputs, features).
        bias_: whether there is a bias.
        dtype: of the weight: torch.qint8, an `AffineInteger`, or torch.float16; None if `take` sets a weight in a
            format.

    Attributes:
        weight: `weight()` is the quantized weight, or the numbers of a weight in a format; a float16 weight is a
            tensor.
        rounding: rounds the input, if the weight is in a format.
        rounding_text: the mode and the format of this rounding as a text, since operators of traced programs take no
            formats; None if it has no text, "floats" for no rounding, "" with a quantized weight.
        bias: float32 of shape (outputs,), or None.
        activations: the integers of x.
        rows: whether each row of x has a range of its own, such as a token; else all of x has one.
        input_range: [qmin, qmax, rows] of other than the default activations, which state_dicts have then.
        layer_name: the layer's path in a model, for error messages; `quantize_dynamic` writes it.
    """

    bias: torch.Tensor | None
    layer_name, rows = "", False
    takes_rows: ClassVar[bool] = False  # of recurrent layers all rows of a call have one range, as torch's have

    def __init__(self, shape: tuple[int, int], bias_: bool = True, dtype: torch.dtype = torch.qint8) -> None:
        super().__init__()
        self.activations: AffineInteger = ACTIVATIONS
        if dtype is torch.float16:
            self.register_buffer("weight", torch.zeros(shape, dtype=torch.float16))
        else:
            self.weight = QuantizedWeight(empty_weight(shape, torch.qint8 if dtype is None else dtype))
        self.register_buffer("bias", torch.zeros(shape[0]) if bias_ else None)
        self.rounding: torch.nn.Module = torch.nn.Identity()
        self.rounding_text: str | None = "floats" if dtype is torch.float16 else ""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The product of a float tensor of shape (..., features), in its dtype, or autocast's.

        Raises:
            TypeError: if input is not a tensor of floats.
            ValueError: if its shape does not fit.
        """
        x = input.numbers() if isinstance(input, Weight) else input  # of code that calls it with a layer's weight
        return converted(self.product(x), result_dtype(x, x.dtype))

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """The product in float32."""
        kernel = self.kernel()
        result = None if kernel is None else kernel(x)
        if result is not None:
            return result
        weight: Any = self.weight if isinstance(self.weight, torch.Tensor) else self.weight()
        if isinstance(x, QTensor):
            raise TypeError(
                f"{layer_name(self)}: input is a QTensor; allowed is a tensor of floats: insert a DeQuantStub before it"
            )
        checked(self, check_input, x, Names)
        if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
            shape = tuple(x.shape)
            raise ValueError(f"{layer_name(self)}: input has shape {shape}; allowed is (..., {weight.shape[1]})")
        if isinstance(weight, torch.Tensor):
            rounded = self.rounding(converted(x, torch.float32))
            return torch.nn.functional.linear(rounded, weight.to(torch.float32), in_float32(self.bias))
        return multiplied(x, weight, in_float32(self.bias), self.activations, self.rows)

    def kernel(self) -> DynamicKernel | None:
        """The product as one call of C; None without such a kernel."""
        weight: Any = self.weight
        if type(weight) is not QuantizedWeight or weight.is_packed or torch.compiler.is_dynamo_compiling():
            return None
        bias, form, rows = self.bias, self.activations, self.rows
        tensors = weight.int_repr, weight.scale, weight.zero_point
        return self.kept(
            tensors if bias is None else (*tensors, bias),
            (form, rows),
            lambda: kernel_of(weight(), in_float32(bias), form, rows),
        )

    def extra_repr(self) -> str:
        if isinstance(self.weight, torch.Tensor):
            return "float16 weight"
        return f"activations={self.activations}{', rows=True' if self.rows else ''}"

    def set_range(self, activations: AffineInteger, rows: bool) -> None:
        """Sets what `activations` and `rows` say; state_dicts of other than the default have it as well."""
        self.activations, self.rows = activations, rows
        if (activations, rows) == (ACTIVATIONS, False):
            if hasattr(self, "input_range"):
                del self.input_range
        else:
            values = torch.tensor([activations.qmin, activations.qmax, rows], dtype=torch.int32)
            self.register_buffer("input_range", values.to(next(self.buffers()).device))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Loads the range of the layer that was saved, or the default."""
        found = state_dict.get(f"{prefix}input_range")
        if found is None:
            if any(name.startswith(f"{prefix}weight") for name in state_dict):  # else it is that of other layers alone
                self.set_range(ACTIVATIONS, False)
        elif not found.is_meta:
            low, high, rows = found.tolist()
            self.set_range(AffineInteger(low, high), bool(rows))
        super()._load_from_state_dict(state_dict, prefix, *others)

    def store(self, owner: Any, weight: torch.Tensor, bias: torch.Tensor | None, dtype: Any) -> None:
        """Stores a float weight and bias, quantized by their owner's settings; dtype is a result of `dtype_of`."""
        numbers = weight.detach().to(torch.float32)
        if dtype is torch.float16:
            largest = torch.finfo(torch.float16).max
            self.weight, self.rounding_text = numbers.clamp(-largest, largest).to(torch.float16), "floats"
        elif dtype is None:
            self.weight = weight_module(weight_maker(owner), owner, weight.detach())
            self.rounding = product_rounding(owner)
            self.rounding_text = _text(self.rounding)
        else:
            self.weight, self.rounding_text = QuantizedWeight(weight_of(owner, numbers), weight.dtype), ""
            activations, rows = input_range(owner)
            self.set_range(activations, rows and self.takes_rows)
        self.bias = None if bias is None else bias.detach().to(torch.float32).clone()


def input_range(owner: Any) -> tuple[AffineInteger, bool]:
    """The integers of a layer's input, and whether each row has a range of its own, as its settings say."""
    settings = getattr(owner, "qconfig", None)
    observer = settings.activation() if isinstance(settings, QConfigDynamic) else None
    if not isinstance(observer, RangeObserver):
        return ACTIVATIONS, False
    return observer.rule.form, hasattr(observer, "ch_axis")


def _text(rounding: torch.nn.Module) -> str | None:
    """A rounding of floats as a text; None if it draws random bits, or has a state."""
    if isinstance(rounding, torch.nn.Identity):
        return "floats"
    if not isinstance(rounding, Quantizer):
        return None
    quantization = rounding.quantization
    mode, number = quantization.forward_rounding, quantization.forward_number
    if number is None or mode.stochastic or quantization.history is not None:
        return None
    return f"{mode.value} {number.text}"


def multiplied(
    x: torch.Tensor, weight: QTensor, bias: torch.Tensor | None, activations: AffineInteger, rows: bool = False
) -> torch.Tensor:
    """The law of `DynamicProduct` with a quantized weight, operation by operation."""
    if x.numel() == 0:
        return x.new_zeros((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)
    matrix = converted(x.detach(), torch.float32).reshape(-1, x.shape[-1])
    if exported.is_wanted():
        dtype = sums_dtype(activations, weight, weight.shape[1])
        return exported.dynamic(matrix, weight, bias, activations, dtype, rows).reshape(*x.shape[:-1], weight.shape[0])
    empty = partial(torch.empty, (matrix.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    result = law(_multiplied, (matrix, weight, bias), activations, rows, empty=empty)
    return result.reshape(*x.shape[:-1], weight.shape[0])


def _multiplied(
    matrix: torch.Tensor, weight: QTensor, bias: torch.Tensor | None, activations: AffineInteger, rows: bool
) -> torch.Tensor:
    q, qparams = recurrent.quantize_dynamic(Names, matrix, activations, rows)
    values = q.to(getattr(torch, activations.storage))
    if rows:
        sums = _sums_of_rows(values, qparams.zero_point, activations, weight)
    else:
        whole = QParams(torch.ones_like(qparams.scale), qparams.zero_point)  # a scale may be NaN
        sums = sums_of_products(QTensor(values, whole, activations), weight)
    return recurrent.dynamic_output(Names, sums, qparams.scale, weight.qparams.scale, bias)


def _sums_of_rows(values: torch.Tensor, zeros: torch.Tensor, form: AffineInteger, weight: QTensor) -> torch.Tensor:
    """The exact sums of (x - zero point of its row) * (w - its zero point)."""
    # Sums in float32 are exact only for integers that int8 holds: those without a sign are taken as x - 128.
    form, middle = (UINT8, 128) if form.storage == "uint8" else (form, 0)
    one = QParams(torch.ones((), device=values.device), torch.full_like(zeros[0], middle))
    dtype = sums_dtype(form, weight, weight.shape[1])
    sums = sums_of_products(QTensor(values, one, form), weight).to(dtype)
    return recurrent.sums_of_rows(sums, zeros.to(dtype) - middle, totals_of(weight).to(dtype))


def check_state(module: torch.nn.Module, name: str, state: Any, shape: tuple[int, ...]) -> None:
    """Raises unless a state is a tensor of a shape."""
    checked(module, check_type, name, state, torch.Tensor, f"a tensor of shape {shape}")
    if state.shape != shape:
        raise ValueError(f"{layer_name(module)}: {name} has shape {tuple(state.shape)}; allowed is {shape}")


def check_pair(module: torch.nn.Module, state: Any) -> None:
    """Raises TypeError unless the state of an LSTM is a pair, or None."""
    if state is not None and (not isinstance(state, (tuple, list)) or len(state) != 2):
        came = type(state).__name__
        raise TypeError(
            f"{layer_name(module)}: state is a {came}; allowed are None and a pair of tensors, (hidden, cell)"
        )


def dtype_of(module: Any) -> Any:
    """The weight's type in a layer's settings: torch.float16, or the observer's; None for a format."""
    fake = getattr(module, "weight_fake_quant", None)
    if fake is not None:
        return fake.dtype
    if getattr(module, "qconfig", None) is None:
        raise TypeError(f"{type(module).__name__} has no qconfig; allowed is a layer with one: default_dynamic_qconfig")
    maker = weight_maker(module)
    if rounds(maker) or isinstance(made := module.qconfig.activation(), Quantizer) or getattr(made, "number", None):
        return None
    return maker.dtype


def product_rounding(module: Any) -> torch.nn.Module:
    """The module that rounds a product's input to the format of a layer's settings, with a new scale at each call."""
    made = module.qconfig.activation()
    if isinstance(made, FakeQuantize) and made.number is not None:
        return Quantizer(with_scale(made.number), forward_rounding="nearest")
    if not rounds(made):
        raise TypeError(
            f"qconfig.activation makes {type(made).__name__} and qconfig.weight a format; allowed are a format or None "
            "as activation, or integers for both (QConfigDynamic(weight=MinMaxObserver.with_args(...)))"
        )
    return made


class Linear(DynamicProduct):
    """A float linear layer with a quantized weight; the input is quantized by its own range (`DynamicProduct`).

    Args:
        in_features, out_features: sizes of input and result.
        bias_: whether there is a bias.
        dtype: of the weight: torch.qint8, an `AffineInteger` of up to 16 bits, or torch.float16.

    Example:
        >>> from qtorch.quantization import default_dynamic_qconfig
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(layer.weight)
        >>> layer.qconfig = default_dynamic_qconfig
        >>> Linear.from_float(layer)(torch.tensor([[1.0, 0.0]]))
        tensor([[0.9961]])
    """

    takes_rows = True

    def __init__(
        self, in_features: int, out_features: int, bias_: bool = True, dtype: torch.dtype = torch.qint8
    ) -> None:
        check_flag("bias_", bias_)
        self.in_features = check_size("in_features", in_features)
        self.out_features = check_size("out_features", out_features)
        super().__init__((out_features, in_features), bias_, dtype)

    @classmethod
    def from_float(cls, mod: torch.nn.Linear) -> Linear:
        """The dynamic layer of a float layer with `qconfig` or `weight_fake_quant`; TypeError if it has neither."""
        linear: Any = mod[0] if isinstance(mod, torch.nn.Sequential) else mod
        weight, bias = float_parameters(mod)
        dtype = dtype_of(mod)
        layer = cls(linear.in_features, linear.out_features, bias is not None, dtype)
        layer.store(mod, weight, bias, dtype)
        return layer
