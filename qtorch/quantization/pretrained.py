"""Quantized models of the package transformers: what `save_pretrained` writes says that they are quantized."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

# Without `quant_method`: `from_pretrained` raises. It skips a method that it does not know, and weights are random.
_SAVED = {
    "quantized_by": "quantize_model of qtorch",
    "to_load": "quantize_model(float_model, ...) with the settings of this model, then load_state_dict of the weights",
}


def mark_quantized(model: nn.Module) -> None:
    """Notes in models of transformers, if that is imported, that they are quantized, and which tensors they tie.

    Files of safetensors have a tied tensor once, if the model names the others.
    """
    modeling: Any = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        return
    modules: Any = model.modules()
    for module in modules:
        if isinstance(module, modeling.PreTrainedModel):
            module.config.quantization_config = dict(_SAVED)
            firsts = dict[int, str]()
            tied = {
                name: firsts.setdefault(one.data_ptr() or id(one), name) for name, one in module.state_dict().items()
            }
            tied = {name: first for name, first in tied.items() if name != first}
            module._tied_weights_keys = (module._tied_weights_keys or {}) | tied
