"""Fusion of successive layers into one, so that results between them are not rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from qcore.arguments import check_flag, check_type, quoted
from qjax._models import check_model, modules_of, name_of, names_of, rebuilt
from qjax.nnx.activations import ReLU
from qjax.nnx.intrinsic import FUSED, Fused
from qjax.nnx.layouts import flax_layout, torch_layout
from qjax.nnx.quantization.stubs import Identity
from qjax.quantization.functional.conv_bn import ConvBnParams, fold_conv_bn


def fuse_modules(
    model: nnx.Module, modules_to_fuse: Sequence[str] | Sequence[Sequence[str]], relu: bool = False
) -> nnx.Module:
    """A copy of a model with fused layers: conv, bn, relu; conv, bn; conv, relu; linear, relu; linear, bn; bn, relu.

    The first name then means the fused layer, and the others mean an `Identity`. A batch norm with
    use_running_average=True (`model.eval()`) is folded into the weights of the layer before it, in the order of
    PyTorch's operations. Otherwise it stays a part of the fused convolution, for `prepare_qat`.

    Args:
        model: the model, which is not changed.
        modules_to_fuse: a list of dotted names, or a list of such lists, in the order in which the model calls them. A
            ReLU has a name if it is a `qjax.nnx.ReLU`.
        relu: True if the model calls `qjax.nnx.relu` after each row. The call may stay, since a second ReLU changes
            nothing.

    Returns:
        The model with fused layers.

    Raises:
        ValueError: if a name does not occur in the model, the types of a row are not one of these rows, a batch norm
            does not fit, or a layer has several names.

    Example:
        >>> rngs = nnx.Rngs(0)
        >>> model = nnx.Sequential(nnx.Conv(1, 2, (3, 3), rngs=rngs), nnx.BatchNorm(2, rngs=rngs), ReLU())
        >>> [type(layer).__name__ for layer in fuse_modules(model, ["0", "1", "2"]).layers]
        ['ConvBnReLU', 'Identity', 'Identity']
    """
    check_model("model", model)
    check_flag("relu", relu)
    check_type("modules_to_fuse", modules_to_fuse, (list, tuple), "a list of names, or of lists of names")
    rows: Any = [modules_to_fuse] if all(isinstance(name, str) for name in modules_to_fuse) else modules_to_fuse
    copy = nnx.clone(model)
    modules = names_of(copy)
    made: dict[str, nnx.Module] = {}
    for row in rows:
        check_type("a row of modules_to_fuse", row, (list, tuple), "a list of names")
        _check_row(copy, row, modules)
        try:
            made[row[0]] = _fused([modules[name] for name in row], relu)
        except (TypeError, ValueError) as error:
            raise type(error)(f"modules_to_fuse has {list(row)}: {error}") from error
        made.update({name: Identity() for name in row[1:]})
    return rebuilt(copy, lambda name, module: made.get(name, module), lambda module: isinstance(module, Fused))


def why_not_fused(parts: Sequence[Any], relu: bool) -> str:
    """The reason why layers in a row are not fused; "" if they are. `relu` is True if a ReLU function follows."""
    layer, types = parts[0], tuple(map(type, parts))
    has_norm = len(parts) > 1 and types[1] is nnx.BatchNorm
    rest = types[1 + has_norm :]
    alone = types[0] is nnx.BatchNorm and not has_norm and (rest or relu)
    transposed = types[0] is nnx.ConvTranspose and has_norm and parts[1].use_running_average and not (rest or relu)
    known = alone or types[0] in (nnx.Linear, nnx.Conv) or transposed
    if not known or rest not in ((), (ReLU,)) or (relu and rest):
        names = ", ".join(kind.__name__ for kind in types)
        return (
            f"there is no fused layer of ({names}) with relu={relu}; allowed are, in this order and exactly, a Conv "
            "and its BatchNorm, a Conv, Linear or BatchNorm and a ReLU, all three, and in evaluation a Linear or "
            "ConvTranspose and its BatchNorm; ReLU is qjax.nnx's, or relu=True"
        )
    if not has_norm:
        return ""
    bn, outputs = parts[1], layer.kernel.shape[-1]
    if bn.num_features != outputs:
        return f"the batch norm has num_features={bn.num_features}; allowed is {outputs}"
    if not bn.use_running_average and (types[0] is nnx.Linear or bn.scale is None or bn.bias is None):
        return (
            "the batch norm is in training; allowed is use_running_average=True (model.eval()), or a Conv before a "
            "batch norm with scale and bias"
        )
    return ""


def _fused(parts: list[Any], relu: bool) -> nnx.Module:
    if reason := why_not_fused(parts, relu):
        raise ValueError(reason)
    layer, kind = parts[0], type(parts[0])
    bn = parts[1] if len(parts) > 1 and type(parts[1]) is nnx.BatchNorm else None
    if bn is not None and bn.use_running_average:
        layer, bn = folded_layer(layer, bn), None
    relu = relu or type(parts[-1]) is ReLU
    return layer if bn is None and not relu else FUSED[kind, bn is not None, relu](layer, bn)


def folded_layer(layer: Any, bn: nnx.BatchNorm) -> Any:
    """A convolution or linear layer after folding a batch norm's running statistics; see `fold_conv_bn`."""
    mean, var = (one[...].astype(jnp.float32) for one in (bn.mean, bn.var))
    gamma = jnp.ones_like(mean) if bn.scale is None else bn.scale[...]
    beta = jnp.zeros_like(mean) if bn.bias is None else bn.bias[...]
    params = ConvBnParams(torch_layout(layer), None if layer.bias is None else layer.bias[...], gamma, beta)
    weight, bias = fold_conv_bn(params, mean, var, bn.epsilon, linear=isinstance(layer, nnx.Linear))
    return with_parameters(layer, flax_layout(weight, isinstance(layer, nnx.ConvTranspose)), bias)


