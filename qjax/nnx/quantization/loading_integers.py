"""Quantized layers from the integers and codes of a `state_dict`, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qcore.arguments import numbers_of, quoted
from qjax.nnx import quantized
from qjax.nnx.activations import Activation, PReLU
from qjax.nnx.intrinsic import Fused, LinearReLU
from qjax.nnx.layouts import torch_weight
from qjax.nnx.quantization.observing import FloatFunctional, Observed, Observer
from qjax.nnx.quantization.one_call import with_cell
from qjax.nnx.quantization.quantization_mappings import NORMS, WEIGHTED, parts_of
from qjax.nnx.quantization.reasons import why_float, why_not_dynamic
from qjax.nnx.quantization.reporting import rounding_of
from qjax.nnx.quantization.rounding import has_weight, rounded_layer
from qjax.nnx.quantization.stubs import DeQuantStub, QuantStub
from qjax.nnx.quantized import dynamic
from qjax.nnx.quantized.weights import QuantizedWeight
from qjax.nnx.recurrent import Recurrent
from qjax.nnx.rounded import KEEPING_CODE, RoundedLayer, ScaledRounding
from qjax.quantization import FakeQuantize, QConfig, QConfigDynamic, QTensor
from qjax.quantization.integer import unpacked
from qjax.quantization.qconfig import input_rounding, output_form, range_observer
from qjax.quantization.rounding import CodedArray, FormatRounding, rounds_to_format

_INT4 = AffineInteger.of_width(4)
_BY_DTYPE = {"int8": INT8, "uint8": UINT8, "int16": AffineInteger.of_width(16), "uint16": AffineInteger(0, 65535)}
_IGNORED = "num_batches_tracked", "eps"


class Entries:
    """The arrays of a `state_dict` below a name.

    Args:
        tensors: all arrays by their full names.
        prefix: the prefix of the names, with its dot.
        used: the full names of arrays that were taken.
    """

    def __init__(self, tensors: Mapping[str, Any], prefix: str = "", used: set[str] | None = None) -> None:
        self.tensors, self.prefix = tensors, prefix
        self.used = set() if used is None else used

    def of(self, name: str) -> Entries:
        """The entries below a name."""
        return Entries(self.tensors, f"{self.prefix}{name}." if name else self.prefix, self.used)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def read(self, name: str, ndim: int | None = None, size: int | None = None) -> np.ndarray:
        """An array of real numbers, which counts as used.

        Raises:
            ValueError: if it is missing or something else, or has another number of dimensions or elements.
        """
        whole = self.prefix + name
        if name not in self:
            raise ValueError(f"tensors has no {quoted(whole)}")
        self.used.add(whole)
        array = numbers_of(f"tensors[{quoted(whole)}]", self.tensors[whole])
        if ndim not in (None, array.ndim):
            raise ValueError(f"tensors[{quoted(whole)}] has shape {array.shape}; allowed are {ndim} dimensions")
        if size not in (None, array.size):
            raise ValueError(f"tensors[{quoted(whole)}] has shape {array.shape}; allowed are {size} elements")
        return array

    def maybe(self, name: str, ndim: int | None = None) -> np.ndarray | None:
        """An array, or None."""
        return self.read(name, ndim) if name in self else None

    def check_all_used(self) -> None:
        """Raises ValueError if an array belongs to no module."""
        left = [name for name in self.tensors if name not in self.used and name.rpartition(".")[2] not in _IGNORED]
        if left:
            raise ValueError(
                f"tensors has {', '.join(sorted(left)[:8])}, for which model has no module of this name and kind"
            )


def weight_from(shape: tuple[int, ...], entries: Entries, form: AffineInteger | None, channels: int = 0) -> QTensor:
    """The integer weight of a shape in torch. Without a form it has all integers of its dtype, or 4 bits if packed.

    `channels` is the dimension of outputs in torch: 1 for transposed convolutions.
    """
    scale, zero_point = entries.read("scale"), entries.read("zero_point")
    qparams = QParams(jnp.asarray(scale), jnp.asarray(zero_point), channels if scale.ndim else None)
    if "packed" in entries:
        form = _INT4 if form is None else form
        values = unpacked(jnp.asarray(entries.read("packed")), form, shape)
    else:
        values = jnp.asarray(entries.read("int_repr"))
        allowed = list(_BY_DTYPE) if form is None else [form.storage]
        if values.dtype.name not in allowed:
            raise ValueError(f"{entries.prefix}int_repr has dtype {values.dtype}; allowed is {' or '.join(allowed)}")
        form = _BY_DTYPE[values.dtype.name] if form is None else form
    if values.shape != shape:
        raise ValueError(
            f"{quoted(entries.prefix[:-1])} of tensors has shape {values.shape}; allowed is {shape}, as the model's"
        )
    weight = QTensor(values, qparams, form)
    try:
        weight.check()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{quoted(entries.prefix[:-1])} of tensors: {error}") from error
    check_range(values, form, entries.prefix[:-1])
    return weight


def check_range(values: jax.Array, form: AffineInteger, name: str) -> None:
    """Raises ValueError if the integers of a weight are out of range."""
    host = np.asarray(values)  # XLA would compile each comparison for each shape
    if ((host < form.qmin) | (host > form.qmax)).any():
        raise ValueError(f"{quoted(name)} of tensors has integers outside of {form}; allowed are none")


def parameters_from(entries: Entries) -> QParams:
    """The parameters of a result."""
    scale, zero_point = (entries.read(name, size=1).reshape(()) for name in ("scale", "zero_point"))
    if zero_point.dtype.kind not in "iu":
        raise ValueError(f"{entries.prefix}zero_point is {zero_point.dtype}; allowed are integers")
    return QParams(jnp.asarray(scale, jnp.float32), jnp.asarray(zero_point, jnp.int32))


INTEGERS = (
    RoundedLayer,
    quantized.Quantized,
    quantized.Embed,
    dynamic.Linear,
    dynamic.Cell,
    dynamic.RNN,
    dynamic.Recurrent,
)


def from_integers(name: str, module: Any, entries: Entries, settings: Any) -> Any:
    """The quantized form of a float module if entries hold its integers, else None."""
    if isinstance(module, DeQuantStub):
        return quantized.DeQuantize() if _has_quantized_results(entries.tensors) else None
    if type(module) is nnx.Embed:
        return embedding_from(module, entries, settings)
    if not why_float(module) and (made := from_rounded(module, entries, settings)) is not None:
        return made
    if "scale" in entries and not why_float(module):
        form = UINT8 if settings is None else output_form(settings.activation)
        return _static(module, entries, settings, form)
    if not why_not_dynamic(module):
        return _dynamic(name, module, entries, settings)
    return None


def _has_quantized_results(names: Iterable[str]) -> bool:
    """True if a name belongs to the zero point of a layer's result, not of a weight or of fake quantization."""
    last = [name.split(".")[-2:] for name in names]
    others = "weight", "integers", "activation_post_process", "weight_fake_quant"
    return any(two[-1] == "zero_point" and two[0] not in others for two in last)


