"""Layers of subclasses as parts: torch's own layer, and the layers that act before or behind it.

timm and efficientnet have convolutions that pad, and batch norms that end in an activation. `convert` swaps exact types
only, since a subclass may compute anything. Here a layer and its parts run on the same data: if the bits are equal, the
parts replace the layer. Data do not reach all code, so this holds for known classes, for classes that change no method
of torch's layer, and for the layers that the user names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from qcore.arguments import check_type, quoted
from qtorch._classes import plain_class
from qtorch.quantization.quantization_mappings import (
    UNOBSERVED,
    get_default_static_quant_module_mappings,
    keeps_children,
)
from qtorch.quantization.swap import take_hooks
from qtorch.quantization.tree import rebuilt

_SPATIAL = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_TENSORS = "weight", "bias", "running_mean", "running_var", "num_batches_tracked"  # None in some layers
_CROPS = 3  # rows and columns that are cut from the data: a padding may depend on the size modulo the stride


class SamePad(nn.Module):
    """Zeros around images, so that a convolution has ceil(size / stride) results: the padding "SAME" of TensorFlow.

    Args:
        kernel_size, stride, dilation: the convolution's, an int for each dimension.

    Example:
        >>> SamePad((3,), (2,), (1,))(torch.ones(1, 1, 4))
        tensor([[[1., 1., 1., 1., 0.]]])
    """

    def __init__(self, kernel_size: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> None:
        super().__init__()
        self.windows = tuple(zip(kernel_size, stride, dilation, strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pads = list[int]()
        for size, (kernel, stride, dilation) in zip(x.shape[-len(self.windows) :], self.windows, strict=True):
            missing = max(((size - 1) // stride) * stride + (kernel - 1) * dilation + 1 - size, 0)
            pads = [missing // 2, missing - missing // 2, *pads]
        return nn.functional.pad(x, pads) if any(pads) else x


class Parts(nn.Sequential):
    """A layer of torch.nn, `inner`, between the layers that a subclass of it applies before and behind it.

    Attributes that it does not have are the layer's, for code that reads `conv.stride`.

    Args:
        before: modules by name.
        inner: the layer.
        behind: modules by name.

    Example:
        >>> Parts({"pad": nn.ZeroPad2d(1)}, nn.Conv2d(1, 1, 3), {}).kernel_size
        (3, 3)
    """

    def __init__(self, before: dict[str, nn.Module], inner: nn.Module, behind: dict[str, nn.Module]) -> None:
        super().__init__(OrderedDict(before | {"inner": inner} | behind))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name == "inner":
                raise
            return getattr(self.inner, name)


# By module and name: on any data these compute torch's layer, and layers before or behind it.
_KNOWN = {
    "timm.layers.conv2d_same.Conv2dSame",
    "timm.layers.linear.Linear",
    "timm.layers.norm.GroupNorm",
    "timm.layers.norm.GroupNorm1",
    "timm.layers.norm.LayerNorm",
    "timm.layers.norm_act.BatchNormAct2d",
    "timm.layers.norm_act.GroupNormAct",
    "timm.layers.norm_act.GroupNorm1Act",
    "timm.layers.norm_act.LayerNormAct",
    "efficientnet_pytorch.utils.Conv2dDynamicSamePadding",
    "efficientnet_pytorch.utils.Conv2dStaticSamePadding",
    "detectron2.layers.wrappers.Conv2d",
    "transformers.models.perceiver.modeling_perceiver.Conv2dSamePadding",
}
_HARMLESS = {"__init__", "reset_parameters", "extra_repr", "__repr__"}  # methods that no call of a layer runs
_CALLS = {"__call__", "__getattr__", "__getattribute__"}


def is_known(layer: nn.Module) -> bool:
    """True if the code of a layer of a subclass is known on all data: it is in the list, or all of it is torch's."""
    kind, base = plain_class(layer), base_of(layer)
    if f"{kind.__module__}.{kind.__qualname__}" in _KNOWN:
        return True
    own = {name for one in kind.__mro__[: kind.__mro__.index(base)] for name in vars(one)}
    members = {name for name in dir(base) if not name.startswith("__")} | {"weight", "bias"} | _CALLS
    return not (own & members) - _HARMLESS


