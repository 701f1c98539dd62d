"""An existing model of flax nnx: switched to functions with defined bits, and given its first numbers from a key."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

import qjax.nnx.products as rounded
from qcore import Recipe
from qcore.arguments import quoted
from qcore.formats.text import parse
from qcore.linalg.product import Product, Products
from qcore.names import shown
from qcore.random import initial_state
from qjax._models import Model, check_model, names_of, places_of, rebuilt
from qjax.linalg import first_scaling
from qjax.reproducible.modules import layers
from qjax.reproducible.modules.checkpoint import is_scaling, load_state_dict, state_dict
from qjax.reproducible.modules.guard import guarded, kind_of
from qjax.reproducible.modules.layers import MultiHeadAttention, check_attention_layer, new_key

_SWITCHED: dict[type[nnx.Module], tuple[str | None, type[nnx.Module]]] = {
    **dict.fromkeys((nnx.Linear, rounded.Linear), ("linear", layers.Linear)),
    **dict.fromkeys((nnx.Conv, rounded.Conv), ("conv", layers.Conv)),
    nnx.LinearGeneral: ("linear", layers.LinearGeneral),
    **{
        getattr(nnx, kind.__name__): (None, kind)
        for kind in (layers.BatchNorm, layers.LayerNorm, layers.RMSNorm, layers.GroupNorm, layers.InstanceNorm)
    },
    **{getattr(nnx, kind.__name__): (None, kind) for kind in (layers.PReLU, layers.Embed, layers.Dropout)},
    nnx.MultiHeadAttention: (None, MultiHeadAttention),
}
_KNOWN = {nnx.Sequential, nnx.List, nnx.Dict}


def convert(model: Model, recipe: Recipe | None = None) -> Model:
    """A copy of a model whose layers compute with the functions of `qjax.reproducible`.

    Functions between layers are not replaced: call the functions of `qjax.reproducible` there, and its loss and
    optimizers. Before the copy runs on arrays of new shapes it is traced, and a function without defined bits raises.

    Args:
        model: any module; it does not change.
        recipe: the products of its linear layers and convolutions. Products that it leaves in high precision, or all
            without a recipe, have float32 operands and the sequential float64 sum; products of attention modules always
            have these. Layers of `qjax.nnx` keep their products. `Entry(first=1, last=1)` counts layers in the order in
            which modules set them, as in PyTorch; models that `nnx.merge` or `nnx.clone` made have them by name.

    Returns:
        The copy. If products or dropout are random, `set_key` must set their keys before each step.

    Raises:
        ValueError: if a layer of flax has no defined bits (its name is in the message), or the recipe does not fit;
            when the copy runs, if a layer calls a function without defined bits.

    Example:
        >>> convert(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))(jnp.ones((1, 2))).shape
        (1, 3)
        >>> convert(nnx.Sequential(nnx.GRUCell(2, 3, rngs=nnx.Rngs(0))))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: layer '0' is a GRUCell, which has no defined bits; allowed are ...
    """
    check_model("model", model)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is a {type(recipe).__name__}; allowed are a Recipe and None")
    found = {name: layer for name, layer in names_of(model).items() if kind_of(layer) not in _KNOWN}
    inner = tuple(
        f"{name}." if name else "" for name, layer in found.items() if kind_of(layer) is nnx.MultiHeadAttention
    )
    parts = {name for name, layer in found.items() if name.startswith(inner) and type(layer) is nnx.LinearGeneral}
    found = {name: layer for name, layer in found.items() if name not in parts}
    for name, layer in sorted(found.items()):  # layers before what is in them
        _check(name, layer)
    kinds = {name: _SWITCHED[kind_of(layer)][0] for name, layer in found.items() if kind_of(layer) in _SWITCHED}
    products: dict[str, Products | None] = {}
    if recipe is not None:
        place = places_of(model)
        multiplied = [(name, kind) for name, kind in kinds.items() if kind is not None]
        multiplied.sort(key=lambda layer: place[layer[0]])
        recipe.check(multiplied)
        products = {name: found for (name, _), found in zip(multiplied, recipe._products_of(multiplied), strict=True)}

    def change(name: str, layer: nnx.Module) -> nnx.Module:
        switched = name in found and kind_of(layer) in _SWITCHED
        return _switched(layer, products.get(name)) if switched else layer

    made = rebuilt(model, change, lambda module: False)
    object.__setattr__(made, "__class__", guarded(kind_of(made)))
    return made  # type: ignore[return-value]


def _check(name: str, layer: Any) -> None:
    kind = kind_of(layer)
    if kind not in _SWITCHED:
        if kind.__module__.startswith("flax."):
            allowed = "the layers that qjax.reproducible has"
            raise ValueError(f"{shown(name)} is a {kind.__name__}, which has no defined bits; allowed are {allowed}")
        return
    if isinstance(layer, nnx.MultiHeadAttention):
        check_attention_layer(shown(name), layer)
    if isinstance(layer, nnx.Conv) and (layer.mask is not None or layer.kernel[...].ndim > 5):
        raise ValueError(f"{shown(name)} has a mask, or more than 3 dimensions; allowed are 1 to 3, without mask")
    axes = {one: getattr(layer, one, -1) for one in ("axis", "feature_axes", "reduction_axes")}
    axes.update({one: getattr(layer, one, None) or -1 for one in ("axis_name", "batch_axis")})
    dilation = getattr(layer, "input_dilation", None)
    axes["input_dilation"] = -1 if dilation in (None, 1) else dilation
    if isinstance(layer, nnx.LinearGeneral) and tuple(layer.axis) == tuple(range(-len(layer.axis), 0)):
        axes["axis"] = -1
    wrong = [one for one, axis in axes.items() if axis not in (None, -1, (-1,))]
    if wrong:
        raise ValueError(f"{shown(name)} has {wrong[0]}={quoted(axes[wrong[0]])}; allowed is the default")
    dtypes = [getattr(layer, one, None) for one in ("dtype", "param_dtype")]
    if any(dtype not in (None, jnp.float32) for dtype in dtypes):
        raise ValueError(f"{shown(name)} has dtype={dtypes[0]}, param_dtype={dtypes[1]}; allowed is float32")


def _switched(layer: Any, products: Products | None) -> nnx.Module:
    texts: Any = None if products is None else products.texts
    if texts is None and isinstance(layer, rounded.Linear | rounded.Conv):
        texts = layer.products[2:]
    kind, successor = _SWITCHED[kind_of(layer)]
    made: Any = object.__new__(successor)
    vars(made).update(vars(layer))
    if successor is layers.Dropout:
        made.key = nnx.data(new_key())
    elif kind is not None:
        stochastic = texts is not None and any(parse(text, Product).stochastic for text in texts)
        made.products, made.key = nnx.static(texts), nnx.data(new_key() if stochastic else None)
        if products is not None or not hasattr(made, "scaling"):
            history = None if products is None else products.history
            made.scaling = nnx.data(None if history is None else rounded.Scaling(first_scaling(history).array))
    return made


def initialize(model: nnx.Module, key: int | tuple[int, int]) -> None:
    """Gives all parameters and statistics their first numbers: the same as in PyTorch, by `qcore.random.initial_state`.

    Args:
        model: as for `state_dict`, converted by `convert` or not; it is changed in place, as flax's modules are.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.

    Returns:
        None; the model is changed in place.

    Raises:
        TypeError, ValueError: if model is not a module, key is not a key, or the model has another parameter; it is
            unchanged then.

    Example:
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> initialize(model, 7)
        >>> model.kernel[...].tolist()
        [[0.6677977442741394], [-0.1035371869802475]]
    """
    before = state_dict(model)
    scales = {name: first_scaling(x.shape[1] - 1).array for name, x in before.items() if is_scaling(name)}
    shapes = {name: x.shape for name, x in before.items() if name not in scales}
    tables, slopes = (
        {f"{name}.weight".lstrip(".") for name, layer in names_of(model).items() if isinstance(layer, kind)}
        for kind in (nnx.Embed, nnx.PReLU)
    )
    load_state_dict(model, initial_state(key, shapes, tables, slopes) | scales)
