"""What becomes of one layer: a hook that rounds its outputs, a module around it, or weights that are rounded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from qcore import Quantization, Rule
from qtorch._torch_internals import map_tree
from qtorch.linalg import Conv1d, Conv2d, Conv3d, Linear
from qtorch.quant import Quantizer


def _quantizer(told: Quantization) -> Quantizer:
    numbers = (told.forward_number, told.backward_number, told.forward_rounding, told.backward_rounding)
    return Quantizer(*numbers, told.clamping_grad_zero, told.backward_hooks)


def _round_outputs(outputs: Any, quantizer: Quantizer) -> Any:
    """Rounds every floating tensor of a layer's outputs, which may be in tuples, lists and dictionaries."""

    def round_one(output: Any) -> Any:
        is_floating = isinstance(output, torch.Tensor) and output.is_floating_point()
        return quantizer(output) if is_floating else output

    return map_tree(round_one, outputs)


class RoundingHook:
    """Rounds the outputs of the layer on which it registers itself."""

    def __init__(self, layer: nn.Module, told: Quantization) -> None:
        self.quantizer = _quantizer(told)
        # Kept because a handle that is unpickled tells torch that its number is taken.
        self.handle = layer.register_forward_hook(self)
        layer.rounding_hook = self  # type: ignore[assignment]  # by which `is_lowered` knows

    def __call__(self, layer: nn.Module, inputs: Any, outputs: Any) -> Any:
        return _round_outputs(outputs, self.quantizer)


class Lowered(nn.Sequential):
    """A layer and the quantizer of its outputs: `lowered[0]` is the layer, whose attributes are also the pair's.

    Parameters are saved under the pair's names, "0.weight", and loaded under these or the layer's own, "weight".
    """

    def __init__(self, layer: nn.Module, told: Quantization) -> None:
        super().__init__(layer, _quantizer(told))
        mark_called(self)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        layer, quantizer = self
        return _round_outputs(layer(*inputs, **keywords), quantizer)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("0"), name)  # which raises while a copy is being made

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        names = [name for name in state_dict if name.startswith(prefix)]
        if not any(name.startswith(f"{prefix}0.") for name in names):
            for name in names:
                state_dict[f"{prefix}0.{name.removeprefix(prefix)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def mark_called(layer: nn.Module) -> None:
    """Makes transformers call a layer, which they do not where it has no hooks and they can go a shorter way."""
    layer.register_forward_hook(_called)


def _called(layer: nn.Module, inputs: Any, outputs: Any) -> None:
    pass


def round_weights(layer: nn.Module, rule: Rule) -> None:
    """Makes a layer compute with rounded weights, whose gradients reach the weights themselves unchanged."""
    if rule.weight_number is None:
        return
    names = [name for name, _ in layer.named_parameters(recurse=False) if "weight" in name]
    for name in names:
        parametrize.register_parametrization(
            layer, name, Quantizer(rule.weight_number, forward_rounding=rule.weight_rounding)
        )
    layer.register_load_state_dict_pre_hook(_load_plain_weights)


def _load_plain_weights(layer: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Lets checkpoints in that have a layer's weights under their names before it computed with rounded ones."""
    for name in layer.parametrizations:  # type: ignore[union-attr]
        if prefix + name in state_dict:
            state_dict[f"{prefix}parametrizations.{name}.original"] = state_dict.pop(prefix + name)


def is_lowered(layer: nn.Module) -> bool:
    """Whether a layer's outputs are rounded after it, or its weights before."""
    weights = layer.parametrizations.values() if parametrize.is_parametrized(layer) else ()  # type: ignore[union-attr]
    rounds_weights = any(isinstance(rounding, Quantizer) for weight in weights for rounding in weight)  # type: ignore
    return isinstance(layer, Lowered) or rounds_weights or isinstance(vars(layer).get("rounding_hook"), RoundingHook)


def multiplies(layer: nn.Module) -> bool:
    """Whether a layer has products with a defined accumulator."""
    return isinstance(layer, (Linear, Conv1d, Conv2d, Conv3d))


def keep_encoders_dense(model: nn.Module) -> None:
    """Makes encoders of lowered layers pass padding on to these.

    In evaluation they would make nested tensors without it, which only layers that are not really called understand.
    """
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and any(
            is_lowered(layer) or multiplies(layer) for layer in encoder.modules()
        ):
            encoder.use_nested_tensor = False
