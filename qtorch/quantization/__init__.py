"""Affine integer quantization with the names of torch's quantization library, and the bits of qcore.affine.

What is done to whole models (`prepare`, `convert`, `fuse_modules`, ...) is imported from higher floors when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qtorch.quantization.affine import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from qtorch.quantization.checkpoint import load, save
from qtorch.quantization.fake_quantize import (
    FakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
)
from qtorch.quantization.functional import conv2d, dequantize, linear, quantize_per_channel, quantize_per_tensor
from qtorch.quantization.observers.base import Observer, ObserverBase
from qtorch.quantization.observers.observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAverageObserver,
    MovingAveragePerChannelMinMaxObserver,
    NoopObserver,
    PerChannelMinMaxObserver,
    RecordingObserver,
    RuleObserver,
)
from qtorch.quantization.qconfig import (
    QConfig,
    QConfigDynamic,
    default_activation_only_qconfig,
    default_debug_observer,
    default_debug_qconfig,
    default_dynamic_qconfig,
    default_fake_quant,
    default_histogram_fake_quant,
    default_histogram_observer,
    default_observer,
    default_per_channel_qconfig,
    default_per_channel_weight_fake_quant,
    default_per_channel_weight_observer,
    default_qat_qconfig,
    default_qconfig,
    default_weight_fake_quant,
    default_weight_observer,
    default_weight_only_qconfig,
    float16_dynamic_qconfig,
    get_default_qat_qconfig,
    get_default_qconfig,
    get_observer_dict,
    per_channel_dynamic_qconfig,
)
from qtorch.quantization.tensor import QTensor

if TYPE_CHECKING:
    from qtorch._workflow import (
        DeQuantStub,
        LayerReport,
        QuantStub,
        QuantWrapper,
        Report,
        add_observer_,
        add_quant_dequant,
        convert,
        default_eval_fn,
        from_torch_ao,
        fuse_known_modules,
        fuse_modules,
        fuse_modules_qat,
        get_default_dynamic_quant_module_mappings,
        get_default_qat_module_mappings,
        get_default_qconfig_propagation_list,
        get_default_static_quant_module_mappings,
        load_converted,
        prepare,
        prepare_qat,
        propagate_qconfig_,
        quantize,
        quantize_dynamic,
        quantize_model,
        quantize_qat,
        report,
        swap_module,
        to_torch_ao,
    )

__all__ = [
    "DeQuantStub",
    "FakeQuantize",
    "HistogramObserver",
    "LayerReport",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAverageObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "NoopObserver",
    "Observer",
    "ObserverBase",
    "PerChannelMinMaxObserver",
    "QConfig",
    "QConfigDynamic",
    "QTensor",
    "QuantStub",
    "QuantWrapper",
    "RecordingObserver",
    "Report",
    "RuleObserver",
    "add_observer_",
    "add_quant_dequant",
    "conv2d",
    "convert",
    "default_activation_only_qconfig",
    "default_debug_observer",
    "default_debug_qconfig",
    "default_dynamic_qconfig",
    "default_eval_fn",
    "default_fake_quant",
    "default_histogram_fake_quant",
    "default_histogram_observer",
    "default_observer",
    "default_per_channel_qconfig",
    "default_per_channel_weight_fake_quant",
    "default_per_channel_weight_observer",
    "default_qat_qconfig",
    "default_qconfig",
    "default_weight_fake_quant",
    "default_weight_observer",
    "default_weight_only_qconfig",
    "dequantize",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "float16_dynamic_qconfig",
    "from_torch_ao",
    "fuse_known_modules",
    "fuse_modules",
    "fuse_modules_qat",
    "get_default_dynamic_quant_module_mappings",
    "get_default_qat_module_mappings",
    "get_default_qat_qconfig",
    "get_default_qconfig",
    "get_default_qconfig_propagation_list",
    "get_default_static_quant_module_mappings",
    "get_observer_dict",
    "linear",
    "load",
    "load_converted",
    "per_channel_dynamic_qconfig",
    "prepare",
    "prepare_qat",
    "propagate_qconfig_",
    "quantize",
    "quantize_dynamic",
    "quantize_model",
    "quantize_per_channel",
    "quantize_per_tensor",
    "quantize_qat",
    "report",
    "save",
    "swap_module",
    "to_torch_ao",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("qtorch._workflow"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
