"""The layers of a model, by group, and how one is lowered.

Its outputs are rounded by a hook or by a module around it, its weights by a parametrization or where they are
multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import modules
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from qcore import Number, Quantization, Rule
from qcore.linalg.convolution import WeightLayout, weight_layout
from qtorch._classes import change_class, has_role, plain_class
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import WRAPPED, forward_hooks, map_tree, own_parameters, unseen_by_modes
from qtorch.linalg import Conv1d, Conv2d, Conv3d, Linear
from qtorch.quant import Quantizer
from qtorch.recipes.modes import LOWERED, Lowering, enter_forward, entering, rounded_in

ROUNDED = "rounded"  # the role of the classes of layers whose outputs or weights are rounded


def _all(*sources: ModuleType, without: tuple[str, ...] = ()) -> tuple[type[nn.Module], ...]:
    """All layers of some of torch's modules, also those that torch adds later."""
    return tuple(getattr(source, name) for source in sources for name in source.__all__ if name not in without)


GROUPS: dict[str, tuple[type[nn.Module], ...]] = {
    "conv": _all(modules.conv, modules.fold),
    "linear": _all(modules.linear, without=("Identity",)),
    "pool": _all(modules.pooling),
    "pad": _all(modules.padding),
    "activation": _all(modules.activation, modules.adaptive, without=("MultiheadAttention",)),
    "normalization": _all(modules.batchnorm, modules.instancenorm, modules.normalization),
    "dropout": _all(modules.dropout),
    "loss": _all(modules.loss),
    "embedding": _all(modules.sparse),
    "attention": (nn.MultiheadAttention,),
    "rnn": _all(modules.rnn),
}

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

# The attributes by which wrappers hold a model, and the wrappers' classes: layers are named as in the model itself.
_WRAPPED = {
    **dict.fromkeys(WRAPPED),
    "module": {"DistributedDataParallel", "DataParallel", "AveragedModel", "FullyShardedDataParallel"},
}


def named_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All modules of a model once, with the dotted names that they have in the model without wrappers.

    Without the wrappers themselves, and without the modules that compute parametrized weights.
    """
    found, seen = [], set()

    def visit(name: str, module: nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        inside = [key for key, _ in module.named_children() if _wraps(module, key)]
        if not inside:
            found.append((name, module))
        for key, child in module.named_children():
            if key in inside:
                visit(name, child)
            elif key != "parametrizations":
                visit(f"{name}.{key}" if name else key, child)

    visit("", model)
    return found


def without_wrappers(model: nn.Module, path: str) -> str:
    """The dotted name of a part of a model, or of a parameter, in the model without wrappers."""
    found, module = [], model
    for key in path.split("."):
        if not _wraps(module, key):
            found.append(key)
        module = getattr(module, key, module)
    return ".".join(found)


def _wraps(module: nn.Module, key: str) -> bool:
    """True if a module is a wrapper around a child."""
    kinds = _WRAPPED.get(key, set())
    return kinds is None or any(kind.__name__ in kinds for kind in type(module).__mro__)


def _quantizer(outputs: Quantization) -> Quantizer:
    numbers = outputs.forward_number, outputs.backward_number
    roundings = outputs.forward_rounding, outputs.backward_rounding
    hooks: Any = outputs.backward_hooks  # of tensors
    return Quantizer(*numbers, *roundings, outputs.clamping_grad_zero, hooks)


def _round_outputs(outputs: Any, quantizer: Quantizer) -> Any:
    """Rounds every floating tensor of a layer's outputs, which may be in tuples, lists and dictionaries."""

    def round_one(output: Any) -> Any:
        is_floating = isinstance(output, torch.Tensor) and output.is_floating_point()
        return quantizer(output) if is_floating else output

    return map_tree(round_one, outputs)


class RoundingHook:
    """Rounds the outputs of the layer on which it registers itself."""

    def __init__(self, layer: nn.Module, quantization: Quantization) -> None:
        self.quantizer = _quantizer(quantization)
        if quantization.history is not None:  # a state, which moves with the layer, and is saved
            if hasattr(layer, "rounding"):
                raise ValueError(
                    f"{type(layer).__name__} has an attribute 'rounding', which is the name of the quantizer of a "
                    "layer with a delayed scale; allowed are sequential_lower, and formats without history"
                )
            layer.rounding = self.quantizer
        # Kept because a handle that is unpickled tells torch that its number is taken.
        self.handle = layer.register_forward_hook(self)
        layer.rounding_hook = self  # type: ignore[assignment]  # by which `is_lowered` knows
        _mark(layer)

    def __call__(self, layer: nn.Module, inputs: Any, outputs: Any) -> Any:
        return _round_outputs(outputs, self.quantizer)


class RoundedPair(nn.Sequential):
    """A layer and the quantizer of its outputs: `lowered[0]` is the layer, whose attributes are also the pair's.

    Parameters are saved under the pair's names, "0.weight", and loaded under these or the layer's own, "weight".
    """

    def __init__(self, layer: nn.Module, quantization: Quantization) -> None:
        super().__init__(layer, _quantizer(quantization))
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