def _static(module: Any, entries: Entries, settings: QConfig | None, form: AffineInteger) -> Any:
    output = parameters_from(entries)
    if isinstance(module, (QuantStub, FloatFunctional)):
        kind = quantized.Quantize if isinstance(module, QuantStub) else quantized.QFunctional
        return kind(output, form)
    if isinstance(module, Activation):
        return quantized.Activation(module.law, output, form, **dict(module.settings))
    layer: Any = module.layer if isinstance(module, Fused) else module
    relu = isinstance(module, Fused) and module.has_relu
    if type(layer) in NORMS:
        return _norm(layer, entries, output, form, relu)
    form_of_weight = None if settings is None else range_observer(settings.weight).form
    if isinstance(layer, PReLU):
        return quantized.PReLU(weight_from(layer.weight.shape, entries.of("weight"), form_of_weight), output, form)
    shape = torch_weight(layer).shape
    if isinstance(layer, nnx.ConvTranspose):
        weight = weight_from(shape, entries.of("weight"), form_of_weight, channels=1)
        geometry = layer.strides, layer.padding, layer.kernel_dilation
        return quantized.ConvTranspose(weight, entries.maybe("bias"), output, form, *geometry)
    weight = weight_from(shape, entries.of("weight"), form_of_weight)
    return WEIGHTED[type(layer)].of(layer, weight, entries.maybe("bias"), output, form, relu)


def _norm(layer: Any, entries: Entries, output: QParams, form: AffineInteger, relu: bool) -> Any:
    given: list[Any] = [entries.maybe(part) for part in ("weight", "bias", "running_mean", "running_var")]
    weight, bias, mean, var = given
    if isinstance(layer, nnx.BatchNorm):
        return quantized.BatchNorm(weight, bias, mean, var, layer.epsilon, output, form, relu)
    more = (layer.num_groups,) if isinstance(layer, nnx.GroupNorm) else ()
    return NORMS[type(layer)](weight, bias, layer.epsilon, output, form, *more)


