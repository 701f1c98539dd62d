"""What happens to whole models: fuse, prepare, convert. `qtorch.quantization` offers its names."""

from qcore.report import LayerReport, Report
from qtorch._workflow.front import quantize_model
from qtorch._workflow.loading import load_converted
from qtorch._workflow.mappings import (
    get_default_dynamic_quant_module_mappings,
    get_default_qat_module_mappings,
    get_default_qconfig_propagation_list,
    get_default_static_quant_module_mappings,
)
from qtorch._workflow.observing import add_observer_
from qtorch._workflow.report import report
from qtorch._workflow.steps.conversion import convert
from qtorch._workflow.steps.fusion import fuse_known_modules, fuse_modules, fuse_modules_qat
from qtorch._workflow.steps.preparation import prepare, prepare_qat
from qtorch._workflow.steps.propagation import propagate_qconfig_
from qtorch._workflow.steps.swap import swap_module
from qtorch._workflow.stubs import DeQuantStub, QuantStub, QuantWrapper, add_quant_dequant
from qtorch._workflow.toplevel import default_eval_fn, quantize, quantize_dynamic, quantize_qat
from qtorch._workflow.torch_ao import from_torch_ao, to_torch_ao

__all__ = [
    "DeQuantStub",
    "LayerReport",
    "QuantStub",
    "QuantWrapper",
    "Report",
    "add_observer_",
    "add_quant_dequant",
    "convert",
    "default_eval_fn",
    "from_torch_ao",
    "fuse_known_modules",
    "fuse_modules",
    "fuse_modules_qat",
    "get_default_dynamic_quant_module_mappings",
    "get_default_qat_module_mappings",
    "get_default_qconfig_propagation_list",
    "get_default_static_quant_module_mappings",
    "load_converted",
    "prepare",
    "prepare_qat",
    "propagate_qconfig_",
    "quantize",
    "quantize_dynamic",
    "quantize_model",
    "quantize_qat",
    "report",
    "swap_module",
    "to_torch_ao",
]
