"""Steps of a plan that C runs by itself, one after the other, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from qtorch._kernels import products
from qtorch.reproducible.fused.loops import Loop, NoLoopError
from qtorch.reproducible.fused.recording import Node

Slots = list[Any]
_ALIGNMENT = 64  # bytes, of a program's own arrays


class Native(NamedTuple):
    """A step in C, of arrays by the names of their nodes.

    Attributes:
        function: its address.
        sizes, numbers: what it reads, see `steps.c`.
        reads: its first arrays; None where there is none.
        makes: the others.
    """

    function: int
    sizes: np.ndarray
    numbers: np.ndarray
    reads: Sequence[str | None]
    makes: Sequence[Node]


def of_loop(loop: Loop, made: Sequence[Node]) -> Native:
    """The step of a loop, which makes nodes."""
    return Native(loop.function, loop.sizes, loop.numbers, [node.name for node in loop.read], made)


def of_sums(node: Node, read: Sequence[str], shape: Sequence[int], axes: Sequence[int]) -> Native:
    """The step of the sums of an array of a shape along axes, or of its products with a second one.

    Raises:
        NoLoopError: if there is no compiler.
    """
    function = products.tree_sums_step()
    if function is None:
        raise NoLoopError
    sizes = np.array([len(shape), len(axes), *shape, *axes], np.int64)
    return Native(function, sizes, np.zeros(0), [*read, None][:2], [node])


def program(steps: Sequence[Native], places: Mapping[str, int]) -> Callable[[Slots], None]:
    """What runs steps on slots of tensors, and makes those that are not there yet.

    Args:
        steps: in order.
        places: the slots of the arrays that are tensors, by name; the others are the program's own.

    Raises:
        NoLoopError: if there is no compiler.
    """
    function = products.steps()
    if function is None:
        raise NoLoopError
    names = [name for one in steps for name in (*one.reads, *(node.name for node in one.makes)) if name is not None]
    given = list(dict.fromkeys(places[name] for name in names if name in places))
    made = [node for one in steps for node in one.makes]
    own = [node for node in made if node.name not in places]
    fresh = [(places[node.name], node.shape, getattr(torch, node.dtype)) for node in made if node.name in places]
    at: dict[Any, int] = {name: given.index(places[name]) for name in names if name in places}
    at |= {node.name: len(given) + index for index, node in enumerate(own)} | {None: -1}
    begins = np.cumsum([0, *(-(-prod(node.shape) * node.width // 8 // _ALIGNMENT) * _ALIGNMENT for node in own)])
    words = [len(own), begins[-1], len(steps), *begins[:-1]]
    for one in steps:
        arrays = [*one.reads, *(node.name for node in one.makes)]
        addresses = one.function, one.sizes.ctypes.data, one.numbers.ctypes.data
        words += [*addresses, len(arrays), *(at[name] for name in arrays)]
    table = np.array(words, np.int64)
    address = table.ctypes.data

    def run(slots: Slots, kept: Any = (table, steps)) -> None:
        for place, shape, dtype in fresh:
            if slots[place] is None:
                slots[place] = torch.empty(shape, dtype=dtype)
        function(address, *[slots[place].data_ptr() for place in given])

    return run
