"""The workflow of quantized models as pure functions. `qjax.quantization` offers its names."""

from qjax._workflow.functions import LayerState, LayerWeight, convert_fn, convert_params, prepare_fn

__all__ = ["LayerState", "LayerWeight", "convert_fn", "convert_params", "prepare_fn"]
