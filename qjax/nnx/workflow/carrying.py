"""Weights, statistics, observers and integers of PyTorch's models in models of flax, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.affine import INT8, UINT8, AffineInteger, QParams, checkpoint
from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantized.base import unpacked
from qjax.nnx.workflow.layers import WEIGHTED, flax_layout, is_whole, why_float
from qjax.nnx.workflow.observing import FloatFunctional, Observed, Observer
from qjax.nnx.workflow.steps.conversion import observer_name, output_form, range_observer
from qjax.nnx.workflow.steps.settings import settings_of
from qjax.nnx.workflow.steps.training import Trained
from qjax.nnx.workflow.stubs import DeQuantStub, QuantStub
from qjax.nnx.workflow.tree import check_model, rebuilt, shown
from qjax.quantization import QTensor

_INT4 = AffineInteger.of_width(4)
_IGNORED = "num_batches_tracked", "eps"
NAME = "activation_post_process"  # of observers


def from_torch(model: nnx.Module, tensors: Mapping[str, Any], qconfig: Any = None) -> nnx.Module:
    """A copy of a model with the arrays of the same model in PyTorch: floats, observers, or integers.

    Modules are found by their dotted names, in which a Sequential's places are "0", "1", ... as in PyTorch. Kernels are
    transposed. Where `tensors` has integers, as qtorch's `convert` leaves them, the layer becomes that of
    `qjax.nnx.quantized`, and gives the integers that it gives in PyTorch. Where it has the ranges of an observer,
    `model` must be prepared in the same way.

    Args:
        model: the float model, or a prepared one; it stays as it is.
        tensors: NumPy arrays by the names of a `state_dict`, say what `safetensors.numpy.load_file` returns.
        qconfig: the settings that the model had in PyTorch, as for `prepare`; they say which integers results and
            weights are. None for quint8 and qint8, and signed integers of 4 bits where two are in a byte.

    Returns:
        The model with these arrays.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an array is missing, has another shape, or is of no module.

    Example:
        >>> layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> from_torch(layer, {"weight": np.float32([[1, 2]]), "bias": np.float32([3])})(jnp.float32([1, 1]))
        Array([6.], dtype=float32)
    """
    check_model("model", model)
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors is a {type(tensors).__name__}; allowed is a mapping of names to arrays")
    entries = _Entries(tensors)
    settings = {} if qconfig is None else settings_of(model, qconfig)

    def change(name: str, module: nnx.Module) -> nnx.Module:
        try:
            return _carried(module, entries.of(name), settings.get(name), name)
        except ValueError as error:
            raise ValueError(f"{shown(name)}: {error}") from error

    made = rebuilt(model, change, is_whole)
    entries.check_all_used()
    return made


class _Entries:
    """Arrays by name, and which of them were used."""

    def __init__(self, tensors: Mapping[str, Any], prefix: str = "", used: set[str] | None = None) -> None:
        self.tensors, self.prefix = tensors, prefix
        self.used = set() if used is None else used

    def of(self, name: str) -> _Entries:
        """Those below a name."""
        return _Entries(self.tensors, f"{self.prefix}{name}." if name else self.prefix, self.used)

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def take(self, name: str) -> np.ndarray:
        """An array, which counts as used."""
        if name not in self:
            raise ValueError(f"tensors has no {self.prefix + name!r}")
        self.used.add(self.prefix + name)
        return np.asarray(self.tensors[self.prefix + name])

    def maybe(self, name: str) -> np.ndarray | None:
        """An array, or None."""
        return self.take(name) if name in self else None

    def check_all_used(self) -> None:
        """Raises ValueError if an array belongs to no module."""
        left = [name for name in self.tensors if name not in self.used and name.rpartition(".")[2] not in _IGNORED]
        if left:
            raise ValueError(
                f"tensors has {', '.join(sorted(left)[:8])}, for which model has no module of this name and kind"
            )


def _carried(module: nnx.Module, entries: _Entries, settings: Any, name: str) -> nnx.Module:
    if isinstance(module, Observed):
        _fill(module.module, entries)
        _fill_observer(module.activation_post_process, entries.of(NAME))
        if isinstance(module, Trained):
            _fill_observer(module.weight_fake_quant, entries.of("weight_fake_quant"))
        return module
    if isinstance(module, FloatFunctional) and module.activation_post_process is not None:
        _fill_observer(module.activation_post_process, entries.of(NAME))
        return module
    made = _integers(module, entries, settings)
    if made is None:
        _fill(module, entries)
        return module
    made.layer_name = name
    if settings is not None and not isinstance(made, quantized.DeQuantize):
        made.observed_by = observer_name(settings.activation)
    return made


def _integers(module: nnx.Module, entries: _Entries, settings: Any) -> Any:
    """The quantized successor of a float module, where there are its integers, or None."""
    if isinstance(module, DeQuantStub):
        return quantized.DeQuantize() if any(name.endswith("zero_point") for name in entries.tensors) else None
    form = UINT8 if settings is None else output_form(settings.activation)
    if isinstance(module, (QuantStub, FloatFunctional)) and "scale" in entries:
        kind = quantized.Quantize if isinstance(module, QuantStub) else quantized.QFunctional
        return kind(_parameters(entries), form)
    packed = "weight.packed" in entries
    if why_float(module) or not (packed or "weight.int_repr" in entries):
        return None
    default = _INT4 if packed else INT8
    layer: Any = module.layer if isinstance(module, Fused) else module
    relu = isinstance(module, Fused) and module.has_relu
    weight = _weight(layer, entries.of("weight"), default if settings is None else _form(settings.weight))
    return WEIGHTED[type(layer)].of(layer, weight, entries.maybe("bias"), _parameters(entries), form, relu)


def _weight(layer: Any, entries: _Entries, form: AffineInteger) -> Any:
    outputs_first = jax.eval_shape(lambda kernel: jnp.moveaxis(kernel, (-1, -2), (0, 1)), layer.kernel[...]).shape
    scale, zero_point = entries.take("scale"), entries.take("zero_point")
    qparams = QParams(jnp.asarray(scale), jnp.asarray(zero_point), 0 if scale.ndim else None)
    if "packed" in entries:
        values = unpacked(jnp.asarray(entries.take("packed")), form, outputs_first)
    else:
        values = jnp.asarray(entries.take("int_repr"))
    if values.shape != outputs_first:
        raise ValueError(f"weight has shape {values.shape}; allowed is {outputs_first}, as the model's")
    return QTensor(values, qparams, form)


def _form(description: Any) -> AffineInteger:
    return range_observer(description).form


def _parameters(entries: _Entries) -> QParams:
    scale, zero_point = (entries.take(name).reshape(()) for name in ("scale", "zero_point"))
    return QParams(jnp.asarray(scale, jnp.float32), jnp.asarray(zero_point, jnp.int32))


def _fill_observer(observer: Observer, entries: _Entries) -> None:
    """An observer's state; its arrays may have other shapes of as many elements."""
    state = checkpoint.restore(observer.state.get_value(), entries.tensors, entries.prefix[:-1])
    entries.used.update(name for name in entries.tensors if name.startswith(entries.prefix))
    observer.state.set_value(jax.tree.map(jnp.asarray, state))


