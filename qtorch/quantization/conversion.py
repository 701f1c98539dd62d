"""`convert`: observed or trained layers become layers that compute in integers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from qcore.arguments import check_flag
from qcore.names import shown
from qcore.workflow import conversion
from qcore.workflow.conversion import uncalibrated
from qcore.workflow.reporting import Rounding
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import RangeObserver
from qtorch._affine.qconfig import QConfig
from qtorch._affine.tensor import QTensor
from qtorch._classes import check_model, plain_class
from qtorch.nn.quantized import FloatFunctional
from qtorch.nn.quantized.base import LEFT_OUT
from qtorch.nn.quantized.quantize import DeQuantize
from qtorch.nn.quantized.weights import float_parameters
from qtorch.quantization.modules import Modules
from qtorch.quantization.observing import NAME, calls_of, detach, has_seen, stop_counting
from qtorch.quantization.pretrained import mark_quantized
from qtorch.quantization.quantization_mappings import get_default_static_quant_module_mappings, is_unobserved
from qtorch.quantization.reasons import why_float
from qtorch.quantization.reporting import ROUNDING, rounding_of
from qtorch.quantization.rounding import has_output, has_weight, rounded_layer, stays_in_floats, with_coded_stacks
from qtorch.quantization.stubs import DeQuantStub, QuantWrapper
from qtorch.quantization.swap import in_place_of, swap_module
from qtorch.quantization.tree import LayerType, check_classes, copied, entry_of, is_leaf


def convert(
    module: nn.Module,
    mapping: Mapping[LayerType, type[nn.Module]] | None = None,
    inplace: bool = False,
    remove_qconfig: bool = True,
    *,
    convert_custom_config_dict: Mapping[str, Mapping[LayerType, type[nn.Module]]] | None = None,
    allow_uncalibrated: bool | Collection[str] = False,
) -> nn.Module:
    """A copy of a prepared model whose layers compute in integers, with the scales that were observed.

    If the model itself is such a layer, it is converted too. A layer with several names stays one layer. A layer that
    saw no data is converted and raises when it is called, if other layers saw data.

    Args:
        module: a model that `prepare` or `prepare_qat` returned and that has run since.
        mapping: types of observed layers to classes with `from_float(module)`; None for the default.
        inplace: whether module itself is changed.
        remove_qconfig: whether settings and remaining observers are removed.
        convert_custom_config_dict: {"observed_to_quantized_custom_module_class": {Observed: Quantized}} replaces each
            module of type Observed by `Quantized.from_observed(module)`.
        allow_uncalibrated: True gives layers that saw no data an arbitrary scale, for a model that then loads a
            state_dict; names of modules allow this only for the layers in these modules.

    Returns:
        The converted model.

    Raises:
        ValueError: if a layer was not prepared, no layer saw data, a name in allow_uncalibrated is not in the model, or
            if inplace=True and the model itself is such a layer.

    Warns:
        UserWarning: of layers that ran more than once in a run of the model, and of layers that saw no data.

    Example:
        >>> from qtorch.quantization import QuantWrapper, default_qconfig, prepare
        >>> model = QuantWrapper(nn.Linear(2, 2))
        >>> model.qconfig = default_qconfig
        >>> observed = prepare(model)
        >>> y = observed(torch.randn(8, 2))
        >>> [type(layer).__name__ for layer in convert(observed).children()]
        ['Quantize', 'DeQuantize', 'Linear']
    """
    classes = get_default_static_quant_module_mappings() if mapping is None else mapping
    check_model("module", module)
    check_classes("mapping", classes)
    check_flag("remove_qconfig", remove_qconfig)
    custom = entry_of(
        "convert_custom_config_dict", convert_custom_config_dict, "observed_to_quantized_custom_module_class"
    )
    model = copied(module, inplace)
    made = Conversion(classes, custom).converted(model, allow_uncalibrated)
    return finished(made, model if inplace else None, remove_qconfig)


def finished(made: nn.Module, model: nn.Module | None, remove_qconfig: bool = True) -> nn.Module:
    """A converted model without settings; raises ValueError unless it is the model that was to be changed in place."""
    if model is not None and made is not model:
        raise ValueError("inplace=True cannot put another layer in the place of the model itself; allowed is False")
    for layer in made.modules() if remove_qconfig else ():
        _clean(layer)
    mark_quantized(made)
    return made


class Conversion(Modules, conversion.Conversion):
    """The final forms of torch's layers; see `qcore.workflow.conversion`.

    Args:
        mapping: types to classes with `from_float(module)`.
        custom: types to classes with `from_observed(module)`.
    """

    stub, dequantize, left_out = DeQuantStub, DeQuantize, LEFT_OUT
    unprepared = "module has no layer to convert; call prepare(model) or prepare_qat(model) first"

    def __init__(self, mapping: Mapping[Any, Any], custom: Mapping[Any, Any]) -> None:
        self._mapping, self._custom = mapping, custom

    def is_known(self, layer: nn.Module) -> bool:
        known = plain_class(layer) in self._mapping or plain_class(layer) in self._custom
        return (known and _is_on(layer)) or self.is_rounded(layer)

    def is_observed(self, layer: nn.Module) -> bool:
        ranges = plain_class(layer) in self._mapping and not is_unobserved(layer, self._mapping)
        return _is_on(layer) and (ranges or (has_output(layer) and hasattr(layer, NAME)))

    def is_rounded(self, layer: nn.Module) -> bool:
        """True of a layer of any class with a weight where a `QConfig` asks for a format, and of known classes."""
        if not _is_on(layer):
            return False
        known = plain_class(layer) in self._mapping or (isinstance(layer.qconfig, QConfig) and has_weight(layer))
        return known and stays_in_floats(layer)

    def observer(self, layer: nn.Module) -> Any:
        return getattr(layer, NAME, None)

    def rounding(self, observer: nn.Module) -> Rounding:
        return rounding_of(observer)

    def unseen(self, layer: nn.Module) -> list[str]:
        return [name for name in (NAME, "weight_fake_quant") if not has_seen(getattr(layer, name, None))]

    def has_scalars(self, layer: nn.Module) -> bool:
        return isinstance(layer, FloatFunctional) and layer.has_scalars

    def with_some_range(self, layer: Any, names: Sequence[str]) -> nn.Module:
        """The layer whose observers see the ends of their integers, or its weight."""
        for name in names:
            observer = deepcopy(getattr(layer, name)).train()
            inner: RangeObserver = observer.activation_post_process if isinstance(observer, FakeQuantize) else observer
            ends = [0.0, float(inner.rule.form.qmax - inner.rule.form.qmin)]
            observer(torch.tensor(ends, device=inner.eps.device) if name == NAME else float_parameters(layer)[0])
            setattr(layer, name, observer)
        return layer

    def runs(self, model: nn.Module) -> tuple[int, dict[str, int]]:
        root, found = calls_of(model), dict[str, int]()
        for _, module in model.named_modules():
            if (hook := calls_of(getattr(module, NAME, None))) is not None:
                found[hook.path] = hook.calls
        return 0 if root is None else root.calls, found

    def floats(self, model: nn.Module) -> Iterator[tuple[torch.dtype, int]]:
        return ((one.dtype, one.numel()) for one in model.parameters() if one.is_floating_point())

    def rounded(self, path: str, layer: nn.Module) -> nn.Module:
        made = rounded_layer(with_coded_stacks(layer))
        return made if made is layer else in_place_of(made, layer, path)

    def final(self, path: str, layer: nn.Module) -> nn.Module:
        if isinstance(layer, QuantWrapper) and isinstance(layer.dequant, DeQuantize):  # results as those of its layer
            layer.dequant.dtype = next((one.dtype for one in layer.module.parameters()), layer.dequant.dtype)
        return swap_module(with_coded_stacks(layer), self._mapping, self._custom, path=path)

    def explain(self, path: str, layer: nn.Module, in_integers: bool) -> None:
        """Notes for reports why a layer is in floats; a layer with parameters gets a hook for errors."""
        own = any(True for _ in layer.parameters(recurse=False))
        if not is_leaf(layer) and not own:
            return
        layer.float_because = why_float(layer, self._mapping)  # type: ignore[assignment]
        # Code of a container may hand integers on to its children, and use its own parameters for their results.
        if in_integers and is_leaf(layer) and own:
            layer.register_forward_pre_hook(RefuseIntegers(path, layer.float_because))  # type: ignore[arg-type]

    def refuse(self, path: str, made: nn.Module) -> None:
        made.register_forward_pre_hook(RefuseCalls(path))
        made.is_uncalibrated = True  # type: ignore[assignment]  # for modules that are called by other methods


class RefuseIntegers:
    """A forward pre-hook of a layer that is left in floats.

    Args:
        path: the layer's, for messages.
        reason: why it is in floats.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if any(isinstance(value, QTensor) for value in inputs):
            raise TypeError(
                f"{shown(self.path)} gets a QTensor and is in floats, since {self.reason}; insert a DeQuantStub before "
                "it and a QuantStub after it, or quantize it too"
            )


class RefuseCalls:
    """A forward pre-hook of a layer that saw no data in calibration.

    Args:
        path: the layer's, for messages.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise uncalibrated(shown(self.path), LEFT_OUT)


def _clean(layer: nn.Module) -> None:
    """Removes settings and remaining observers; modules that round stay."""
    layer.__dict__.pop("qconfig", None)
    if isinstance(getattr(layer, NAME, None), ROUNDING):
        return stop_counting(layer)
    if isinstance(layer, FloatFunctional):
        layer.activation_post_process = nn.Identity()
    else:
        detach(layer)
    stop_counting(layer)


def _is_on(layer: nn.Module) -> bool:
    return getattr(layer, "qconfig", None) is not None
