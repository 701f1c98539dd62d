"""Integers of converted models: layers of `qtorch.nn.quantized` and those of `qjax.nnx.quantized`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qjax.nnx import quantized
from qjax.nnx.activations import Activation
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantized import dynamic
from qjax.nnx.workflow.carrying.entries import Entries
from qjax.nnx.workflow.layers import NORMS, WEIGHTED, why_float
from qjax.nnx.workflow.observing import FloatFunctional
from qjax.nnx.workflow.steps.dynamic import parts_of, why_not_dynamic, with_cell
from qjax.nnx.workflow.stubs import DeQuantStub, QuantStub
from qjax.quantization import QConfig, QTensor
from qjax.quantization.integer.packed import unpacked
from qjax.quantization.qconfig import output_form, range_observer

_INT4 = AffineInteger.of_width(4)
_BY_DTYPE = {"int8": INT8, "uint8": UINT8, "int16": AffineInteger.of_width(16), "uint16": AffineInteger(0, 65535)}


def from_integers(name: str, module: Any, entries: Entries, settings: QConfig | None) -> Any:
    """The quantized successor of a float module, where there are its integers, or None."""
    if isinstance(module, DeQuantStub):
        return quantized.DeQuantize() if any(name.endswith("zero_point") for name in entries.tensors) else None
    form = UINT8 if settings is None else output_form(settings.activation)
    if "scale" in entries and not why_float(module):
        return _static(module, entries, settings, form)
    if not why_not_dynamic(module):
        return _dynamic(name, module, entries)
    return None


def _static(module: Any, entries: Entries, settings: QConfig | None, form: AffineInteger) -> Any:
    output = _parameters(entries)
    if isinstance(module, (QuantStub, FloatFunctional)):
        kind = quantized.Quantize if isinstance(module, QuantStub) else quantized.QFunctional
        return kind(output, form)
    if isinstance(module, Activation):
        return quantized.Activation(module.law, output, form, **dict(module.settings))
    layer: Any = module.layer if isinstance(module, Fused) else module
    relu = isinstance(module, Fused) and module.has_relu
    if type(layer) in NORMS:
        return _norm(layer, entries, output, form, relu)
    weight = _weight(layer.kernel, entries.of("weight"), None if settings is None else _form(settings.weight))
    return WEIGHTED[type(layer)].of(layer, weight, entries.maybe("bias"), output, form, relu)


def _norm(layer: Any, entries: Entries, output: QParams, form: AffineInteger, relu: bool) -> Any:
    weight, bias, mean, var = map(entries.maybe, ("weight", "bias", "running_mean", "running_var"))
    if isinstance(layer, nnx.BatchNorm):
        return quantized.BatchNorm(weight, bias, mean, var, layer.epsilon, output, form, relu)
    more = () if isinstance(layer, nnx.LayerNorm) else (getattr(layer, "num_groups", None),)
    return NORMS[type(layer)](weight, bias, layer.epsilon, output, form, *more)


def _dynamic(name: str, module: Any, entries: Entries) -> Any:
    if isinstance(module, nnx.RNN):
        cell = _cell(name, module.cell, entries, ("ih.0", "hh.0"))
        return None if cell is None else with_cell(name, module, cell)
    if isinstance(module, nnx.Linear):
        return _product(name, module.kernel, entries)
    return _cell(name, module, entries, ("ih", "hh"))


def _cell(name: str, cell: Any, entries: Entries, sides: tuple[str, str]) -> Any:
    make, weights = parts_of(cell)
    products = []
    for side, (weight, _) in zip(sides, weights, strict=True):
        products.append(_product(name, jax.ShapeDtypeStruct(weight.shape[::-1], weight.dtype), entries.of(side)))
    return None if None in products else make(*products)


def _product(name: str, kernel: Any, entries: Entries) -> Any:
    """A dynamic product for a kernel of flax's layout, or None where entries have no such weight."""
    if _dtype(entries, "weight") == np.float16 and _dtype(entries, "bias") != np.float16:  # else all are halves
        weight: Any = jnp.asarray(entries.take("weight"))
    elif "weight.packed" in entries or "weight.int_repr" in entries:
        weight = _weight(kernel, entries.of("weight"), None)
    else:
        return None
    made = dynamic.Linear(weight, entries.maybe("bias"))
    made.layer_name = name
    return made


def _dtype(entries: Entries, name: str) -> Any:
    return np.asarray(entries.tensors[entries.prefix + name]).dtype if name in entries else None


def _weight(kernel: Any, entries: Entries, form: AffineInteger | None) -> QTensor:
    shape = jax.eval_shape(lambda kernel: jnp.moveaxis(kernel, (-1, -2), (0, 1)), kernel).shape
    scale, zero_point = entries.take("scale"), entries.take("zero_point")
    qparams = QParams(jnp.asarray(scale), jnp.asarray(zero_point), 0 if scale.ndim else None)
    if "packed" in entries:
        form = _INT4 if form is None else form
        values = unpacked(jnp.asarray(entries.take("packed")), form, shape)
    else:
        values = jnp.asarray(entries.take("int_repr"))
        form = _BY_DTYPE[values.dtype.name] if form is None else form
    if values.shape != shape:
        raise ValueError(f"weight has shape {values.shape}; allowed is {shape}, as the model's")
    return QTensor(values, qparams, form)


def _form(description: Any) -> AffineInteger:
    return range_observer(description).form


def _parameters(entries: Entries) -> QParams:
    scale, zero_point = (entries.take(name).reshape(()) for name in ("scale", "zero_point"))
    return QParams(jnp.asarray(scale, jnp.float32), jnp.asarray(zero_point, jnp.int32))


def arrays_of_integers(module: Any) -> dict[str, Any]:
    """The arrays of a quantized layer by PyTorch's names, which are its own but in an RNN."""
    if isinstance(module, dynamic.RNN):
        return {
            name.replace("h.", "h.0.", 1): array  # of ih and hh
            for name, array in arrays_of_integers(module.cell).items()
        }
    flat = nnx.to_flat_state(nnx.state(module, quantized.IntegerVariable))
    arrays = {".".join(map(str, path)): np.asarray(variable.get_value()) for path, variable in flat}
    if isinstance(module, quantized.BatchNorm):
        ones = np.ones_like(arrays["running_mean"])
        arrays = {"weight": ones, "bias": 0 * ones} | arrays
    return arrays