def _dynamic(name: str, module: Any, entries: Entries, settings: Any) -> Any:
    if isinstance(module, nnx.RNN):
        cell = _cell(name, module.cell, entries, settings, ("ih.0", "hh.0"))
        return None if cell is None else with_cell(name, module, cell)
    if isinstance(module, (nnx.Linear, LinearReLU)):
        relu = isinstance(module, LinearReLU)
        shape = torch_weight(module.layer if relu else module).shape
        return _product(name, shape, entries, settings, relu)
    if isinstance(module, Recurrent):
        count = len(module.suffixes)
        sides = [f"{side}.{i}" for i in range(count) for side in ("ih", "hh")]
        return _cell(name, module, entries, settings, [*sides, *(f"hr.{i}" for i in range(count) if module.proj_size)])
    return _cell(name, module, entries, settings, ("ih", "hh"))


def _cell(name: str, cell: Any, entries: Entries, settings: Any, sides: Sequence[str]) -> Any:
    make, weights = parts_of(cell)
    products = [
        _product(name, weight.shape, entries.of(side), settings)
        for side, (weight, _) in zip(sides, weights, strict=True)
    ]
    return None if None in products else make(*products)


def _product(name: str, shape: tuple[int, ...], entries: Entries, settings: Any, relu: bool = False) -> Any:
    """A dynamic product with a weight of a shape in torch, or None if entries have no such weight."""
    rounding = None
    if has_numbers(entries.of("weight")):
        weight: Any = numbers_from(shape, entries.of("weight"), settings)
        rounding = input_rounding(settings)
    elif _dtype(entries, "weight") == np.float16 and _dtype(entries, "bias") != np.float16:  # else all are halves
        weight = jnp.asarray(entries.read("weight"))
    elif "weight.packed" in entries or "weight.int_repr" in entries:
        weight = weight_from(shape, entries.of("weight"), None)
    else:
        return None
    made = dynamic.Linear(weight, entries.maybe("bias"), relu, rounding)
    if "input_range" in entries:
        low, high, rows = np.asarray(entries.read("input_range")).tolist()
        made.set_range(AffineInteger(low, high), bool(rows))
    made.layer_name = name
    return made


def _dtype(entries: Entries, name: str) -> Any:
    whole = entries.prefix + name
    return numbers_of(f"tensors[{quoted(whole)}]", entries.tensors[whole]).dtype if name in entries else None


def fill_integers(module: Any, entries: Entries) -> None:
    """Fills the arrays of a layer that is quantized already."""
    variables = _variables(module)
    for name, own in arrays_of_integers(module).items():
        array, shown = entries.read(name, size=own.size), f"tensors[{quoted(entries.prefix + name)}]"
        if array.dtype != own.dtype or (own.ndim > 1 and array.shape != own.shape):
            raise ValueError(
                f"{shown} is {array.dtype} of shape {array.shape}; allowed is {own.dtype} of shape {own.shape}"
            )
        if name in variables:
            variables[name].set_value(jnp.asarray(array).reshape(own.shape))
        elif (array != own).any():  # a batch norm without them
            raise ValueError(f"{shown} has other numbers than {own[0]}; allowed are none, as the layer has none")
    for _, part in nnx.iter_modules(module):
        if isinstance(part, quantized.QuantizedWeight):
            check_range(part().values, part.form, entries.prefix[:-1])


def arrays_of_integers(module: Any) -> dict[str, Any]:
    """The arrays of a quantized layer by PyTorch's names."""
    arrays = {name: np.asarray(variable.get_value()) for name, variable in _variables(module).items()}
    if isinstance(module, quantized.BatchNorm):
        ones = np.ones_like(arrays["running_mean"])
        arrays = {"weight": ones, "bias": 0 * ones} | arrays
    return arrays


def _variables(module: Any) -> dict[str, nnx.Variable]:
    """The variables of a quantized layer by PyTorch's names, which differ from its own only in an RNN."""
    if isinstance(module, dynamic.RNN):
        return {name.replace("h.", "h.0.", 1): one for name, one in _variables(module.cell).items()}  # of ih and hh
    flat = nnx.to_flat_state(nnx.state(module, quantized.IntegerVariable))
    return arrays_of_rounded(module, {".".join(map(str, path)): variable for path, variable in flat})


Settings = QConfig | QConfigDynamic
_PARTS = "codes", "values", "integers.scale"
# PyTorch's names of the weight and of the result's rounding, in qtorch's layers and in layers that keep their class.
_OWN, _KEPT = ("weight", "output"), ("rounded_weight", "activation_post_process")


