"""Conversion of prepared models to models that compute with integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine import AffineInteger, QParams
from qcore.names import is_in, shown
from qcore.workflow.settings import allowed_names, check_seen, warn_of_repeats
from qjax._models import all_names, check_model, modules_of, name_of, rebuilt
from qjax.nnx import quantized
from qjax.nnx.activations import Activation
from qjax.nnx.intrinsic import Fused
from qjax.nnx.layouts import bias_of, torch_layout, torch_weight
from qjax.nnx.quantization.fusion import folded_layer
from qjax.nnx.quantization.observing import FloatFunctional, Observed, Observer
from qjax.nnx.quantization.one_call import needs_no_observer, quantized_layer
from qjax.nnx.quantization.quantization_mappings import NORMS, UNTRAINED, WEIGHTED, keeps_children
from qjax.nnx.quantization.reporting import rounding_of
from qjax.nnx.quantization.rounding import (
    has_weight,
    quantized_weight,
    rounded_layer,
    rounding_output,
    stays_in_floats,
    take_attributes,
)
from qjax.nnx.quantization.stubs import DeQuantStub, QuantStub
from qjax.nnx.quantization.ties import tie, ties_of
from qjax.nnx.quantization.training import Trained, folded
from qjax.nnx.quantized.base import LEFT_OUT
from qjax.nnx.rounded import RoundedLayer
from qjax.quantization.qconfig import output_form, range_observer
from qjax.quantization.rounding import FormatRounding


def convert(model: nnx.Module, *, allow_uncalibrated: bool | Collection[str] = False) -> nnx.Module:
    """A copy of a prepared model in which layers of `qjax.nnx.quantized` replace the observed layers.

    It computes with the same integers as the result of `qtorch.quantization.convert` with the same weights and
    observers. If only some layers saw data, a layer without data is converted too, and raises when it is called.

    Args:
        model: the result of `prepare`, after calibration; it is not changed.
        allow_uncalibrated: True converts layers that saw no data with an arbitrary scale; names of modules allow this
            for the layers in these modules.

    Returns:
        The converted model. QTensors flow from its `Quantize` to its `DeQuantize`. Layers whose settings have a format
        that is no range of integers become `qjax.nnx.rounded.RoundedLayer`s, and floats flow between them.

    Raises:
        TypeError: if an argument has the wrong type, or an observer chooses no parameters.
        ValueError: if nothing is prepared, no observer saw data, or a name in allow_uncalibrated does not occur in the
            model.

    Warns:
        UserWarning: if a layer ran several times in each run of the model, or saw no data.

    Example:
        >>> from qjax.nnx import QuantWrapper, prepare
        >>> from qjax.quantization import default_qconfig
        >>> model = prepare(QuantWrapper(nnx.Linear(2, 2, rngs=nnx.Rngs(0))), default_qconfig)
        >>> _ = model(jnp.ones((3, 2)))
        >>> type(convert(model).module).__name__
        'Linear'
    """
    check_model("model", model)
    modules = [module for _, module in nnx.iter_modules(model)]
    if not any(isinstance(one, Observed) or getattr(one, "qconfig", None) is not None for one in modules):
        raise ValueError("model is not prepared: no layer has an observer; call prepare first")
    allowed = allowed_names(allow_uncalibrated, {name for name, _ in all_names(model)})
    empty, seen = unseen_layers(model)
    unseen = [name for name in empty if not any(is_in(name, one) for one in allowed)]
    check_seen(unseen, seen, LEFT_OUT)
    _warn_of_repeats(model)
    in_integers = any(isinstance(one, (Observed, FloatFunctional)) and not stays_in_floats(one) for one in modules)

    dtype = _dtype_of(model)

    def change(name: str, module: nnx.Module) -> nnx.Module:
        try:
            module = _with_some_range(module) if name in empty and _observes(module) else module
            made: Any = converted(name, module, in_integers)
            if isinstance(made, quantized.DeQuantize):
                made.dtype = dtype
            if name in unseen and isinstance(made, (quantized.Quantized, RoundedLayer)):
                made.is_uncalibrated = True
            return made
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{shown(name)}: {error}. Run the prepared model on data that reaches it, or give it the settings None"
            ) from error

    result = rebuilt(model, change, keeps_children)
    tie(result, ties_of(model))
    return result


def _observes(module: Any) -> bool:
    """True for a layer with an observer; layers around it may have its name."""
    return isinstance(module, (Observed, FloatFunctional)) and module.activation_post_process is not None


def _dtype_of(model: nnx.Module) -> Any:
    """The dtype of most numbers of a model, since norms may be float32 in a bfloat16 model."""
    sizes = Counter[Any]()
    for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            sizes[leaf.dtype] += leaf.size
    return max(sizes, key=lambda dtype: sizes[dtype], default=jnp.dtype("float32"))


def _with_some_range(module: Any) -> nnx.Module:
    """A layer whose observers get an arbitrary range, and the range of its weight."""

    def show(observer: Any, x: jax.Array) -> None:
        description, state = observer.description, observer.state.get_value()
        observer.load(description.apply(state, x)[1] if observer._rounds else description.update(state, x))

    form = range_observer(module.activation_post_process.description).form
    show(module.activation_post_process, jnp.float32([0, form.qmax - form.qmin]))
    if isinstance(module, Trained):
        show(module.weight_fake_quant, parameters_of(module.module, True)[1])
    return module


def unseen_layers(model: nnx.Module) -> tuple[list[str], bool]:
    """The names of layers that need parameters but saw no data, and True if other layers saw data."""
    modules: dict[Any, Any] = modules_of(model)
    found, seen = [], False
    for path, module in modules.items():
        if not _observes(module):
            continue
        observer = module.activation_post_process
        if not isinstance(observer, Observer) or isinstance(observer.description, FormatRounding):
            continue
        try:
            if isinstance(module, FloatFunctional):
                _output_of_functional(module)
            else:
                observer.qparams()
            seen = True
        except TypeError:
            continue  # its observer chooses no parameters
        except ValueError:
            found.append(name_of(path, modules))
    return found, seen


def converted(name: str, module: Any, in_integers: bool) -> nnx.Module:
    """The converted form of a module, or the module; `in_integers` is True if stubs get integers to dequantize."""
    made: Any = module
    if getattr(module, "qconfig", None) is not None and needs_no_observer(name, module, module.qconfig):
        return quantized_layer(name, module, module.qconfig)
    if isinstance(module, DeQuantStub):
        made = quantized.DeQuantize() if in_integers else module
    elif stays_in_floats(module):
        if not isinstance(module, Observed) or not has_weight(module.module):
            observer = made.activation_post_process
            made.activation_post_process = rounding_output(observer, lambda: output_of(observer))
            return module
        made = _of_rounded(module)
    elif isinstance(module, FloatFunctional):
        if module.activation_post_process is None:
            return module
        made = quantized.QFunctional(*_output_of_functional(module))
    elif isinstance(module, Observed):
        made = _of_observed(module, *output_of(module.activation_post_process))
    if made is not module:
        made.layer_name = name
        take_attributes(made, module.module if isinstance(module, Observed) else module)
        if isinstance(module, (Observed, FloatFunctional)):
            made.observed_by = rounding_of(module.activation_post_process.description).name
    return made


def _of_observed(observed: Any, output: QParams, form: AffineInteger) -> Any:
    """The integer form of an observed layer, for a result with these parameters and integers."""
    layer = observed.module
    if isinstance(layer, QuantStub):
        return quantized.Quantize(output, form)
    if isinstance(layer, Activation):
        return quantized.Activation(layer.law, output, form, **dict(layer.settings))
    if type(layer) in UNTRAINED:
        weight = quantized_weight(torch_layout(layer), observed.qconfig.weight)
        return UNTRAINED[type(layer)].of(layer, weight, bias_of(layer), output, form)
    relu = isinstance(layer, Fused) and layer.has_relu
    first = layer.layer if isinstance(layer, Fused) else layer
    if type(first) in NORMS:
        return NORMS[type(first)].of(first, output, form, **({"relu": True} if relu else {}))
    first, kernel, bias = parameters_of(layer, trained := isinstance(observed, Trained))
    weight = quantized_weight(kernel, observed.weight_fake_quant if trained else observed.qconfig.weight)
    return WEIGHTED[type(first)].of(first, weight, bias, output, form, relu)


def _of_rounded(observed: Any) -> Any:
    """The rounded form of a layer that stays in floats."""
    layer, kernel, bias = parameters_of(observed.module, trained := isinstance(observed, Trained))
    if type(layer) in UNTRAINED:
        kernel = torch_weight(layer)
    weight = quantized_weight(kernel, observed.weight_fake_quant if trained else observed.qconfig.weight)
    observer = observed.activation_post_process
    return rounded_layer(observed.module, layer, weight, bias, rounding_output(observer, lambda: output_of(observer)))


def output_of(observer: Observer) -> tuple[QParams, AffineInteger]:
    """The parameters and the integers of a layer's result.

    An observer with reduce_range leaves room for sums that overflow in 16 bits. Sums do not overflow here, so the
    result may have all integers of its type. With fake quantization it has the integers of training.
    """
    return observer.qparams(), output_form(observer.description)


def _output_of_functional(module: FloatFunctional) -> tuple[QParams, AffineInteger]:
    """As `output_of`; arbitrary parameters if only `add_scalar` and `mul_scalar` ran, which do not use them."""
    try:
        return output_of(module.activation_post_process)
    except ValueError:
        if not module.ran.scalars:
            raise
    return QParams.of(1.0, 0), output_form(module.activation_post_process.description)


def parameters_of(module: Any, trained: bool = False) -> tuple[Any, jax.Array, jax.Array | None]:
    """A layer, its weight in torch's layout and its bias, after folding a fused batch norm's running statistics.

    `trained` folds by the operations of training, so that the weight is the weight that training rounded.
    """
    layer = module.layer if isinstance(module, Fused) else module
    if isinstance(module, Fused) and module.bn is not None:
        if trained:
            return layer, *folded(layer, module.bn)
        made = folded_layer(layer, module.bn)
        return layer, torch_layout(made), bias_of(made)
    return layer, torch_layout(layer), bias_of(layer)


def _warn_of_repeats(model: nnx.Module) -> None:
    """Warns of layers that ran several times in each run of the model, with one observer for all calls.

    The number of runs of the model is that of its first or its last layer, whichever ran less often.
    """
    observers = {
        name: module.activation_post_process
        for name, module in all_names(model)
        if isinstance(module, (Observed, FloatFunctional))
    }
    found = {name: one.ran for name, one in observers.items() if one is not None and one.ran.calls}
    ends = sorted(found.values(), key=lambda ran: ran.first)[:1] + sorted(found.values(), key=lambda ran: ran.last)[-1:]
    times = min((ran.calls for ran in ends), default=0)
    for name, ran in found.items():
        if ran.calls > times:
            warn_of_repeats(name, ran.calls, times, " (or was traced, where it is compiled)")