def with_parameters(layer: Any, kernel: Any, bias: Any) -> Any:
    """A copy of a convolution or linear layer with another kernel and bias, in the layer's dtype."""
    made: Any = nnx.clone(layer, variables=False)
    made.kernel = nnx.Param(kernel.astype(layer.kernel.dtype))
    made.bias = nnx.data(None) if bias is None else nnx.Param(bias.astype(layer.kernel.dtype))
    made.use_bias = bias is not None
    return made


def _check_row(model: nnx.Module, row: Sequence[str], modules: dict[str, nnx.Module]) -> None:
    if not row:
        raise ValueError("modules_to_fuse has an empty list; allowed are lists of names: [['conv', 'bn', 'relu']]")
    for name in row:
        if not isinstance(name, str):
            raise TypeError(f"modules_to_fuse has {quoted(name)}; allowed are lists of names: [['conv', 'bn', 'relu']]")
        if name not in modules:
            raise ValueError(
                f"modules_to_fuse has {quoted(name)}, which names no module; there are {sorted(modules)[1:13]}"
            )
    if len(set(row)) < len(row):
        raise ValueError(f"modules_to_fuse has {list(row)}; allowed are different layers")
    paths = modules_of(model)
    shared = aliases(model)
    for name in row:
        path = next(path for path in paths if name_of(path, paths) == name)
        if len(names := shared[id(paths[path])]) > 1:
            raise ValueError(f"modules_to_fuse has {quoted(name)}, which is one layer with the names {sorted(names)}")


def aliases(model: nnx.Module) -> dict[int, set[str]]:
    """All names of each module, by its id."""
    found: dict[int, set[str]] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, nnx.Module):
            seen = id(value) in found
            found.setdefault(id(value), set()).add(name)
            if not seen:
                children = enumerate(value) if isinstance(value, nnx.List) else vars(value).items()
                for key, child in children:
                    visit(f"{name}.{key}" if name else str(key), child)

    visit("", model)
    return found