Lowered = RoundedPair  # the name in older pickles


def mark_called(layer: nn.Module) -> None:
    """Makes torch's Transformer layers call this layer: around layers without hooks they run one fused function."""
    layer.register_forward_hook(_called)


def _called(layer: nn.Module, inputs: Any, outputs: Any) -> None:
    pass


def _mark(layer: nn.Module) -> None:
    """Gives a rounded layer its class, once."""
    if not has_role(layer, ROUNDED):
        change_class(layer, ROUNDED, _members)


def _members(base: Any) -> dict[str, Any]:
    """The members of the class of a rounded layer: a text with its formats, in one line."""

    def extra_repr(self: nn.Module) -> str:
        return ", ".join(filter(None, [base.extra_repr(self), *_texts(self)]))

    def text(self: nn.Module) -> str:
        only_weights = [name for name, _ in self.named_children()] == ["parametrizations"]
        return (
            f"{parametrize.type_before_parametrizations(self).__name__}({self.extra_repr()})"
            if only_weights
            else base.__repr__(self)
        )

    return {"extra_repr": extra_repr, "__repr__": text}


def _texts(layer: nn.Module) -> Iterator[str]:
    """The tensors that a layer rounds, with their formats."""
    hook = vars(layer).get("rounding_hook")
    if isinstance(hook, RoundingHook):
        quantization = hook.quantizer.quantization
        for name, number in (("output", quantization.forward_number), ("gradient", quantization.backward_number)):
            if number is not None:
                yield f"{name}={number.text}"
    for name, quantizer in weight_quantizers(layer):
        yield f"{name}={quantizer.quantization.forward_number.text}"  # type: ignore[union-attr]


class RoundWeight:
    """A forward pre-hook that rounds a weight which an older hook of torch computes before each call."""

    def __init__(self, name: str, quantizer: Quantizer, layout: WeightLayout | None = None) -> None:
        self.name, self.quantizer, self.layout = name, quantizer, layout

    def __call__(self, layer: nn.Module, inputs: Any) -> None:
        weight = getattr(layer, self.name)
        if isinstance(weight, nn.Parameter):
            raise ValueError(
                f"{type(layer).__name__}.{self.name} was computed by a hook when it was lowered, and is a "
                "parameter now; remove the hook before lower"
            )
        setattr(layer, self.name, rounded_in(self.layout, self.quantizer, weight))


class _Moved(nn.Module):
    """A parametrization that only moves numbers: into the layout of blocks, or back."""

    def __init__(self, layout: WeightLayout, is_back: bool) -> None:
        super().__init__()
        self.layout, self.is_back = layout, is_back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layout.put_back(x) if self.is_back else self.layout.laid_out(x)


_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__iand__", "__ior__"}


class RoundedWeight(torch.Tensor):
    """A rounded weight as a layer returns it: changes in place raise, as they would not reach the parameter."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        changed = kwargs.get("out") if "out" in kwargs else args[0] if args else None
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")) or "out" in kwargs
        if in_place and isinstance(changed, RoundedWeight):
            raise RuntimeError(
                f"{name} changes a weight that was rounded, and would not reach the parameter; change the parameter: "
                "layer.parametrizations.weight.original"
            )
        with unseen_by_modes():
            y = func(*args, **kwargs)
            if isinstance(y, torch.Tensor) and isinstance(changed, RoundedWeight) and _shares_memory(y, changed):
                return y.as_subclass(RoundedWeight)  # views and x.data, by which the weight could be changed as well
        return y


def _shares_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return is_plain_tensor(x) and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


class _Guard(nn.Module):
    """The last parametrization of a rounded weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_dynamo_compiling() or not is_plain_tensor(x):
            return x
        return x.as_subclass(RoundedWeight)


