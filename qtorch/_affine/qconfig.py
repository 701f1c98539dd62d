"""How a layer is quantized: the factories of observers, or of fake quantization, for activations and weights."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple, cast

import torch

from qcore import Number
from qcore.affine.parameters import engine
from qcore.arguments import check_type, quoted
from qcore.formats.block import with_scale
from qcore.formats.number import check_target
from qtorch._affine import observer as observers
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import Factory, name_of
from qtorch.quant import Quantizer

Maker = Callable[[], torch.nn.Module]


def _call_text(config: Any) -> str:
    """The call that makes settings: formats stand for the factories that `_maker` makes of them."""
    makers = ", ".join(f"{name}={_shown(maker)}" for name, maker in config._asdict().items())
    return f"{type(config).__name__}({makers})"


def _shown(maker: Maker) -> str:
    if maker is torch.nn.Identity:
        return "None"
    if isinstance(maker, Factory):
        number = maker.settings.get("number") or maker.settings.get("forward_number")
        if number is not None and maker in (_scaled(number), _rounds(number)):
            return repr(number)
    return name_of(maker)


def _scaled(number: Number | None) -> Factory:
    """Rounds to a format with a scale that follows from observed extremes."""
    return Factory(FakeQuantize, {"observer": observers.MinMaxObserver, "number": number})


def _rounds(number: Number | None) -> Factory:
    """Rounds to a format to nearest."""
    return Factory(Quantizer, {"forward_number": number, "forward_rounding": "nearest"})


class QConfig(NamedTuple("_QConfig", [("activation", Maker), ("weight", Maker)])):
    """Settings of a layer, or of a part of a network.

    Args:
        activation: a class or function without arguments that makes a module for each layer's output; or a format, as
            an object or as text, to which it is rounded to nearest; or None, which leaves it in floats. A format
            without a scale of its own gets one (`FakeQuantize(MinMaxObserver, number=...)`): the largest observed
            magnitude divided by the format's largest number. Formats with a range beyond 2^64 such as bfloat16, posits,
            and fixed point with a fraction get no scale.
        weight: the same for each layer's weight; the scale is computed from the weight itself, as with
            `BlockScaled(format, {...: None}, scale="float32")`.

    Raises:
        ValueError: if an argument is a module, which layers would share, a text that is not a format, or a format that
            can only be decoded.

    Example:
        >>> from qtorch.quantization import MinMaxObserver
        >>> QConfig(
        ...     MinMaxObserver.with_args(dtype=torch.qint8), default_weight_observer
        ... ).activation().quant_min
        -128
        >>> QConfig("e5m2", "mxfp8_e4m3").activation()(torch.tensor([1.2, 57344.0])).tolist()
        [1.25, 57344.0]
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return _call_text(self)

    def __new__(cls, activation: Maker, weight: Maker) -> QConfig:
        return super().__new__(cls, _maker("activation", activation), _maker("weight", weight))


