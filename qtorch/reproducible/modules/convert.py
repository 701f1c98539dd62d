"""An existing model: switched to functions with defined bits, and given its first numbers from a key."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from qcore import Recipe
from qcore.arguments import check_type
from qcore.random import initial_state
from qtorch import linalg
from qtorch._torch_internals import constant_result, hidden_functions, show_to_modes
from qtorch.recipes.products import lower_products
from qtorch.reproducible.modules import layers
from qtorch.reproducible.modules.guard import Guard, resumed
from qtorch.reproducible.modules.layers import MultiheadAttention, check_attention_layer
from qtorch.reproducible.modules.registry import DEFINED, RANDOM, named

Model = TypeVar("Model", bound=nn.Module)

_SWITCHED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: layers.Dropout,
    nn.MultiheadAttention: MultiheadAttention,
    **dict.fromkeys((nn.Linear, linalg.Linear, layers.Linear), layers.Linear),
    **dict.fromkeys((nn.Conv1d, linalg.Conv1d, layers.Conv1d), layers.Conv1d),
    **dict.fromkeys((nn.Conv2d, linalg.Conv2d, layers.Conv2d), layers.Conv2d),
    **dict.fromkeys((nn.Conv3d, linalg.Conv3d, layers.Conv3d), layers.Conv3d),
}
# Layers whose functions have rows in the registry, and layers without functions.
_KNOWN = named(
    "Sequential ModuleList ModuleDict ParameterList ParameterDict Identity Embedding "
    "Flatten Unflatten PixelShuffle PixelUnshuffle ChannelShuffle UpsamplingNearest2d "
    "ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d CircularPad1d CircularPad2d CircularPad3d "
    "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d "
    "BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm RMSNorm GroupNorm "
    "Softmax Softmax2d LogSoftmax ReLU ReLU6 LeakyReLU PReLU Hardtanh Hardsigmoid Hardswish ELU SELU CELU GELU SiLU "
    "Mish GLU Tanh Sigmoid LogSigmoid Softplus Softsign Tanhshrink MaxPool1d MaxPool2d AvgPool1d AvgPool2d "
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool2d CrossEntropyLoss MSELoss",
    nn,
) | {NonDynamicallyQuantizableLinear}  # a part of attention


def convert(model: Model, recipe: Recipe | None = None) -> Model:
    """Makes a model compute with the functions of `qtorch.reproducible`, in place: same object, parameters and names.

    Layers of torch.nn and torch's functions between them are replaced by functions with defined bits. While the model
    runs, a function without defined bits raises. The caller chooses loss and optimizer; `qtorch.reproducible` has some.
    With `torch.compile`, compile the converted model.

    Args:
        model: any module; its own code and the code of its layers may call any function of torch.
        recipe: the products of its linear layers and convolutions, as for `qtorch.recipes.lower`. Products that it
            leaves in high precision, or all without a recipe, have float32 operands and the sequential float64 sum;
            products of attention modules always have these. A model that `lower` made keeps its products.

    Returns:
        The same model. If products or dropout are random, `set_key` must set their keys before each step.

    Raises:
        ValueError: if a layer of torch.nn has no defined bits (its name is in the message), or the recipe does not fit;
            the model is unchanged then.

    Example:
        >>> model = convert(nn.Sequential(nn.Linear(2, 3), nn.GELU()))
        >>> model(torch.ones(1, 2)).shape
        torch.Size([1, 3])
        >>> convert(nn.Sequential(nn.Linear(2, 3), nn.GRU(3, 3)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: layer '1' is a GRU, which has no defined bits; allowed are ...
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; allowed is a torch.nn.Module")
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is a {type(recipe).__name__}; allowed are a Recipe and None")
    for name, layer in model.named_modules():
        _check(name, layer)
    if recipe is not None:
        lower_products(model, recipe, functions=False)
    for layer in model.modules():
        _switch(layer)
    model.__class__ = _guarded(_kind(model))
    return model


def _check(name: str, layer: nn.Module) -> None:
    kind, where = _kind(layer), f"layer '{name}'" if name else "the model itself"
    if kind in _SWITCHED:
        if isinstance(layer, nn.MultiheadAttention):
            check_attention_layer(where, layer)
    elif kind.__module__.startswith("torch.nn") and kind not in _KNOWN:
        allowed = "the layers that qtorch.reproducible has"
        raise ValueError(f"{where} is a {kind.__name__}, which has no defined bits; allowed are {allowed}")
    for parameter in layer.parameters(recurse=False):
        if parameter.dtype is not torch.float32:
            raise ValueError(f"{where} has a parameter of {parameter.dtype}; allowed is torch.float32")


def _switch(layer: Any) -> None:
    successor = _SWITCHED.get(_kind(layer))
    if successor is None:
        return
    layer.__class__ = successor
    if isinstance(layer, layers.Dropout):
        layers.add_key(layer)
    if isinstance(layer, layers.Dropout | MultiheadAttention):
        return
    if not hasattr(layer, "products"):
        layer.set_products({})
    if layers.is_stochastic(layer.products):
        layers.add_key(layer)


def _kind(layer: nn.Module) -> type[nn.Module]:
    """A layer's class, without the guard that it may have."""
    return getattr(type(layer), "guarded", type(layer))


@constant_result
def _show_functions() -> int:
    show_to_modes({*DEFINED, *RANDOM, *hidden_functions()})
    return 0


@cache
def _guarded(class_: type[nn.Module]) -> type[nn.Module]:
    """A class of modules that run under the guard; it has the name of its base."""

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            _show_functions()
        with resumed(), Guard(self):
            return class_.forward(self, *arguments, **options)

    members = {"forward": forward, "guarded": class_, "__module__": class_.__module__, "__doc__": class_.__doc__}
    return type(class_.__name__, (class_,), members)


_COUNT = "num_batches_tracked"  # of a norm; it begins with zero
_SCALES = "scaling"  # begins the names of states of delayed scales
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_NORMS = (*_BATCH_NORMS, *_INSTANCE_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_INITIALIZED = (nn.Linear, *_CONVOLUTIONS, *_NORMS, nn.Embedding, nn.MultiheadAttention, nn.PReLU)


def initialize(model: nn.Module, key: int | tuple[int, int]) -> None:
    """Gives all parameters and statistics their first numbers: the same as in JAX, by `qcore.random.initial_state`.

    Args:
        model: a model of linear layers, convolutions, norms, embeddings, PReLU and attention, converted by `convert` or
            not; it is changed in place.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.

    Returns:
        None; the model is changed in place.

    Raises:
        TypeError, ValueError: if model is not a module, key is not a key, or the model has another layer of torch.nn
            with parameters, or another parameter; it is unchanged then.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> initialize(model, 7)
        >>> model.weight.tolist()
        [[0.6677977442741394, -0.1035371869802475]]
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    for name, layer in model.named_modules():
        _check_known(name, layer)
    state = model.state_dict()
    scales = {name: x for name, x in state.items() if name.rpartition(".")[2].startswith(_SCALES)}
    shapes = {name: x.shape for name, x in state.items() if not name.endswith(_COUNT) and name not in scales}
    tables, slopes = (
        {f"{name}.weight".lstrip(".") for name, layer in model.named_modules() if isinstance(layer, kind)}
        for kind in (nn.Embedding, nn.PReLU)
    )
    found = {name: torch.from_numpy(x) for name, x in initial_state(key, shapes, tables, slopes).items()}
    found |= {name: linalg.first_scaling(x.shape[1] - 1)[: len(x)] for name, x in scales.items()}
    model.load_state_dict({name: torch.zeros_like(x) for name, x in state.items()} | found)


def _check_known(name: str, layer: nn.Module) -> None:
    """Raises for a layer of torch.nn with parameters that is not in the table; other modules' parameters go by name."""
    of_torch = type(layer).__module__.startswith("torch.nn.modules")
    if of_torch and not isinstance(layer, _INITIALIZED) and next(layer.parameters(recurse=False), None) is not None:
        where = f"layer '{name}'" if name else "the model itself"
        allowed = "linear layers, convolutions, norms, embeddings, PReLU and attention"
        kind = type(layer).__name__
        raise ValueError(f"{where} is a {kind}, whose first numbers are not defined; allowed are {allowed}")
