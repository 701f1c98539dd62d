"""Lowers the products of a model by a recipe."""

from __future__ import annotations

from typing import Any

from torch import nn

from qcore import Recipe
from qcore.linalg.product import Products
from qcore.recipes.recipe import CONV, FUNCTION_TYPES, LINEAR
from qtorch._classes import change_class, plain_class
from qtorch._torch_internals import check_modes, own_parameters
from qtorch.arithmetic.composed import Tensors
from qtorch.linalg import Conv1d, Conv2d, Conv3d, Linear, first_scaling
from qtorch.recipes.layers import CONVOLUTIONS, RoundedPair, check_weights, has_products, named_layers, rounds_outputs
from qtorch.recipes.modes import KINDS, LOWERED, Lowering, enter_forward, entering, product_arguments, weights_of

_LAYERS: dict[type[nn.Module], tuple[str, Any]] = {
    nn.Linear: (LINEAR, Linear),
    nn.Conv1d: (CONV, Conv1d),
    nn.Conv2d: (CONV, Conv2d),
    nn.Conv3d: (CONV, Conv3d),
}
# Modules of torch that multiply by functions, not by other modules.
_MULTIPLYING = (
    nn.Linear,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
    *CONVOLUTIONS,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
)
# Modules of torch that are a function of which a recipe has the steps.
_FUNCTIONS = (nn.Softmax, nn.Softmax2d, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.LayerNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def product_sites(model: nn.Module) -> dict[str, int]:
    """The layers that `choose_formats` measures, by their dotted names, with their numbers of weights."""
    layers = ((name, layer) for name, layer in named_layers(model) if plain_class(layer) in _LAYERS)
    return {name: layer.weight.numel() for name, layer in layers}  # type: ignore[operator, union-attr, misc]


def is_plain(layer: nn.Module) -> bool:
    """True of layers that become layers of `qtorch.linalg`: torch's own, with torch's own forward."""
    is_torchs = type(layer) in _LAYERS and "forward" not in vars(layer)
    return is_torchs and not any(x.is_complex() for x in own_parameters(layer).values())


def layer_kind(layer: nn.Module) -> str | None:
    """The kind of a layer in a recipe; None for modules without a weight of their own to multiply by.

    A module of a program is a layer if it has no children and owns a parameter of two dimensions or more.
    """
    if isinstance(layer, CONVOLUTIONS):
        return CONV
    if isinstance(layer, _MULTIPLYING):
        return None if isinstance(layer, nn.Transformer | nn.TransformerEncoder | nn.TransformerDecoder) else LINEAR
    if _is_torchs(layer) or next(layer.children(), None) is not None:
        return None
    is_matrix = any(x.dim() >= 2 for x in own_parameters(layer).values())
    return LINEAR if is_matrix and not isinstance(layer, _EMBEDDINGS) else None


def _own_kinds(layer: nn.Module) -> tuple[str, ...]:
    """The kinds of the products that a module may have with weights of its own, or of its lists of parameters."""
    if _is_torchs(layer):
        return ()
    lists = [child for child in layer.children() if isinstance(child, nn.ParameterList | nn.ParameterDict)]
    dims = [x.dim() for part in (layer, *lists) for x in own_parameters(part).values()]
    most = 0 if isinstance(layer, _EMBEDDINGS) else max(dims, default=0)
    return (LINEAR, CONV)[: max(most - 1, 0)]


def has_functions(layer: nn.Module) -> bool:
    """True of modules whose own code may multiply: all modules of programs, and some of torch's."""
    return isinstance(layer, _MULTIPLYING) if _is_torchs(layer) else True


def _is_torchs(layer: nn.Module) -> bool:
    """True of modules whose classes are torch's, or ours."""
    return plain_class(layer).__module__.startswith(("torch.", "qtorch."))


def lower_products(model: nn.Module, recipe: Recipe, functions: bool = True) -> None:
    """Makes a model multiply by a recipe, in place: objects, parameters and hooks stay the same.

    Layers of torch.nn become layers of `qtorch.linalg`. All other modules that may multiply enter a mode; see
    `qtorch.recipes.modes`.

    Args:
        model: any module.
        recipe: the products.
        functions: False changes only layers of torch.nn.

    Raises:
        ValueError: if a layer is lowered already or has no weight yet, or no entry or pattern matches; the model is
            unchanged then.
    """
    named = [(name, layer) for name, layer in named_layers(model) if not is_inside_attention(model, name, layer)]
    for name, layer in named:
        if has_products(layer) or (rounds_outputs(layer) and (has_functions(layer) or isinstance(layer, RoundedPair))):
            raise ValueError(f"{name or type(model).__name__} is lowered already; allowed are layers that are not")
        check_weights(name, layer)
    named = [(name, layer) for name, layer in named if functions or is_plain(layer)]
    calls = _FUNCTIONS if any(entry.arithmetic for entry in recipe.entries) else ()
    entered = [name for name, layer in named if has_functions(layer) or isinstance(layer, calls)]
    layers = [(name, kind) for name, layer in named if (kind := layer_kind(layer)) is not None]
    own = [(name, kind) for name, layer in named if has_functions(layer) for kind in _own_kinds(layer)]
    recipe.check([*layers, *own], entered)
    chosen = dict(zip(layers, recipe._products_of(layers), strict=True))
    for name, layer in named:
        found = chosen.get((name, layer_kind(layer) or "")) if is_plain(layer) else None
        if found is not None:
            layer.__class__ = _LAYERS[type(layer)][1]
            layer.set_products(product_arguments(found))  # type: ignore[operator]
        elif functions and name in entered:
            # Layers that stay in high precision, too: else the module around them finds their products.
            check_modes()
            _enter(name, layer, recipe, chosen)


def _enter(name: str, layer: nn.Module, recipe: Recipe, chosen: dict[tuple[str, str], Any]) -> None:
    """Gives a module the mode that lowers the products of its own methods."""
    products, reasons = {}, {}
    for kind in KINDS:
        entry = recipe._entry_at(name, kind)
        found = chosen.get((name, kind), entry and entry.products)
        products[kind] = found
        if found is None:
            reasons[kind] = recipe.why_wide(name, kind)
    entries = {kind: recipe._entry_at(name, kind) for kind in FUNCTION_TYPES}
    steps = {kind: Tensors(kind, one.arithmetic) for kind, one in entries.items() if one and one.arithmetic}
    before = vars(layer).get("qtorch_lowering")  # of a module whose weights are rounded
    weight = None if before is None else before.weight
    states = _make_states(layer, products)
    layer.qtorch_lowering = Lowering(name, products, reasons, weight, states, functions=steps)  # type: ignore[assignment]
    if before is None:
        enter_forward(layer)
        change_class(layer, LOWERED, entering)


def _make_states(layer: nn.Module, products: dict[str, Products | None]) -> dict[str, str]:
    """Registers a state of delayed scales for each weight that a module may multiply by; returns their names."""
    states = {}
    for name, weight in zip(*weights_of(layer), strict=True):
        if weight.dim() < 2 or name in states or isinstance(layer, _EMBEDDINGS):
            continue
        kinds = (LINEAR,) if weight.dim() == 2 else (CONV, LINEAR)  # a weight of experts has more dimensions, too
        histories = [one.history for kind in kinds if (one := products[kind]) is not None and one.history is not None]
        if histories:
            states[name] = f"scaling_of_{name.replace('.', '_')}"
            layer.register_buffer(states[name], first_scaling(histories[0], weight.device))
    return states


def is_inside_attention(model: nn.Module, name: str, layer: nn.Module) -> bool:
    """True of the output projection of nn.MultiheadAttention, whose weight the attention itself multiplies by."""
    return name.rpartition(".")[2] == "out_proj" and any(
        isinstance(other, nn.MultiheadAttention) and other.out_proj is layer for other in model.modules()
    )
