"""Steps that C runs by itself, one after the other, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from qtorch._kernels import products

Slots = list[Any]
_ALIGNMENT = 64  # bytes, of a program's own arrays


class NoKernelError(Exception):
    """There is no kernel for these arrays."""


class Array(NamedTuple):
    """What is told of an array: a name, the shape, and the dtype by name."""

    name: str
    shape: Sequence[int]
    dtype: str


class Native(NamedTuple):
    """A step in C, of arrays by their names.

    Attributes:
        function: its address.
        sizes, numbers: what it reads, see `steps.c`.
        reads: its first arrays; None where there is none.
        makes: the others; anything with the attributes of `Array`.
        kept: what lies where sizes or numbers say.
    """

    function: int
    sizes: np.ndarray
    numbers: np.ndarray
    reads: Sequence[str | None]
    makes: Sequence[Any]
    kept: Any = None


def program(steps: Sequence[Native], places: Mapping[str, int]) -> Callable[[Slots], None]:
    """What runs steps on slots of tensors, and makes those that are not there yet.

    Args:
        steps: in order.
        places: the slots of the arrays that are tensors, by name; the others are the program's own.

    Raises:
        NoKernelError: if there is no compiler.
    """
    function = products.steps()
    if function is None:
        raise NoKernelError
    names = [name for one in steps for name in (*one.reads, *(made.name for made in one.makes)) if name is not None]
    given = list(dict.fromkeys(places[name] for name in names if name in places))
    all_made = [made for one in steps for made in one.makes]
    own = [made for made in all_made if made.name not in places]
    fresh = [(places[made.name], made.shape, getattr(torch, made.dtype)) for made in all_made if made.name in places]
    at: dict[Any, int] = {name: given.index(places[name]) for name in names if name in places}
    at |= {made.name: len(given) + index for index, made in enumerate(own)} | {None: -1}
    begins = np.cumsum(
        [0, *(-(-prod(one.shape) * np.dtype(one.dtype).itemsize // _ALIGNMENT) * _ALIGNMENT for one in own)]
    )
    most = max(len(one.reads) + len(one.makes) for one in steps)
    words = [len(given), len(own), begins[-1], len(steps), most, *begins[:-1]]
    for one in steps:
        arrays = [*one.reads, *(made.name for made in one.makes)]
        addresses = one.function, one.sizes.ctypes.data, one.numbers.ctypes.data
        words += [*addresses, len(arrays), *(at[name] for name in arrays)]
    table = np.array(words, np.int64)
    address = table.ctypes.data

    def run(slots: Slots, kept: Any = (table, steps)) -> None:
        for place, shape, dtype in fresh:
            if slots[place] is None:
                slots[place] = torch.empty(shape, dtype=dtype, device="cpu")
        function(address, *[slots[place].data_ptr() for place in given])

    return run