# What PyTorch calls the variables of a float module, and how they change.
_Way = tuple[str, str, Callable[[Any], Any]]
_KERNEL: list[_Way] = [("kernel", "weight", flax_layout), ("bias", "bias", jnp.asarray)]
_NORM: list[_Way] = [("scale", "weight", jnp.asarray), ("bias", "bias", jnp.asarray)]
_STATISTICS: list[_Way] = [("mean", "running_mean", jnp.asarray), ("var", "running_var", jnp.asarray)]
_VARIABLES: dict[type[nnx.Module], list[_Way]] = {
    nnx.Linear: _KERNEL,
    nnx.Conv: _KERNEL,
    nnx.BatchNorm: _NORM + _STATISTICS,
    nnx.LayerNorm: _NORM,
    nnx.GroupNorm: _NORM,
    nnx.InstanceNorm: _NORM,
    nnx.Embed: [("embedding", "weight", jnp.asarray)],
}


def _fill(module: nnx.Module, entries: _Entries) -> None:
    if isinstance(module, Fused):  # PyTorch's is a Sequential, but in training one layer with a part `bn`
        apart = "0.weight" in entries
        _fill(module.layer, entries.of("0") if apart else entries)
        if module.bn is not None:
            _fill(module.bn, entries.of("1" if apart else "bn"))
        return
    for attribute, name, way in next((ways for kind, ways in _VARIABLES.items() if isinstance(module, kind)), []):
        variable = getattr(module, attribute)
        if variable is None:
            continue
        value = way(entries.take(name))
        if value.shape != variable.shape:
            raise ValueError(f"{name} becomes {attribute} of shape {value.shape}; allowed is {variable.shape}")
        variable.set_value(value.astype(variable.dtype))
