"""Low-precision models from full-precision models, without edits of their code."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from qcore import Number, Quantization, Recipe, Rule
from qcore.arguments import quoted
from qcore.law.rounding import RoundingLike
from qcore.lazy import public_names
from qcore.notices import warn
from qcore.recipes.published import NOTHING_TO_LOWER, recipe_hint, recipe_of
from qcore.recipes.recipe import check_alone, check_machine
from qtorch._classes import check_model
from qtorch.quant import Quantizer
from qtorch.recipes.coverage import measure_first_call
from qtorch.recipes.layers import (
    GROUPS,
    RoundedPair,
    RoundingHook,
    check_weights,
    is_rounded,
    keep_encoders_dense,
    named_layers,
    round_weights,
)
from qtorch.recipes.listing import report
from qtorch.recipes.products import is_inside_attention, lower_products

__all__ = ["GROUPS", "lower", "report", "sequential_lower"]
__dir__ = public_names(__name__)

Model = TypeVar("Model", bound=nn.Module)
LayerTypes = Iterable[str | type[nn.Module]]


def lower(
    model: Model,
    layer_types: LayerTypes | Recipe = (),
    forward_number: Number | str | None = None,
    backward_number: Number | str | None = None,
    forward_rounding: RoundingLike = "stochastic",
    backward_rounding: RoundingLike = "stochastic",
    *,
    layer_type: LayerTypes = (),
    rules: Sequence[Rule] = (),
    weight_number: Number | str | None = None,
    weight_rounding: RoundingLike = "nearest",
    overflow: str | None = None,
    on: str | None = None,
    recipe: Recipe | None = None,
) -> Model:
    """Makes a model's layers round their outputs, and the gradients of these, in place.

    The model keeps its types and, unless weights are rounded, the names of its parameters. Copies and pickles of it are
    lowered too, each with quantizers of its own. Every floating tensor of an output is rounded, also in tuples and
    dictionaries.

    Weights that are rounded become parametrizations (`torch.nn.utils.parametrize`): `layer.weight` is the rounded
    weight, `layer.parametrizations.weight.original` the parameter, which gets the gradient of the rounded weight. Such
    models have `state_dict` and `deepcopy`, but torch does not pickle them. They can load checkpoints of the original
    model. A weight is a parameter of the layer whose name contains "weight".

    Delayed scales (`BlockScaled(history=)`) are state: such a layer has its quantizer as the child `rounding`, also in
    checkpoints. They advance only in training, and only in layers whose output needs a gradient.

    Results inside of a layer are not rounded: "linear" does not touch the linear layers of `nn.MultiheadAttention`; its
    group is "attention".

    Args:
        model: any module; it may itself be a layer.
        layer_types: groups ("conv", "linear", "pool", "pad", "activation", "normalization", "dropout", "loss",
            "embedding", "attention", "rnn") and layer classes, with their subclasses. Or a `qcore.Recipe`, alone, for
            all products: `nn.Linear` and `nn.Conv1d` to `Conv3d` become layers of `qtorch.linalg`, and the products of
            other modules are replaced while they run; `report` lists them.
        forward_number, backward_number, forward_rounding, backward_rounding: as for `qtorch.quant.Quantizer`.
        layer_type: another name of layer_types.
        rules: for single layers, before the arguments above: the first rule that matches counts, and a rule without
            formats leaves its layers unchanged. A rule's name is a pattern for the layer's dotted name ("features.*").
            A rule without a layer type matches modules without children and modules of a group.
        weight_number, weight_rounding: the format and the rounding of weights; None does not round them.
        overflow: the policy for numbers beyond the range of these formats, as in `qtorch.quantize`: "saturate", "inf",
            "nan" or "wrap"; None is each format's own policy. Rules have their own: "e4m3fn:saturate".
        recipe: another name of layer_types for a recipe: `lower(model, recipe=RECIPES["mxfp8"])`.
        on: with a recipe, the machine whose instructions its products run on, such as "hopper"; see `Recipe.on`.

    Returns:
        The same model.

    Raises:
        ValueError: if a group is unknown, formats without layer types are given with rules, or a layer is lowered
            already; the model is unchanged then.

    Example:
        >>> import torch
        >>> model = lower(
        ...     nn.Sequential(nn.Linear(2, 2), nn.ReLU()), ["activation"], "int8", None, "nearest"
        ... )
        >>> model(torch.ones(1, 2)).frac().eq(0).all().item()
        True
        >>> rules = [Rule("0"), Rule(layer_type="linear", weight_number="e4m3fn")]
        >>> _ = lower(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), rules=rules)
    """
    check_model("model", model)
    outputs = Quantization(forward_number, backward_number, forward_rounding, backward_rounding, overflow=overflow)  # type: ignore
    layer_types = recipe_of(layer_types, recipe, layer_types == ())
    if isinstance(layer_types, Recipe):
        formats = Rule("*", None, outputs, weight_number, weight_rounding, overflow)  # type: ignore[arg-type]
        check_alone({"layer_type": layer_type, "rules": rules, "formats": formats != Rule()})
        recipe = layer_types.on(on)
        measure_first_call(lower_part(model, recipe), recipe)
        return model
    check_machine(on)
    rules = _tuple("rules", rules)
    chosen = _choose(layer_types, layer_type, outputs, weight_number, weight_rounding, overflow, rules)
    found = _matches(model, chosen, rules, outputs._rounds or weight_number is not None)
    for layer, (name, rule) in found.items():
        if rule.outputs._rounds:
            RoundingHook(layer, rule.outputs)
        round_weights(name, layer, rule)
    keep_encoders_dense(model)
    return model


def lower_part(model: nn.Module, recipe: Recipe) -> nn.Module:
    """`lower` by a recipe that means a few layers, without a warning that most of the work stays in high precision."""
    lower_products(model, recipe)
    keep_encoders_dense(model)
    return model


def sequential_lower(
    model: nn.Module,
    layer_types: LayerTypes = (),
    forward_number: Number | str | None = None,
    backward_number: Number | str | None = None,
    forward_rounding: RoundingLike = "stochastic",
    backward_rounding: RoundingLike = "stochastic",
    *,
    layer_type: LayerTypes = (),
    rules: Sequence[Rule] = (),
    weight_number: Number | str | None = None,
    weight_rounding: RoundingLike = "nearest",
    overflow: str | None = None,
) -> nn.Module:
    """A new model in which layers are pairs, `Sequential(layer, Quantizer)`; the old one is not touched.

    Index 0 of a pair is the layer, and a pair has the attributes of its layer. The new model can load checkpoints of
    the old one, and its own.

    Args:
        model: any module; if it is itself a layer, the result is a pair.
        layer_types, forward_number, backward_number, forward_rounding, backward_rounding: as for `lower`.
        layer_type, rules, weight_number, weight_rounding, overflow: as for `lower`.

    Returns:
        The new model.

    Raises:
        TypeError, ValueError: as for `lower`.

    Example:
        >>> sequential_lower(nn.Sequential(nn.Linear(5, 1), nn.ReLU()), ["linear"], forward_number="int8")
        Sequential(
          (0): RoundedPair(
            (0): Linear(in_features=5, out_features=1, bias=True)
            (1): Quantizer(forward_number=FixedPoint (wl=8, fl=0), forward_rounding=stochastic)
          )
          (1): ReLU()
        )
    """
    check_model("model", model)
    outputs = Quantization(forward_number, backward_number, forward_rounding, backward_rounding, overflow=overflow)  # type: ignore
    rules = _tuple("rules", rules)
    chosen = _choose(layer_types, layer_type, outputs, weight_number, weight_rounding, overflow, rules)
    model = copy.deepcopy(model)
    matches = _matches(model, chosen, rules, outputs._rounds or weight_number is not None)
    outputs_of = {layer: rule.outputs for layer, (_, rule) in matches.items() if rule.outputs._rounds}
    pairs = {layer: RoundedPair(layer, outputs) for layer, outputs in outputs_of.items()}
    for layer, (name, rule) in matches.items():
        round_weights(name, layer, rule)
    for parent in list(model.modules()):
        for name, child in list(parent.named_modules(remove_duplicate=False)):
            if child in pairs and child is not parent and "." not in name:
                parent.add_module(name, pairs[child])
    keep_encoders_dense(model)
    return pairs.get(model, model)


def _choose(
    layer_types: Any,
    layer_type: Any,
    outputs: Quantization,
    weight_number: Any,
    weight_rounding: Any,
    overflow: Any,
    given: tuple[Any, ...],
) -> tuple[Rule, ...]:
    """The given rules, then one for each layer type of the other arguments. All are checked."""
    rule = Rule("*", None, outputs, weight_number, weight_rounding, overflow)
    made = _tuple("layer_types", layer_types) + _tuple("layer_type", layer_type)
    if given and rule != Rule() and not made:
        raise ValueError("rules have their own formats; those beside them are allowed with layer_types only")
    for one in given:
        if not isinstance(one, Rule):
            raise TypeError(f"rules has a {type(one).__name__}; allowed are Rules")
    chosen = given + tuple(replace(rule, layer_type=kind) for kind in made)
    for one in chosen:
        _classes(one)
    return chosen


def _tuple(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, (str, type, torch.Tensor)) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise TypeError(f"{name}={quoted(values)} is a {kind}; allowed is a list{recipe_hint(values)}")
    return tuple(values)


def _classes(rule: Rule) -> tuple[type, ...] | None:
    """The classes of a rule's layers; None for rules by name alone."""
    kind, allowed = rule.layer_type, f"{', '.join(GROUPS)} and classes of torch.nn.Module"
    if kind is None:
        return None
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        return (kind,)
    if not isinstance(kind, str):
        kinds = f"{type(kind).__name__}; allowed are {allowed}{recipe_hint(kind)}"
        raise TypeError(f"layer_types has {quoted(kind)}, a {kinds}")
    if kind not in GROUPS:
        raise ValueError(f"layer_types has {quoted(kind)}; allowed are {allowed}")
    return GROUPS[kind]


