"""Layers that a model's code reaches by plain attributes: lists, dictionaries and methods that no module registers.

Code writes `self.convs = [self.conv1, self.conv2]`. Where a layer is replaced, such attributes get the new layer, too:
else the code would call the float layer, and reports would say that it is quantized.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import MethodType
from typing import Any

from torch import nn

_TORCHS = frozenset(vars(nn.Module()))  # registered modules, hooks and others
_DEPTH = 4  # of containers in containers


def follow(model: nn.Module, replaced: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Puts new layers where attributes of a model's modules have old ones.

    Args:
        model: changed in place.
        replaced: pairs of the old layer and the new one.
    """
    new = {id(old): made for old, made in replaced if old is not made}
    for module in model.modules() if new else ():
        attributes = vars(module)
        for name in attributes.keys() - _TORCHS:
            attributes[name] = _with(attributes[name], new, _DEPTH)


def _with(value: Any, new: dict[int, nn.Module], depth: int) -> Any:
    """A value with new layers; lists and dictionaries, which several modules may share, are changed in place."""
    if isinstance(value, nn.Module):
        return new.get(id(value), value)
    if isinstance(value, MethodType):
        made = new.get(id(value.__self__))
        return value if made is None else getattr(made, value.__name__, value)
    if isinstance(value, partial):
        made = _with(value.func, new, depth)
        return value if made is value.func else partial(made, *value.args, **value.keywords)
    if depth and isinstance(value, list):
        value[:] = [_with(one, new, depth - 1) for one in value]
    elif depth and isinstance(value, dict):
        value.update({key: _with(one, new, depth - 1) for key, one in value.items()})
    elif depth and type(value) is tuple:
        return tuple(_with(one, new, depth - 1) for one in value)
    return value
