"""Fusion: layers in a row become one layer, so that the values between them are not rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn

from qcore.arguments import check_type, quoted
from qcore.workflow.fusion import Kind, Norm, fused_rows, why_not_fused
from qtorch._classes import check_model
from qtorch._torch_internals import drop_forward_hooks
from qtorch.nn.intrinsic.fused import FUSED, Fused, folded_layer
from qtorch.quantization.aliases import follow
from qtorch.quantization.swap import take_hooks
from qtorch.quantization.tree import check_mapping, copied, entry_of

Fuser = Callable[..., list[nn.Module]]
LayerTypes = TypeVar("LayerTypes", bound=tuple[type[nn.Module], ...])  # as `LayerType`, of the layers in a row
_KINDS: dict[type[nn.Module], Kind] = {nn.Linear: Kind("linear", 1), nn.ReLU: Kind("relu")}
for _name, _class in {"convolution": "Conv", "transposed": "ConvTranspose", "norm": "BatchNorm"}.items():
    _KINDS |= {getattr(nn, f"{_class}{dims}d"): Kind(_name, dims) for dims in (1, 2, 3)}


def fuse_modules(
    model: nn.Module,
    modules_to_fuse: Sequence[str] | Sequence[Sequence[str]],
    inplace: bool = False,
    fuser_func: Fuser | None = None,
    fuse_custom_config_dict: Mapping[str, Mapping[LayerTypes, Callable[..., nn.Module]]] | None = None,
) -> nn.Module:
    """A copy of a model in which layers in a row are one: conv, bn; conv, bn, relu; conv, relu; linear, relu; bn, relu.

    The fused layer has the first name; at the other names is `torch.nn.Identity`. In evaluation a batch norm is folded
    into the weights of the convolution, or linear layer, before it. In training it stays beside a convolution, for
    `prepare_qat`, and the numbers stay as they are.

    Args:
        model: the float model; the layers of a row are all in evaluation, or all in training.
        modules_to_fuse: a list of names, or a list of such lists, in the order in which the model calls them.
        inplace: whether model itself is changed.
        fuser_func: a function of a row's list of layers that returns a list of the same length; None for
            `fuse_known_modules`.
        fuse_custom_config_dict: {"additional_fuser_method_mapping": {(Type, ...): function}}, where
            function(training, layer, ...) returns the fused layer of a row of these types.

    Returns:
        The model with fused layers.

    Raises:
        ValueError: if a name is not in the model, a row has no known types, layers of a row are in different
            modes, have different settings, or are used under other names too, or a batch norm does not fit.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval()
        >>> [type(layer).__name__ for layer in fuse_modules(model, ["0", "1", "2"])]
        ['ConvReLU2d', 'Identity', 'Identity']
    """
    fuser = fuse_known_modules if fuser_func is None else fuser_func
    check_type("fuser_func", fuser, Callable, "a function of a list of modules")
    model = copied(model, inplace)
    more = entry_of("fuse_custom_config_dict", fuse_custom_config_dict, "additional_fuser_method_mapping")

    def fuse(layers: list[nn.Module]) -> list[nn.Module]:
        _check_together(layers)
        made = fuser(layers, more) if fuser is fuse_known_modules else fuser(layers)
        if len(made) != len(layers):
            raise ValueError(f"fuser_func returned {len(made)} modules; allowed are as many as it got, {len(layers)}")
        return made

    names = dict(model.named_modules(remove_duplicate=False))
    fused = fused_rows(modules_to_fuse, names, fuse)
    for name, layer in fused.items():
        model.set_submodule(name, layer)
    follow(model, [(names[name], layer) for name, layer in fused.items()])
    return model


def fuse_modules_qat(
    model: nn.Module,
    modules_to_fuse: Sequence[str] | Sequence[Sequence[str]],
    inplace: bool = False,
    fuser_func: Fuser | None = None,
    fuse_custom_config_dict: Mapping[str, Mapping[LayerTypes, Callable[..., nn.Module]]] | None = None,
) -> nn.Module:
    """`fuse_modules` that checks that the model is in training.

    Args:
        model, modules_to_fuse, inplace, fuser_func, fuse_custom_config_dict: as for `fuse_modules`.

    Returns:
        The model with fused layers, in training: a copy, or with inplace=True model itself.

    Raises:
        TypeError, ValueError: as `fuse_modules` does, and if the model is in evaluation.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        >>> [type(layer).__name__ for layer in fuse_modules_qat(model, ["0", "1", "2"])]
        ['ConvBnReLU2d', 'Identity', 'Identity']
    """
    if isinstance(model, nn.Module) and not model.training:
        raise ValueError("model is in evaluation; allowed is one in training (model.train()), or fuse_modules")
    return fuse_modules(model, modules_to_fuse, inplace, fuser_func, fuse_custom_config_dict)


def fuse_known_modules(
    mod_list: list[nn.Module],
    additional_fuser_method_mapping: Mapping[LayerTypes, Callable[..., nn.Module]] | None = None,
) -> list[nn.Module]:
    """The fused layer, followed by `torch.nn.Identity` in the other places of the row; see `fuse_modules`.

    The fused layer takes the pre-hooks of the first layer and the hooks of the last one.

    Args:
        mod_list: the layers of a row.
        additional_fuser_method_mapping: functions by tuples of types, as for `fuse_modules`.

    Returns:
        A list as long as mod_list, of modules in the mode (training or evaluation) of the first layer.

    Raises:
        ValueError: if there is no layer, the types are not known in this order, or a batch norm does not fit.

    Example:
        >>> fuse_known_modules([nn.Linear(1, 1), nn.ReLU()])[1]
        Identity()
    """
    check_type("mod_list", mod_list, (Sequence, nn.Sequential, nn.ModuleList), "a list of modules")
    for index, layer in enumerate(mod_list):
        check_model(f"mod_list[{index}]", layer)
    if not mod_list:
        raise ValueError(f"mod_list={quoted(mod_list)}; allowed are one or more modules")
    more: Mapping[Any, Any] = {} if additional_fuser_method_mapping is None else additional_fuser_method_mapping
    check_mapping("additional_fuser_method_mapping", more)
    types = tuple(map(type, mod_list))
    training = mod_list[0].training
    fused = more[types](training, *mod_list) if types in more else _fused(mod_list, training)
    for layer in mod_list:
        if hasattr(layer, "qconfig"):
            fused.qconfig = layer.qconfig
    take_hooks(fused, mod_list[0], mod_list[-1])
    drop_forward_hooks(mod_list[0], True, bool)  # parts of the fused layer would call them once more
    drop_forward_hooks(mod_list[-1], False, bool)
    return [fused.train(training), *(nn.Identity().train(training) for _ in mod_list[1:])]


def has_fused_layer(layers: Sequence[nn.Module]) -> bool:
    """True if `fuse_known_modules` fuses these layers, in their mode."""
    return not _why_not_fused(layers)


def _why_not_fused(layers: Sequence[Any]) -> str:
    kinds, first, norm = [_KINDS.get(type(layer), Kind("")) for layer in layers], layers[0], None
    if len(layers) > 1 and kinds[1].name == "norm":
        bn, outputs = layers[1], getattr(first, "out_features", getattr(first, "out_channels", None))
        remedy = "track_running_stats=True and affine=True"
        norm = Norm(bn.num_features, outputs, bn.running_mean is not None, bn.affine, remedy)
    return why_not_fused([type(layer).__name__ for layer in layers], kinds, first.training, norm)


def _fused(layers: list[nn.Module], training: bool) -> nn.Module:
    if reason := _why_not_fused(layers):
        raise ValueError(reason)
    if not training and _KINDS[type(layers[1])].name == "norm":
        layers = [folded_layer(layers[0], layers[1]), *layers[2:]]
    return FUSED[tuple(map(type, layers))](*layers) if len(layers) > 1 else layers[0]


def _check_together(layers: list[nn.Module]) -> None:
    """Raises ValueError unless layers have one mode and the same settings, and none is fused."""
    if len({layer.training for layer in layers}) > 1:
        names = ", ".join("training" if layer.training else "evaluation" for layer in layers)
        raise ValueError(f"the layers are in {names}; allowed is one mode: model.train() or model.eval()")
    if any(isinstance(layer, Fused) for layer in layers):
        raise ValueError("a part is fused already")
    settings = [layer.qconfig for layer in layers if hasattr(layer, "qconfig")]
    if any(one != settings[0] for one in settings):
        raise ValueError("the layers have different qconfigs; allowed is one for all")
