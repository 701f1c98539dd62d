"""Layers of subclasses as parts: torch's own layer, and the layers that act before or behind it.

timm and efficientnet have convolutions that pad, and batch norms that end in an activation. `convert` swaps exact types
only, since a subclass may compute anything. Here a layer and its parts run on the same data: if the bits are equal, the
parts replace the layer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn

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