class QConfigDynamic(NamedTuple("_QConfigDynamic", [("activation", Maker), ("weight", Maker)])):
    """Settings of a layer whose activations are quantized at each call; only the weight needs an observer.

    Args:
        activation: as for `QConfig`; with a weight in integers an observer names the integers, and one of channels
            gives a linear layer's input a range for each row. The default leaves that to `quantize_model`, which takes
            rows and all 256 integers, and to `quantize_dynamic`, which takes torch's, `default_observer`: 128
            integers, with the range of the whole input.
        weight: as for `QConfig`.

    Raises:
        ValueError: if an argument is a module, which layers would share.

    Example:
        >>> from qtorch.quantization import PerChannelMinMaxObserver
        >>> qconfig = QConfigDynamic(weight=PerChannelMinMaxObserver.with_args(dtype=torch.qint8))
        >>> qconfig.weight().quant_min
        -128
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return _call_text(self)

    def __new__(cls, activation: Maker = torch.nn.Identity, weight: Maker = torch.nn.Identity) -> QConfigDynamic:
        return super().__new__(cls, _maker("activation", activation), _maker("weight", weight))


def _maker(name: str, maker: Any) -> Maker:
    if maker is None:
        return torch.nn.Identity
    if isinstance(maker, (str, Number)):
        number = check_target(maker, name)
        if getattr(number, "history", None) is not None:
            raise ValueError(f"{name}={number} has a delayed scale; allowed are formats without history")
        scaled = with_scale(number)
        if scaled is not number and name == "activation":
            return _scaled(number)
        return _rounds(scaled)
    if name == "weight" and isinstance(maker, Factory) and maker.make is FakeQuantize and maker.settings.get("number"):
        raise ValueError(
            f"weight is FakeQuantize(number={quoted(maker.settings['number'])}); allowed is the format itself, whose "
            "scale follows from the weight, or for a scale of each output "
            'BlockScaled(number, {0: 1, ...: None}, scale="float32")'
        )
    if isinstance(maker, torch.nn.Module) or not callable(maker):
        raise ValueError(
            f"{name} is a {type(maker).__name__}; allowed is what makes one: a class, MinMaxObserver.with_args(...); "
            "or a format"
        )
    return cast("Maker", maker)


_SYMMETRIC: dict[str, Any] = {"dtype": torch.qint8, "qscheme": torch.per_tensor_symmetric}
_CHANNELS: dict[str, Any] = {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric}
_NARROW: dict[str, Any] = {"quant_min": -127, "quant_max": 127}

default_observer = observers.MinMaxObserver.with_args(reduce_range=True)
default_weight_observer = observers.MinMaxObserver.with_args(**_SYMMETRIC)
default_histogram_observer = observers.HistogramObserver.with_args(reduce_range=True)
default_per_channel_weight_observer = observers.PerChannelMinMaxObserver.with_args(**_CHANNELS)
default_debug_observer = observers.RecordingObserver

default_fake_quant = FakeQuantize.with_args(reduce_range=True)
default_weight_fake_quant = FakeQuantize.with_args(**_SYMMETRIC)
default_per_channel_weight_fake_quant = FakeQuantize.with_args(
    observer=observers.MovingAveragePerChannelMinMaxObserver, **_CHANNELS
)
default_histogram_fake_quant = FakeQuantize.with_args(observer=observers.HistogramObserver, reduce_range=True)

default_qconfig = QConfig(default_observer, default_weight_observer)
default_debug_qconfig = QConfig(default_debug_observer, default_weight_observer)
default_per_channel_qconfig = QConfig(default_observer, default_per_channel_weight_observer)
default_qat_qconfig = QConfig(default_fake_quant, default_weight_fake_quant)
default_weight_only_qconfig = QConfig(torch.nn.Identity, default_weight_fake_quant)
default_activation_only_qconfig = QConfig(default_fake_quant, torch.nn.Identity)
default_dynamic_qconfig = QConfigDynamic(weight=default_weight_observer)
per_channel_dynamic_qconfig = QConfigDynamic(weight=default_per_channel_weight_observer)
float16_dynamic_qconfig = QConfigDynamic(weight=observers.NoopObserver.with_args(dtype=torch.float16))


def get_default_qconfig(backend: str = "x86") -> QConfig:
    """The default settings of an engine for quantization after training.

    Args:
        backend: torch's "x86", "fbgemm", "qnnpack" or "onednn"; or "exact", which `quantize_model` takes: "onednn" with
            weights from -127 to 127, the largest of which are not cut off.

    Returns:
        A `QConfig` that makes a `HistogramObserver` for activations, and for weights a `PerChannelMinMaxObserver`, or a
        `MinMaxObserver` for "qnnpack".

    Raises:
        ValueError: if backend is none of these.

    Example:
        >>> get_default_qconfig("qnnpack").activation().quant_max
        255
    """
    reduced, channels, narrow = engine(backend)
    weight = default_per_channel_weight_observer if channels else default_weight_observer
    weight = weight.with_args(**_NARROW) if narrow else weight
    return QConfig(observers.HistogramObserver.with_args(reduce_range=reduced), weight)


def get_default_qat_qconfig(backend: str = "x86") -> QConfig:
    """The default settings of an engine for training with simulated quantization.

    Args:
        backend: as for `get_default_qconfig`.

    Returns:
        A `QConfig` that makes a `FakeQuantize` for activations, and one for weights, per channel except for "qnnpack".

    Raises:
        ValueError: if backend is none of these.

    Example:
        >>> get_default_qat_qconfig("fbgemm").weight().ch_axis
        0
    """
    reduced, channels, narrow = engine(backend)
    weight = default_per_channel_weight_fake_quant if channels else default_weight_fake_quant
    weight = weight.with_args(**_NARROW) if narrow else weight
    return QConfig(default_fake_quant.with_args(reduce_range=reduced), weight)


def get_observer_dict(mod: torch.nn.Module, target_dict: dict[str, torch.nn.Module], prefix: str = "") -> None:
    """Puts all observers of a network into a dictionary, by their names.

    Args:
        mod: the network.
        target_dict: the dictionary, changed in place.
        prefix: the network's own name, which begins the names of observers.

    Returns:
        Nothing; target_dict gets the entries "NAME.activation_post_process", with the modules themselves.

    Raises:
        TypeError: if mod is not a module, target_dict not a dictionary, or prefix not a text.

    Example:
        >>> from qtorch.quantization import MinMaxObserver
        >>> layer, found = torch.nn.Linear(2, 2), {}
        >>> layer.activation_post_process = MinMaxObserver()
        >>> get_observer_dict(torch.nn.Sequential(layer), found)
        >>> list(found)
        ['0.activation_post_process']
    """
    check_type("mod", mod, torch.nn.Module, "a torch.nn.Module")
    check_type("target_dict", target_dict, MutableMapping, "a dict")
    check_type("prefix", prefix, str, "a str")
    for name, child in mod.named_modules(prefix=prefix):
        if isinstance(observer := getattr(child, "activation_post_process", None), torch.nn.Module):
            target_dict[f"{name}.activation_post_process" if name else "activation_post_process"] = observer