_LAYERS = tuple(kind for group in GROUPS.values() for kind in group)


def _takes(rule: Rule, name: str, layer: nn.Module) -> bool:
    classes = _classes(rule)
    if classes is None:
        return rule.names(name) and (isinstance(layer, _LAYERS) or next(layer.children(), None) is None)
    return rule.names(name) and isinstance(layer, classes)


def _matches(
    model: nn.Module, chosen: Sequence[Rule], given: Sequence[Rule], says: bool
) -> dict[nn.Module, tuple[str, Rule]]:
    """The layers to be lowered, and the name and the rule of each.

    `chosen` are all rules in order, `given` the user's among them; `says` is True if other arguments have a format.
    """
    matches, matched = {}, False
    inside_pairs = {module[0] for module in model.modules() if isinstance(module, RoundedPair)}
    for name, layer in named_layers(model):
        if isinstance(layer, Quantizer) or is_inside_attention(model, name, layer):
            continue
        rule = next((rule for rule in chosen if _takes(rule, name, layer)), None)
        matched = matched or rule in given or (rule is not None and rule._rounds)
        if rule is None or not rule._rounds:
            continue
        if is_rounded(layer) or layer in inside_pairs:
            raise ValueError(f"{name or type(layer).__name__} is lowered already; allowed are layers that are not")
        check_weights(name, layer)
        matches[layer] = name, rule
    if not matched and given:
        raise ValueError(f"rules match no layer; the model has {_some_layers(model)}")
    if not given and not says:
        warn(NOTHING_TO_LOWER)
    elif not matched and not given:
        warn(f"layer_types match no layer, so nothing is lowered; the model has {_some_layers(model)}")
    return matches


def _some_layers(model: nn.Module) -> str:
    """Names and classes of a model's layers, for messages."""
    leaves = [(name, layer) for name, layer in named_layers(model) if next(layer.children(), None) is None]
    texts = [f"{name or 'itself'} ({type(layer).__name__})" for name, layer in leaves]
    return ", ".join(texts[:12]) + (", ..." if len(texts) > 12 else "")
