"""Nodes of an ONNX graph, as operators see them: attributes, versions, and numbers that must be known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.exchange.values import Value


class Node(NamedTuple):
    """A node.

    Attributes:
        operator: the operator's name.
        name: the node's name in messages.
        version: the version of the operator's domain.
        attributes: by name.
        outputs: the number of its outputs.
        onnx: the package.
    """

    operator: str
    name: str
    version: int
    attributes: Mapping[str, Any]
    outputs: int
    onnx: Any

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def text(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """An attribute that is one of several texts."""
        found = self.attributes.get(name, default)
        if found not in allowed:
            raise ValueError(f"{name}={quoted(found)}; allowed are {', '.join(allowed)}")
        return found

    def ints(self, name: str, value: Value | None, default: Any = None) -> Any:
        """The integers of an input, or of the attribute that older versions have in its place; a list."""
        if value is None:
            found = self.attributes.get(name, default)
            return found if found is None else [int(one) for one in found]
        return [int(one) for one in known(name, value).reshape(-1)]

    def axis(self, ndim: int, default: int, name: str = "axis") -> int:
        """The attribute of an axis, counted from the first."""
        return checked_axis(self.attributes.get(name, default), ndim, name)


def checked_axis(axis: int, ndim: int, name: str = "axis") -> int:
    """An axis, counted from the first."""
    if not -ndim <= axis < max(ndim, 1):
        raise ValueError(f"{name}={axis} of {ndim} dimensions; allowed is an int from {-ndim} to {ndim - 1}")
    return axis % max(ndim, 1)


def known(name: str, value: Value) -> np.ndarray:
    """The numbers of a value that decides about shapes or control flow."""
    if value.host is not None:
        return value.host
    try:
        return np.asarray(value.array)
    except Exception as error:  # each framework has its own, for traced arrays
        raise ValueError(f"{name} depends on inputs of a traced program; allowed is a constant") from error
