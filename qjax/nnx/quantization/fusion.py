"""Fusion of successive layers into one, so that results between them are not rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from qcore.arguments import check_flag
from qcore.names import joined
from qcore.workflow import fusion
from qcore.workflow.fusion import Kind, Norm
from qjax._models import check_model, children_of, rebuilt
from qjax.nnx.activations import ReLU
from qjax.nnx.intrinsic import FUSED, Fused
from qjax.nnx.layouts import flax_layout, torch_layout
from qjax.nnx.quantization.stubs import Identity
from qjax.quantization.functional.conv_bn import ConvBnParams, fold_conv_bn

_KINDS: dict[type[nnx.Module], Kind] = {
    nnx.Linear: Kind("linear"),
    nnx.Conv: Kind("convolution"),
    nnx.ConvTranspose: Kind("transposed"),
    nnx.BatchNorm: Kind("norm"),
    ReLU: Kind("relu"),
}


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
    copy = nnx.clone(model)

    def fuse(layers: list[nnx.Module]) -> list[nnx.Module]:
        return [_fused(layers, relu), *[Identity() for _ in layers[1:]]]

    made = fusion.fused_rows(modules_to_fuse, with_all_names(copy), fuse, least=1 if relu else 2)
    return rebuilt(copy, lambda name, module: made.get(name, module), lambda module: isinstance(module, Fused))


def why_not_fused(parts: Sequence[Any], relu: bool) -> str:
    """The reason why layers in a row are not fused; "" if they are. `relu` is True if a ReLU function follows."""
    kinds, norm, training = [_KINDS.get(type(part), Kind("")) for part in parts], None, False
    if len(parts) > 1 and kinds[1].name == "norm":
        kernel, bn = getattr(parts[0], "kernel", None), parts[1]
        has_scale, training = bn.scale is not None and bn.bias is not None, not bn.use_running_average
        outputs = None if kernel is None else kernel.shape[-1]
        norm = Norm(bn.num_features, outputs, True, has_scale, "use_scale=True and use_bias=True")
    names = [type(part).__name__ for part in parts]
    more = f"; relu={relu}, and a ReLU is qjax.nnx's, or relu=True"
    return fusion.why_not_fused(names, [*kinds, *[Kind("relu")] * relu], training, norm, more)


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


def with_all_names(model: nnx.Module) -> dict[str, nnx.Module]:
    """All modules but lists by all their names; of several with one name the outermost."""
    found: dict[str, nnx.Module] = {}

    def visit(name: str, module: nnx.Module, around: tuple[nnx.Module, ...]) -> None:
        if any(module is one for one in around):  # a module may know the one around it
            return
        if not isinstance(module, nnx.List):
            found.setdefault(name, module)
        for key, child in children_of(module):
            visit(joined(name, key), child, (*around, module))

    visit("", model, ())
    return found
