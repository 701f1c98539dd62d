"""Layers that multiply as a recipe says."""

from __future__ import annotations

from typing import Any

from torch import nn

from qcore import Recipe
from qtorch.auto_low.layers import is_lowered, mark_called, multiplies
from qtorch.linalg import Conv1d, Conv2d, Conv3d, Linear

_LAYERS: dict[type[nn.Module], tuple[str, Any]] = {
    nn.Linear: ("linear", Linear),
    nn.Conv1d: ("conv", Conv1d),
    nn.Conv2d: ("conv", Conv2d),
    nn.Conv3d: ("conv", Conv3d),
}


def product_sites(model: nn.Module) -> dict[str, int]:
    """The layers that a recipe may apply to, by their dotted names, and how many weights each has."""
    return {name: layer.weight.numel() for name, layer in model.named_modules() if type(layer) in _LAYERS}  # type: ignore


def lower_products(model: nn.Module, recipe: Recipe) -> None:
    """Turns layers into those of `qtorch.linalg`, in place: the same objects with the same parameters and hooks.

    Subclasses are no layers: what their own `forward` computes is not known.

    Raises:
        ValueError: if a layer is lowered already, is a convolution that `qtorch.linalg` has not, or an entry matches no
            layer; the model is unchanged then.
    """
    layers = {name: layer for name, layer in model.named_modules() if type(layer) in _LAYERS}
    lowered = [name for name, layer in model.named_modules() if is_lowered(layer) or multiplies(layer)]
    if lowered:
        raise ValueError(f"{lowered[0] or type(model).__name__} is lowered already; allowed are layers that are not")
    named = [(name, _LAYERS[type(layer)][0]) for name, layer in layers.items()]
    recipe.check(named)
    found = zip(layers.values(), recipe.products_of(named), strict=True)
    chosen = {layer: products for layer, products in found if products is not None}
    for layer in chosen:
        _LAYERS[type(layer)][1].check_layer(layer)
    for layer, products in chosen.items():
        layer.__class__ = _LAYERS[type(layer)][1]
        layer.set_products(  # type: ignore[operator]
            {
                "operands": products.forward.operands,
                "accumulator": products.forward.accumulator,
                "grad_input": products.grad_a,
                "grad_weight": products.grad_b,
            }
        )
        mark_called(layer)
