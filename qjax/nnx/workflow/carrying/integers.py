"""Integers of converted models: layers of `qtorch.nn.quantized` and those of `qjax.nnx.quantized`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.affine import UINT8, AffineInteger, QParams
from qcore.affine.checkpoint import numbers_of
from qcore.arguments import quoted
from qjax.nnx import quantized
from qjax.nnx.activations import Activation, PReLU
from qjax.nnx.intrinsic import Fused, LinearReLU
from qjax.nnx.layouts import torch_weight
from qjax.nnx.quantized import dynamic
from qjax.nnx.recurrent import Recurrent
from qjax.nnx.rounded import RoundedLayer
from qjax.nnx.workflow.carrying.entries import Entries, check_range, parameters_from, weight_from
from qjax.nnx.workflow.carrying.rounded import (
    arrays_of_rounded,
    embedding_from,
    from_rounded,
    has_numbers,
    numbers_from,
)
from qjax.nnx.workflow.layers import NORMS, WEIGHTED, why_float
from qjax.nnx.workflow.observing import FloatFunctional
from qjax.nnx.workflow.steps.dynamic import parts_of, why_not_dynamic, with_cell
from qjax.nnx.workflow.stubs import DeQuantStub, QuantStub
from qjax.quantization import QConfig
from qjax.quantization.qconfig import input_rounding, output_form, range_observer

INTEGERS = (
    *(RoundedLayer, quantized.Quantized, quantized.Embed),
    *(dynamic.Linear, dynamic.Cell, dynamic.RNN, dynamic.Recurrent),
)


def from_integers(name: str, module: Any, entries: Entries, settings: Any) -> Any:
    """The quantized successor of a float module, where there are its integers, or None."""
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
    """True if a name is of the zero point of a layer's result, not of a weight or of fake quantization."""
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
    weight, bias, mean, var = map(entries.maybe, ("weight", "bias", "running_mean", "running_var"))
    if isinstance(layer, nnx.BatchNorm):
        return quantized.BatchNorm(weight, bias, mean, var, layer.epsilon, output, form, relu)
    more = () if isinstance(layer, nnx.LayerNorm) else (getattr(layer, "num_groups", None),)
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
    """A dynamic product with a weight of a shape in torch, or None where entries have no such weight."""
    rounding = None
    if has_numbers(entries.of("weight")):
        weight: Any = numbers_from(shape, entries.of("weight"), settings)
        rounding = input_rounding(settings)
    elif _dtype(entries, "weight") == np.float16 and _dtype(entries, "bias") != np.float16:  # else all are halves
        weight = jnp.asarray(entries.take("weight"))
    elif "weight.packed" in entries or "weight.int_repr" in entries:
        weight = weight_from(shape, entries.of("weight"), None)
    else:
        return None
    made = dynamic.Linear(weight, entries.maybe("bias"), relu, rounding)
    made.layer_name = name
    return made


def _dtype(entries: Entries, name: str) -> Any:
    whole = entries.prefix + name
    return numbers_of(f"tensors[{quoted(whole)}]", entries.tensors[whole]).dtype if name in entries else None


def fill_integers(module: Any, entries: Entries) -> None:
    """Takes the arrays of a layer that is quantized already.

    Raises:
        ValueError: if one is missing, has another shape or dtype, or has integers out of range.
    """
    variables = _variables(module)
    for name, own in arrays_of_integers(module).items():
        array, shown = entries.take(name, size=own.size), f"tensors[{quoted(entries.prefix + name)}]"
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
    """The variables of a quantized layer by PyTorch's names, which are its own but in an RNN."""
    if isinstance(module, dynamic.RNN):
        return {name.replace("h.", "h.0.", 1): one for name, one in _variables(module.cell).items()}  # of ih and hh
    flat = nnx.to_flat_state(nnx.state(module, quantized.IntegerVariable))
    return arrays_of_rounded(module, {".".join(map(str, path)): variable for path, variable in flat})
