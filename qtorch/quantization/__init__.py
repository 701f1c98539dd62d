"""Quantization of models: the workflow and names of `torch.quantization`, with the bits of `qcore.affine`."""

from qcore.lazy import public_names
from qcore.report import LayerReport, Report
from qtorch._affine.affine import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from qtorch._affine.checkpoint import load, save
from qtorch._affine.fake_quantize import (
    FakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
)
from qtorch._affine.functional import conv2d, dequantize, linear, quantize_per_channel, quantize_per_tensor
from qtorch._affine.observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAverageObserver,
    MovingAveragePerChannelMinMaxObserver,
    NoopObserver,
    Observer,
    ObserverBase,
    PerChannelMinMaxObserver,
    RecordingObserver,
    RuleObserver,
)
from qtorch._affine.qconfig import (
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
from qtorch._affine.tensor import QTensor
from qtorch.quantization.conversion import convert
from qtorch.quantization.front import quantize_model
from qtorch.quantization.fusion import fuse_known_modules, fuse_modules, fuse_modules_qat
from qtorch.quantization.loading import load_converted
from qtorch.quantization.observing import add_observer_
from qtorch.quantization.one_call import default_eval_fn, quantize, quantize_dynamic, quantize_qat
from qtorch.quantization.preparation import prepare, prepare_qat
from qtorch.quantization.propagation import propagate_qconfig_
from qtorch.quantization.quantization_mappings import (
    get_default_dynamic_quant_module_mappings,
    get_default_qat_module_mappings,
    get_default_qconfig_propagation_list,
    get_default_static_quant_module_mappings,
)
from qtorch.quantization.reporting import report
from qtorch.quantization.stubs import DeQuantStub, QuantStub, QuantWrapper, add_quant_dequant
from qtorch.quantization.swap import swap_module
from qtorch.quantization.torch_ao import from_torch_ao, to_torch_ao

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
__dir__ = public_names(__name__)