def check_trusted(trusted: Any, model: nn.Module) -> None:
    """Raises unless all of `trusted` are classes or names of layers of the model that have a base class in torch.nn."""
    if isinstance(trusted, (str, type)) or not isinstance(trusted, Iterable):
        raise TypeError(f"trusted={quoted(trusted)}; allowed is a list of classes and names of layers")
    layers = {path: plain_class(layer) for path, layer in model.named_modules(remove_duplicate=False)}
    known = get_default_static_quant_module_mappings()
    derived = {path: kind for path, kind in layers.items() if kind not in known and issubclass(kind, tuple(known))}
    for one in trusted:
        check_type(f"{quoted(one)} of trusted", one, (str, type), "a class or a name of layers")
        if one not in derived and one not in derived.values():
            what = quoted(one) if isinstance(one, str) else one.__name__
            names = ", ".join(f"{path} ({kind.__name__})" for path, kind in derived.items()) or "none"
            raise ValueError(f"trusted has {what}; layers of subclasses are: {names}")


def base_of(layer: nn.Module) -> Any:
    """The base class of a layer in torch.nn that has an integer form, or None."""
    known, kind = get_default_static_quant_module_mappings(), plain_class(layer)
    if kind in known or getattr(layer, "qconfig", None) is None:
        return None
    return next((one for one in kind.__mro__ if one in known and one not in UNOBSERVED), None)


def taken_apart(model: nn.Module, inputs: dict[str, Any], wanted: Callable[[nn.Module], bool]) -> nn.Module:
    """The model in which layers of subclasses are replaced by parts with the same results.

    Args:
        model: changed in place below its root; layers have their `qconfig`.
        inputs: the inputs of layers in a run, by path.
        wanted: True for a layer of torch.nn that may be taken out of its subclass.
    """

    def change(path: str, layer: nn.Module) -> nn.Module:
        if path not in inputs or base_of(layer) is None:
            return layer
        twins = deepcopy(layer).eval(), _filled(deepcopy(layer)).eval()
        for parts, *same in zip(_candidates(layer), *map(_candidates, twins), strict=True):
            if not wanted(parts.inner):
                continue
            if all(_agree(twin, one.eval(), inputs[path]) for twin, one in zip(twins, same, strict=True)):
                take_hooks(parts, layer, layer)
                return parts.train(layer.training)
        return layer

    return rebuilt(model, change, lambda path, layer: path in inputs or keeps_children(path, layer))


def _candidates(layer: nn.Module) -> Iterator[Parts]:
    """A layer as parts, in all the forms that are tried."""
    children = dict(layer.named_children())
    base = base_of(layer)
    yield Parts(children, _plain(layer, base), {})
    if children:
        yield Parts({}, _plain(layer, base), children)
    if base in _SPATIAL:
        inner: Any = _plain(layer, base)
        yield Parts(children | {"same_pad": SamePad(inner.kernel_size, inner.stride, inner.dilation)}, inner, {})


def _plain(layer: nn.Module, base: Any) -> nn.Module:
    """A layer of torch.nn with the parameters, buffers and settings of one of a subclass; users' hooks stay there."""
    made = base.__new__(base)
    nn.Module.__init__(made)
    for name, parameter in layer.named_parameters(recurse=False):
        made.register_parameter(name, parameter)
    for name, buffer in layer.named_buffers(recurse=False):
        made.register_buffer(name, buffer)
    for name in _TENSORS:
        if getattr(layer, name, made) is None:
            made.register_parameter(name, None)
    for name, value in vars(layer).items():
        if name not in vars(made):
            vars(made)[name] = tuple(value) if isinstance(value, list) else value
    return made


def _filled(layer: nn.Module) -> nn.Module:
    """The layer with other numbers: a batch norm without effect gives equal results before and behind an activation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():  # above 0, as a variance is
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    return layer


def _agree(layer: nn.Module, parts: nn.Module, x: torch.Tensor) -> bool:
    """True if a layer and its parts have equal bits for an input, multiples of it, and smaller images."""
    spatial = next((size for kind, size in _SPATIAL.items() if isinstance(layer, kind)), 0)
    crops = range(1, _CROPS + 1 if spatial else 1)
    inputs = [x, -9 * x, *(x[(..., *[slice(0, -crop)] * spatial)] for crop in crops)]
    return all(_same(layer, parts, one) for one in inputs if one.numel())


def _same(layer: nn.Module, parts: nn.Module, x: torch.Tensor) -> bool:
    with torch.no_grad():
        try:
            expected = layer(x.clone())
        except Exception:  # such as an image that is too small
            return True
        try:
            found = parts(x.clone())
        except Exception:
            return False
    return isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor) and torch.equal(expected, found)
