"""Conversion of prepared models to models that compute with integers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine import AffineInteger, QParams
from qcore.names import shown
from qcore.workflow import conversion
from qcore.workflow.reporting import Rounding
from qjax._models import check_model
from qjax.nnx import quantized
from qjax.nnx.activations import Activation
from qjax.nnx.intrinsic import Fused
from qjax.nnx.layouts import bias_of, torch_layout, torch_weight
from qjax.nnx.quantization.fusion import folded_layer
from qjax.nnx.quantization.modules import Modules
from qjax.nnx.quantization.observing import OBSERVER, FloatFunctional, Observed, Observer
from qjax.nnx.quantization.one_call import needs_no_observer, quantized_layer
from qjax.nnx.quantization.quantization_mappings import NORMS, UNTRAINED, WEIGHTED
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
from qjax.nnx.quantization.training import Trained, folded
from qjax.nnx.quantized.base import LEFT_OUT
from qjax.nnx.rounded import RoundedLayer
from qjax.quantization.qconfig import output_form, range_observer


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
    return Conversion().converted(model, allow_uncalibrated)


class Conversion(Modules, conversion.Conversion):
    """The final forms of flax's layers; see `qcore.workflow.conversion`."""

    stub, dequantize, left_out = DeQuantStub, quantized.DeQuantize, LEFT_OUT
    unprepared = "model is not prepared: no layer has an observer; call prepare first"
    counted = " (or was traced, where it is compiled)"

    def is_known(self, layer: Any) -> bool:
        return isinstance(layer, Observed) or getattr(layer, "qconfig", None) is not None

    def is_observed(self, layer: Any) -> bool:
        return self.observer(layer) is not None

    def is_rounded(self, layer: Any) -> bool:
        return stays_in_floats(layer)

    def observer(self, layer: Any) -> Observer | None:
        return layer.activation_post_process if isinstance(layer, (Observed, FloatFunctional)) else None

    def rounding(self, observer: Observer) -> Rounding:
        return rounding_of(observer.description)

    def unseen(self, layer: Any) -> list[str]:
        return [name for name in (OBSERVER, "weight_fake_quant") if not _has_seen(getattr(layer, name, None))]

    def has_scalars(self, layer: Any) -> bool:
        return isinstance(layer, FloatFunctional) and layer.ran.scalars

    def with_some_range(self, layer: Any, names: Sequence[str]) -> nnx.Module:
        """The layer whose observers see the ends of their integers, or its weight."""
        for name in names:
            observer = getattr(layer, name)
            description, state = observer.description, observer.state.get_value()
            form = range_observer(description).form
            ends = jnp.float32([0, form.qmax - form.qmin])
            x = ends if name == OBSERVER else parameters_of(layer.module, True)[1]
            observer.load(description.apply(state, x)[1] if observer._rounds else description.update(state, x))
        return layer

    def runs(self, model: nnx.Module) -> tuple[int, dict[str, int]]:
        """The number of runs of the model is that of its first or its last layer, whichever ran less often."""
        layers = [(path, self.observer(layer)) for path, layer in self.walk(model)]
        found = {path: one.ran for path, one in layers if one is not None and one.ran.calls}
        if not found:
            return 0, {}
        ends = min(found.values(), key=lambda ran: ran.first), max(found.values(), key=lambda ran: ran.last)
        return min(ran.calls for ran in ends), {path: ran.calls for path, ran in found.items()}

    def floats(self, model: nnx.Module) -> Iterator[tuple[Any, int]]:
        arrays = jax.tree.leaves(nnx.state(model, nnx.Param))
        return ((one.dtype, one.size) for one in arrays if jnp.issubdtype(one.dtype, jnp.floating))

    def rounded(self, path: str, layer: Any) -> Any:
        with _named(path):
            observer: Any = layer.activation_post_process
            output: Any = rounding_output(observer, lambda: output_of(observer))
            if not isinstance(layer, Observed) or not has_weight(layer.module):
                layer.activation_post_process = output
                return layer
            inner, weight, bias = _weight_of(layer)
            return _in_place_of(rounded_layer(layer.module, inner, weight, bias, output), path, layer)

    def final(self, path: str, layer: Any) -> Any:
        with _named(path):
            if getattr(layer, "qconfig", None) is not None and needs_no_observer(path, layer, layer.qconfig):
                return quantized_layer(path, layer, layer.qconfig)
            if isinstance(layer, DeQuantStub):
                return _in_place_of(quantized.DeQuantize(), path, layer)
            if self.observer(layer) is None:
                return layer
            output = output_of(layer.activation_post_process)
            functional = isinstance(layer, FloatFunctional)
            made = quantized.QFunctional(*output) if functional else _of_observed(layer, *output)
            return _in_place_of(made, path, layer)

    def refuse(self, path: str, made: Any) -> None:
        if isinstance(made, (quantized.Quantized, RoundedLayer)):  # several may have one name
            made.is_uncalibrated = True


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors name a layer, and the remedy."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{shown(path)}: {error}. Run the prepared model on data that reaches it, or give it the settings None"
        ) from error


def _in_place_of(made: Any, path: str, layer: Any) -> Any:
    """A new layer with the name and the attributes of the layer that it replaces."""
    made.layer_name = path
    take_attributes(made, layer.module if isinstance(layer, Observed) else layer)
    return made


def _has_seen(observer: Observer | None) -> bool:
    """True unless an observer needs data and saw none."""
    try:
        if observer is not None:
            observer.qparams()
    except TypeError:
        return True  # it chooses no parameters
    except ValueError:
        return False
    return True


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
    first, weight, bias = _weight_of(observed)
    return WEIGHTED[type(first)].of(first, weight, bias, output, form, relu)


def _weight_of(observed: Any) -> tuple[Any, Any, jax.Array | None]:
    """The layer in an observed one, its quantized weight and its bias."""
    layer, kernel, bias = parameters_of(observed.module, trained := isinstance(observed, Trained))
    if type(layer) in UNTRAINED:
        kernel = torch_weight(layer)
    return layer, quantized_weight(kernel, observed.weight_fake_quant if trained else observed.qconfig.weight), bias


def output_of(observer: Observer) -> tuple[QParams, AffineInteger]:
    """The parameters and the integers of a layer's result.

    An observer with reduce_range leaves room for sums that overflow in 16 bits. Sums do not overflow here, so the
    result may have all integers of its type. With fake quantization it has the integers of training.
    """
    return observer.qparams(), output_form(observer.description)


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