def round_weights(path: str, layer: nn.Module, rule: Rule) -> None:
    """Makes a layer multiply by rounded weights, whose gradients reach the parameters unchanged.

    Args:
        path: the layer's dotted name.
        layer: changed in place. Where torch's own code multiplies, `layer.weight` is the rounded weight; where a
            program's code does, weights are rounded where they are multiplied.
        rule: the format.
    """
    if rule.weight_number is None:
        return
    if _multiplies_by_own_code(layer):
        before = vars(layer).get("qtorch_lowering")  # of a recipe
        if before is None:
            layer.qtorch_lowering = Lowering(path, weight=_weight_quantizer(rule))  # type: ignore[assignment]
            enter_forward(layer)
            change_class(layer, LOWERED, entering)
        else:
            layer.qtorch_lowering = replace(before, weight=_weight_quantizer(rule))  # type: ignore[assignment]
        _mark(layer)
        return
    # torch's older weight_norm and spectral_norm compute a weight in a pre-hook, from parameters such as weight_g. A
    # hook behind theirs rounds the result.
    computed = [hook.name for hook, _ in forward_hooks(layer, True) if isinstance(hook, WeightNorm | SpectralNorm)]
    parts = tuple(f"{name}_" for name in computed)
    names = [name for name, _ in layer.named_parameters(recurse=False) if not name.startswith(parts or "-")]
    names += list(layer.parametrizations) if parametrize.is_parametrized(layer) else []  # type: ignore[arg-type]
    names = [name for name in names if "weight" in name]
    if names or computed:
        _mark(layer)
    layout = _layout_of(layer, rule.weight_number)
    for name in computed:
        layer.register_forward_pre_hook(RoundWeight(name, _weight_quantizer(rule), layout))
    for name in names:
        steps: list[nn.Module] = [_weight_quantizer(rule)]
        if layout is not None:
            steps = [_Moved(layout, False), *steps, _Moved(layout, True)]
        for step in (*steps, _Guard()):
            parametrize.register_parametrization(layer, name, step, unsafe=layout is not None)
    if names:
        layer.register_load_state_dict_pre_hook(_load_plain_weights)
    if isinstance(layer, nn.MultiheadAttention):
        round_weights(f"{path}.out_proj", layer.out_proj, rule)


def _weight_quantizer(rule: Rule) -> Quantizer:
    return Quantizer(rule.weight_number, forward_rounding=rule.weight_rounding)


def _layout_of(layer: Any, number: Number) -> WeightLayout | None:
    """The layout of a convolution's weight for a format; None in other layers."""
    if not isinstance(layer, CONVOLUTIONS):
        return None
    return weight_layout(number, layer.kernel_size, layer.groups, layer.transposed)


def _multiplies_by_own_code(layer: nn.Module) -> bool:
    """True of layers whose forward is not torch's, and which may multiply by results computed from weights."""
    forward = vars(layer).get("forward", plain_class(layer).forward)
    if forward.__module__.startswith("torch.") or multiplies(layer):
        return False
    others = tuple(kind for name, kinds in GROUPS.items() if name not in ("linear", "conv") for kind in kinds)
    is_matrix = parametrize.is_parametrized(layer) or any(x.dim() >= 2 for x in own_parameters(layer).values())
    return is_matrix and not isinstance(layer, others)


def _load_plain_weights(layer: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Loads checkpoints that have a layer's weights under the names from before they were rounded."""
    for name in layer.parametrizations:  # type: ignore[union-attr]
        if prefix + name in state_dict:
            state_dict[f"{prefix}parametrizations.{name}.original"] = state_dict.pop(prefix + name)


def weight_quantizers(layer: nn.Module) -> Iterator[tuple[str, Quantizer]]:
    """The quantizers of a layer's weights, with the weights' names."""
    if parametrize.is_parametrized(layer):
        for name, roundings in layer.parametrizations.items():  # type: ignore[union-attr, operator]
            yield from ((name, rounding) for rounding in roundings if isinstance(rounding, Quantizer))
    for hook, _ in forward_hooks(layer, True):
        if isinstance(hook, RoundWeight):
            yield hook.name, hook.quantizer
    lowering = vars(layer).get("qtorch_lowering")
    if isinstance(lowering, Lowering) and lowering.weight is not None:
        yield "weight", lowering.weight


def check_weights(name: str, layer: nn.Module) -> None:
    """Raises for a lazy layer, whose class changes at its first call."""
    if any(isinstance(x, UninitializedParameter) for x in own_parameters(layer).values()):
        raise ValueError(f"{name or type(layer).__name__} has no weight yet; run the model once before lower")


def is_lowered(layer: nn.Module) -> bool:
    """True if a layer's outputs or weights are rounded, or its own products are lowered."""
    return is_rounded(layer) or has_role(layer, LOWERED)


def is_rounded(layer: nn.Module) -> bool:
    """True if a layer's outputs or weights are rounded."""
    return isinstance(layer, RoundedPair) or has_role(layer, ROUNDED)


def rounds_outputs(layer: nn.Module) -> bool:
    """True if a layer's outputs are rounded."""
    return isinstance(layer, RoundedPair) or "rounding_hook" in vars(layer)


def has_products(layer: nn.Module) -> bool:
    """True if a recipe gives the products of a layer, or leaves them in high precision."""
    lowering = vars(layer).get("qtorch_lowering")
    return multiplies(layer) or (isinstance(lowering, Lowering) and bool(lowering.products))


def multiplies(layer: nn.Module) -> bool:
    """True if a layer has products with a defined accumulator."""
    return isinstance(layer, (Linear, Conv1d, Conv2d, Conv3d))


def keep_encoders_dense(model: nn.Module) -> None:
    """Makes encoders of lowered layers pass padding on to them.

    In evaluation an encoder would make nested tensors without padding, which its layers cannot take when called.
    """
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and any(
            is_lowered(layer) or multiplies(layer) for layer in encoder.modules()
        ):
            encoder.use_nested_tensor = False
