"""A law of tensors of given shapes as a list of steps: kernels of elements, sums, and what torch computes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from qcore.numerics.differentiable import Differentiable
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.reproducible.fused.loops import Loop, NoLoopError, loop_for
from qtorch.reproducible.fused.recording import Names, Node, Recording, in_order

Slots = list[Any]
Step = Callable[[Slots], None]
_DTYPES = {torch.bool: "uint8"} | {
    getattr(torch, name): name for name in ("float32", "float64", "int32", "int64", "uint8", "int8", "int16")
}


class Plan:
    """What computes a recording's results from its arguments.

    Args:
        arguments: one for each tensor; None where there is none.
        results: nodes, in tuples, or None.
    """

    def __init__(self, arguments: Sequence[Node | None], results: Any) -> None:
        self._places = {node.name: place for place, node in enumerate(arguments) if node is not None}
        self._free = len(arguments)
        self._steps: list[Step] = []
        self._constants: dict[int, torch.Tensor] = {}  # what follows from no argument, by place
        wanted = [node for node in _leaves(results) if node is not None]
        for node in [node for node in in_order(wanted) if node.step is not None]:
            self._place([one for one in node.operands if isinstance(one, Node)])
            operands = [self._places[one.name] for one in node.operands]
            if all(place in self._constants for place in operands):
                self._constants[self._new(node)] = node.step(*map(self._constants.__getitem__, operands))
            else:
                self._steps.append(_call(node.step, operands, self._new(node)))
        self._place(wanted)
        self._result = self._reader(results)

    def run(self, tensors: Sequence[torch.Tensor | None]) -> Any:
        """The results for tensors with the arguments' shapes."""
        slots: Slots = [None if x is None else x.contiguous() for x in tensors]
        slots += [None] * (self._free - len(slots))
        for place, constant in self._constants.items():
            slots[place] = constant
        for step in self._steps:
            step(slots)
        return self._result(slots)

    def _reader(self, results: Any) -> Callable[[Slots], Any]:
        """What reads the results from all slots, as they are in tuples."""
        if not isinstance(results, tuple):
            return (lambda slots: None) if results is None else itemgetter(self._places[results.name])
        if len(results) > 1 and all(isinstance(one, Node) for one in results):
            return itemgetter(*[self._places[one.name] for one in results])
        readers = [self._reader(one) for one in results]
        return lambda slots: tuple([read(slots) for read in readers])

    def _new(self, node: Node) -> int:
        self._places[node.name] = self._free
        self._free += 1
        return self._places[node.name]

    def _place(self, nodes: Iterable[Node]) -> None:
        """Appends what computes nodes that are not in memory yet: a kernel for each shape."""
        missing = {node.name: node for node in nodes if node.name not in self._places}
        shapes = sorted(missing.values(), key=lambda node: node.shape)
        for _, group in groupby(shapes, key=lambda node: node.shape):
            results = list(group)
            loop = loop_for(results, list(self._places))
            read = [self._places[node.name] for node in loop.read]
            made = [(self._new(node), node.shape, getattr(torch, node.dtype)) for node in results]
            self._steps.append(_kernel(loop, read, made))


def _kernel(loop: Loop, read: list[int], made: list[tuple[int, Any, torch.dtype]]) -> Step:
    function, arrays = loop.function, [*read, *(place for place, _, _ in made)]
    sizes, numbers = loop.sizes.ctypes.data, loop.numbers.ctypes.data  # of the loop, which this function keeps

    def step(slots: Slots, loop: Loop = loop) -> None:
        for place, shape, dtype in made:
            slots[place] = torch.empty(shape, dtype=dtype)
        function(sizes, numbers, *[slots[place].data_ptr() for place in arrays])

    return step


def _call(function: Any, operands: list[int], place: int) -> Step:
    def step(slots: Slots) -> None:
        slots[place] = function(*[slots[one] for one in operands])

    return step


def _leaves(results: Any) -> list[Any]:
    return [leaf for one in results for leaf in _leaves(one)] if isinstance(results, tuple) else [results]


def plan_for(
    law: Differentiable, kind: str, tensors: Sequence[torch.Tensor | None], saved: int, options: tuple[Any, ...]
) -> Plan | None:
    """What computes a law of plain tensors; None where tensors are no memory of the processor, or there is no kernel.

    Args:
        law: the law.
        kind: "result", "forward" for the result and what is saved, or "backward" for the gradients.
        tensors: arguments, or what was saved and the gradients of all results.
        saved: how many of these were saved.
        options: the law's, as pairs.
    """
    if not are_plain_tensors(tensors):
        return None
    kinds = tuple([None if x is None else (x.shape, x.dtype, x.is_cpu) for x in tensors])
    return _plan(law, kind, kinds, saved, options)


@lru_cache(maxsize=4096)
def _plan(law: Differentiable, kind: str, kinds: tuple[Any, ...], saved: int, options: tuple[Any, ...]) -> Plan | None:
    if not all(one is None or (0 not in one[0] and one[1] in _DTYPES and one[2]) for one in kinds):
        return None
    recording = Recording()
    arguments = [None if one is None else recording.argument(_DTYPES[one[1]], tuple(one[0])) for one in kinds]
    try:
        if kind != "backward":
            found = law.run(Names, arguments, dict(options))
            return Plan(arguments, found if kind == "forward" else found[0])
        gradients: Any = arguments[saved:]
        gradient = gradients[0] if len(gradients) == 1 else tuple(gradients)
        return Plan(arguments, law.gradients(Names, tuple(arguments[:saved]), gradient, dict(options)))
    except NoLoopError:
        return None
