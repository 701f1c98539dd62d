"""torch's modules as a tree, for the workflow that PyTorch and JAX share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from qcore.workflow.tree import Change, Tree
from qtorch._classes import plain_class
from qtorch.nn.quantized.weights import Weight
from qtorch.quantization.quantization_mappings import keeps_children
from qtorch.quantization.tree import OBSERVING, rebuilt, walk


class Modules(Tree):
    """torch's modules; see `qcore.workflow.tree`."""

    def keeps_children(self, path: str, module: nn.Module) -> bool:
        """True of a leaf."""
        return keeps_children(path, module)

    def class_of(self, module: nn.Module) -> type:
        return plain_class(module)

    def named(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        modules = model.named_modules(remove_duplicate=False)
        return [(path, module) for path, module in modules if OBSERVING.isdisjoint(path.split("."))]

    def walk(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        return walk(model, self.keeps_children)

    def children(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        return [] if self.keeps_children("", module) else list(module.named_children())

    def rebuilt(self, model: nn.Module, change: Change) -> nn.Module:
        return rebuilt(model, change, self.keeps_children)

    def parameters(self, module: nn.Module) -> Iterable[Any]:
        return map(_key, module.parameters(recurse=self.keeps_children("", module)))

    def weights(self, module: nn.Module) -> Iterator[tuple[nn.Module, str, Weight]]:
        for name, part in list(module.named_children()):
            if isinstance(part, Weight):
                yield module, name, part
                if getattr(module, name) is part:
                    yield from self.weights(part)

    def same(self, weight: Weight, other: Weight) -> bool:
        """True if weights have the same settings and the same bits; unknown on the device meta."""
        if (repr(weight), weight.dtype) != (repr(other), other.dtype):  # classes and settings
            return False
        mine, others = weight.state_dict(), other.state_dict()
        return mine.keys() == others.keys() and all(
            not (one.is_meta or two.is_meta) and one.shape == two.shape and torch.equal(one, two)
            for one, two in ((value, others[name]) for name, value in mine.items())
        )


def _key(parameter: torch.Tensor) -> Any:
    """What parameters that are one matrix have in common: they may be two tensors in one memory."""
    if parameter.is_meta or type(parameter) is not nn.Parameter:
        return id(parameter)
    return parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.dtype