def from_rounded(module: Any, entries: Entries, settings: Settings | None) -> RoundedLayer | None:
    """The rounded form of a float module if entries hold its codes, else None. The settings give the format."""
    layer = module.layer if isinstance(module, Fused) else module
    weight, output = (entries.of(name) for name in (_KEPT if isinstance(layer, KEEPING_CODE) else _OWN))
    if not has_weight(module) or not has_numbers(weight) or _rounds_input(settings, output):
        return None
    numbers, bias = numbers_from(torch_weight(layer).shape, weight, settings), entries.maybe("bias")
    activation: Any = getattr(settings, "activation", None)
    if isinstance(activation, FormatRounding):
        rounds: Any = Observer(activation)
    elif rounds_to_format(activation):
        rounds = _scaled(activation, output)
    else:
        rounds = quantized.Quantize(parameters_from(output), output_form(activation))
    return rounded_layer(module, layer, numbers, None if bias is None else jnp.asarray(bias), rounds)


def _rounds_input(settings: Settings | None, output: Entries) -> bool:
    """True for settings of a product that rounds its inputs and not its result, which then has no scale."""
    rounding = getattr(settings, "activation", None)
    if isinstance(settings, QConfigDynamic):
        return getattr(rounding, "number", None) is not None
    return isinstance(rounding, FakeQuantize) and "scale" not in output


def embedding_from(module: nnx.Embed, entries: Entries, settings: Settings | None) -> quantized.Embed | None:
    """The table of a float module in integers or in a format if entries hold its arrays, else None."""
    shape = module.embedding.shape
    if has_numbers(rounded := entries.of(_KEPT[0])):
        return quantized.Embed(numbers_from(shape, rounded, settings), module.dtype)
    if "weight.scale" not in entries:
        return None
    form = None if settings is None else range_observer(settings.weight).form
    return quantized.Embed(weight_from(shape, entries.of("weight"), form), module.dtype)


def has_numbers(entries: Entries) -> bool:
    """True if entries hold a weight in a format, or a weight whose activations are in a format."""
    return any(part in entries for part in _PARTS)


def numbers_from(shape: tuple[int, ...], entries: Entries, settings: Settings | None) -> Any:
    """A weight of a shape, in the form that `rounded_weight` takes."""
    if settings is None:
        raise ValueError("its weight has codes of a format; allowed is a qconfig, which says of which")
    description = settings.weight
    if "integers.scale" in entries:
        return weight_from(shape, entries.of("integers"), range_observer(description).form)
    if "values" in entries:
        return jnp.asarray(entries.read("values", size=prod(shape))).reshape(shape)
    if not isinstance(description, FormatRounding) or description.number is None:
        raise ValueError(f"its weight has codes of a format, and its settings {description}; allowed is the format")
    scales = [name for name in (f"scales{index}" for index in range(8)) if name in entries]
    arrays = [jnp.asarray(entries.read(name)) for name in ("codes", *scales)]
    return CodedArray(arrays[0], tuple(arrays[1:]), description.number, shape)


def arrays_of_rounded(module: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Renames the arrays of a quantized module from its own names to PyTorch's."""
    kept = isinstance(module, RoundedLayer) and isinstance(module.layer, KEEPING_CODE)
    if not kept and not (isinstance(module, quantized.Embed) and not isinstance(module.weight, QuantizedWeight)):
        return arrays
    names = dict(zip(_OWN, _KEPT, strict=True))
    parts = ((*name.partition("."), array) for name, array in arrays.items())
    return {names.get(first, first) + dot + rest: array for first, dot, rest, array in parts}


def _scaled(description: Any, entries: Entries) -> ScaledRounding:
    """The rounding of results with the scale in entries."""
    return ScaledRounding(description.number, jnp.asarray(entries.read("scale")), description.observer.axis or 0)


def rounds_results(names: Iterable[str]) -> bool:
    """True if a `state_dict` has a layer that stays in floats; then layers without arrays may round, too."""
    endings = tuple(f"{weight}.{part}" for weight in (_OWN[0], _KEPT[0]) for part in _PARTS)
    return any(f".{name}".endswith(tuple(f".{ending}" for ending in endings)) for name in names)


def with_rounding(module: Any, settings: QConfig, entries: Entries) -> Any:
    """A layer without a quantized weight, with results rounded by its settings."""
    if not rounds_to_format(settings.activation):
        return module
    made: Any = module if isinstance(module, FloatFunctional) else Observed(module, settings)
    made.qconfig = settings
    if isinstance(settings.activation, FormatRounding):
        made.activation_post_process = Observer(settings.activation)
    elif "activation_post_process.scale" in entries:
        made.activation_post_process = _scaled(settings.activation, entries.of("activation_post_process"))
    else:
        return module
    made.observed_by = rounding_of(settings.activation).name
    return made
