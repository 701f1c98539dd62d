"""QConfig: how a layer's activations and weights are observed or fake-quantized; torch's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qcore import Number
from qcore.affine import AffineInteger
from qcore.affine.parameters import engine
from qcore.arguments import quoted
from qcore.formats.block import with_scale
from qcore.formats.number import call_text, check_target
from qjax.quant.quantizer import QuantizeFunction, quantizer
from qjax.quantization import observer as observers
from qjax.quantization.affine import form_of
from qjax.quantization.fake_state import FakeQuantize
from qjax.quantization.rounding import FormatRounding, rounds_to_format

_KINDS = (observers.ObserverBase, FakeQuantize, FormatRounding)


Description = observers.ObserverBase | FakeQuantize | FormatRounding
Setting = Description | type[observers.ObserverBase | FakeQuantize] | QuantizeFunction | Number | str | None


class _Checked:
    def __repr__(self) -> str:
        return call_text(self)

    def _set(self, **settings: Setting) -> None:
        for name, value in settings.items():
            object.__setattr__(self, name, _description(name, value))


def _description(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (str, Number)):
        number = None if value is None else check_target(value, name)
        if getattr(number, "history", None) is not None:
            raise ValueError(f"{name}={number} has a delayed scale; allowed are formats without history")
        scaled = None if number is None else with_scale(number)
        if name == "activation" and scaled is not number:
            return FakeQuantize(observers.MinMaxObserver, number=number)
        value = quantizer(scaled, None, "nearest", "nearest")
    if isinstance(value, QuantizeFunction):
        return FormatRounding(value)
    if isinstance(value, type) and issubclass(value, _KINDS[:2]):
        return value()
    if name == "weight" and isinstance(value, FakeQuantize) and value.number is not None:
        raise ValueError(
            f"weight is FakeQuantize(number={quoted(value.number)}); allowed is the format itself, whose scale follows "
            'from the weight, or for a scale of each output BlockScaled(number, {0: 1, ...: None}, scale="float32")'
        )
    if not isinstance(value, _KINDS):
        raise TypeError(
            f"{name}={quoted(value)}; allowed are observers, FakeQuantize, and their classes; a format, its text, or a "
            "qjax.quantizer; and None"
        )
    return value


@dataclass(frozen=True, repr=False, init=False)
class QConfig(_Checked):
    """What observes, fake-quantizes or rounds a layer's output and its weight.

    Args:
        activation, weight: an observer or a `FakeQuantize`, or its class; a format, as an object or as text, to which
            arrays are rounded to nearest; a `qjax.quantizer`; or None, which leaves them in floats. Weights have
            torch's layout, outputs first. A format without a scale of its own gets one: for activations as
            `FakeQuantize(MinMaxObserver, number=...)`, the largest magnitude that was observed over the format's
            largest number; for weights as `BlockScaled(format, {...: None}, scale="float32")`. Ranges beyond 2^64, as
            bfloat16's, posits, and fixed point with a fraction get none, and a `qjax.quantizer` rounds as it says.

    Raises:
        ValueError: if a text does not name a format, a format can only be decoded, or a quantizer is stochastic.

    Example:
        >>> from qjax.quantization import MinMaxObserver
        >>> QConfig(
        ...     activation=MinMaxObserver.with_args(dtype="qint8"), weight=default_weight_observer
        ... ).weight.qscheme
        'per_tensor_symmetric'
        >>> QConfig("e5m2", "mxfp8_e4m3").weight.number.text
        'mxfp8_e4m3'
    """

    activation: Any
    weight: Any

    def __init__(self, activation: Setting, weight: Setting) -> None:
        self._set(activation=activation, weight=weight)


@dataclass(frozen=True, repr=False, init=False)
class QConfigDynamic(_Checked):
    """What observes the weight of a layer whose activations are quantized at run time.

    Args:
        weight: as for `QConfig`.
        activation: a format, to which the inputs of products are rounded with a scale of their own at each call; None,
            which with a format as weight leaves them in floats, and with integers quantizes them by their own range.
            With integers an observer names those of inputs, and one of channels gives a linear layer's input a range
            for each row. None leaves that to `quantize_model`, which takes rows and all 256 integers, and to
            `quantize_dynamic`, which takes torch's, `default_observer`: 128 integers, the range of the whole input.

    Raises:
        TypeError, ValueError: as `QConfig` does.

    Example:
        >>> QConfigDynamic(weight=observers.MinMaxObserver.with_args(dtype="qint8")).weight.dtype
        'qint8'
    """

    weight: Any
    activation: Any = None

    def __init__(self, weight: Setting, activation: Setting = None) -> None:
        self._set(weight=weight, activation=activation)


_SYMMETRIC: dict[str, Any] = {"dtype": "qint8", "qscheme": "per_tensor_symmetric"}
_CHANNELS: dict[str, Any] = {"dtype": "qint8", "qscheme": "per_channel_symmetric"}
_NARROW: dict[str, Any] = {**_CHANNELS, "quant_min": -127, "quant_max": 127}

default_observer = observers.MinMaxObserver(reduce_range=True)
default_weight_observer = observers.MinMaxObserver(**_SYMMETRIC)
default_histogram_observer = observers.HistogramObserver(reduce_range=True)
default_per_channel_weight_observer = observers.PerChannelMinMaxObserver(**_CHANNELS)
default_debug_observer = observers.RecordingObserver()

default_fake_quant = FakeQuantize(observers.MovingAverageMinMaxObserver, reduce_range=True)
default_weight_fake_quant = FakeQuantize(observers.MovingAverageMinMaxObserver, **_SYMMETRIC)
default_per_channel_weight_fake_quant = FakeQuantize(observers.MovingAveragePerChannelMinMaxObserver, **_CHANNELS)
default_histogram_fake_quant = FakeQuantize(observers.HistogramObserver, reduce_range=True)

default_qconfig = QConfig(default_observer, default_weight_observer)
default_debug_qconfig = QConfig(default_debug_observer, default_weight_observer)
default_per_channel_qconfig = QConfig(default_observer, default_per_channel_weight_observer)
default_qat_qconfig = QConfig(default_fake_quant, default_weight_fake_quant)
default_weight_only_qconfig = QConfig(None, default_weight_fake_quant)
default_activation_only_qconfig = QConfig(default_fake_quant, None)
default_dynamic_qconfig = QConfigDynamic(default_weight_observer)
float16_dynamic_qconfig = QConfigDynamic(observers.NoopObserver(dtype="float16"))
per_channel_dynamic_qconfig = QConfigDynamic(default_per_channel_weight_observer)


def get_default_qconfig(backend: str = "x86") -> QConfig:
    """How torch observes for an engine: outputs by histograms.

    Args:
        backend: torch's "x86", "fbgemm", "qnnpack" or "onednn"; or "exact", which `quantize_model` takes: "onednn" with
            weights from -127 to 127, the largest of which are not cut off.

    Returns:
        A `QConfig` of a `HistogramObserver` for activations, and for weights of a `PerChannelMinMaxObserver`, or a
        `MinMaxObserver` for "qnnpack".

    Raises:
        TypeError, ValueError: if backend is none of these.

    Example:
        >>> get_default_qconfig("qnnpack").activation.reduce_range
        False
    """
    reduced, channels, narrow = engine(backend)
    weight = default_per_channel_weight_observer if channels else default_weight_observer
    weight = observers.PerChannelMinMaxObserver(**_NARROW) if narrow else weight
    return QConfig(observers.HistogramObserver(reduce_range=reduced), weight)


def get_default_qat_qconfig(backend: str = "x86") -> QConfig:
    """How torch fake-quantizes for an engine: by moving averages.

    Args:
        backend: as for `get_default_qconfig`.

    Returns:
        A `QConfig` of a `FakeQuantize` for activations, and one for weights, per channel but for "qnnpack".

    Raises:
        TypeError, ValueError: if backend is none of these.

    Example:
        >>> get_default_qat_qconfig("qnnpack").activation.observer.reduce_range
        False
    """
    reduced, channels, narrow = engine(backend)
    weight = default_per_channel_weight_fake_quant if channels else default_weight_fake_quant
    weight = FakeQuantize(observers.MovingAveragePerChannelMinMaxObserver, **_NARROW) if narrow else weight
    return QConfig(FakeQuantize(reduce_range=reduced), weight)


def input_rounding(settings: QConfig | QConfigDynamic) -> FormatRounding | None:
    """What rounds the inputs of products to a format, with a scale of their own at each call; None for integers.

    Raises:
        TypeError: if settings have integers for what goes in, and a format for the weight.
    """
    activation = settings.activation
    number = getattr(activation, "number", None)
    if number is None and not rounds_to_format(settings.weight):
        return None
    if isinstance(activation, FormatRounding):
        return activation
    if number is None:
        raise TypeError(
            f"settings have as activation {type(activation).__name__} and as weight a format; allowed are a format or "
            "None as activation, or integers for both: QConfigDynamic(MinMaxObserver(...))"
        )
    return FormatRounding(quantizer(with_scale(number), None, "nearest", "nearest"))


def output_form(description: Any) -> AffineInteger:
    """The integers of a layer's result, as settings say; an observer's reduce_range is left out."""
    observer = range_observer(description)
    if observer.axis is not None:
        raise ValueError("activation has a scale for each channel; allowed is one for all of a result")
    form = observer.form
    if observer is description and observer.reduce_range:
        form = form._unreduced(form_of(observer.dtype))
    return form


def range_observer(description: Any) -> observers.RangeObserver:
    """The observer of ranges that settings describe.

    Raises:
        TypeError: if they describe another.
    """
    observer = getattr(description, "observer", description)
    if not isinstance(observer, observers.RangeObserver):
        raise TypeError(f"its settings have a {type(observer).__name__}; allowed are observers of ranges, FakeQuantize")
    return observer
