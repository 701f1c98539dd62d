"""A law of tensors of given shapes as a list of steps: programs in C, and torch's own operations between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import increment_version

from qcore.reproducible.differentiable import Differentiable, without_gradients
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch.linalg.native import Native, NoKernelError, Slots, product_steps, program
from qtorch.reproducible.fused.loops import loop_for, sums_of
from qtorch.reproducible.fused.trace import ArrayTrace, ArrayValue, Multiplication, Names, Sums, View, in_order

Step = Callable[[Slots], None]
_DTYPES = {torch.bool: "uint8"} | {
    getattr(torch, name): name for name in ("float32", "float64", "int32", "int64", "uint8", "int8", "int16")
}


class TorchStep(NamedTuple):
    """A step that torch runs: a function of the tensors of nodes, by name."""

    function: Callable[..., torch.Tensor]
    reads: Sequence[str]
    makes: Sequence[ArrayValue]


class FusedProgram:
    """The steps that compute a recording's results, nodes in tuples, from its arguments, a node for each tensor.

    With `apart`, a loop makes parts of one result only. Without a kernel it raises NoKernelError.
    """

    def __init__(self, arguments: Sequence[ArrayValue | None], results: Any, apart: bool = False) -> None:
        wanted = _leaves(results)
        listed = _List(arguments, map(_leaves, results) if apart else [wanted])
        self._places = {node.name: place for place, node in enumerate(arguments) if node is not None}
        self._rest: Slots = []  # of the slots: constants, and None for what steps make
        self._views, self._memory = listed.views, listed.memory
        self._first = len(arguments)
        for name, constant in listed.constants.items():
            self._new(name, constant)
        self._steps: list[Step] = []
        shared = listed.shared(wanted)
        for part in listed.parts():
            self._append(part, shared)
        self._results = [self._tensor(node.name) for node in wanted]
        self._none = self._new("")  # the slot of results that are None
        self._result = self._reader(results)
        self._uses = [
            ({listed.memory[name] for name in one.reads if name is not None}, {node.name for node in one.makes})
            for one in listed.steps
        ]  # what each step reads and makes
        self._outside = arguments, wanted

    def run(self, tensors: Sequence[torch.Tensor | None]) -> Any:
        """The results for tensors with the arguments' shapes."""
        slots: Slots = []
        for x in tensors:  # not a comprehension: a call of Python less, of which a small law has few
            slots.append(x if x is None else x.contiguous())
        slots += self._rest
        for step in self._steps:
            step(slots)
        return self._result(slots)

    def run_in_place(self, tensors: Sequence[torch.Tensor | None], results: Sequence[torch.Tensor]) -> None:
        """Writes results over contiguous tensors of their shapes, as far as `may_replace` allows."""
        slots: Slots = []
        for x in tensors:
            slots.append(x if x is None else x.contiguous())
        slots += self._rest
        for place, result in zip(self._results, results, strict=True):
            slots[place] = result
        for step in self._steps:
            step(slots)

    def may_replace(self, places: Sequence[int]) -> bool:
        """True if each result may overwrite the argument whose place is given.

        It may if it has the argument's shape, and no step after the one that writes it reads the argument.
        """
        arguments, results = self._outside
        for result, place in zip(results, places, strict=True):
            argument = arguments[place]
            makers = [index for index, (_, makes) in enumerate(self._uses) if result.name in makes]
            if argument is None or not makers or result.shape != argument.shape:
                return False
            if any(argument.name in reads for reads, _ in self._uses[makers[0] + 1 :]):
                return False
        return True

    def _append(self, part: Sequence[Native | TorchStep], shared: set[str]) -> None:
        """Appends a program, or a step of torch's; arrays that are shared are tensors."""
        if isinstance(part[0], TorchStep):
            places = [self._tensor(name) for name in part[0].reads]
            self._steps.append(_call(part[0].function, places, self._new(part[0].makes[0].name)))
            return
        for node in [node for one in part for node in one.makes if node.name in shared]:
            self._new(node.name)
        based = [
            one._replace(reads=[name if name is None else self._memory[name] for name in one.reads]) for one in part
        ]
        self._steps.append(program(based, self._places))  # type: ignore[arg-type]

    def _new(self, name: str, constant: torch.Tensor | None = None) -> int:
        self._places[name] = self._first + len(self._rest)
        self._rest.append(constant)
        return self._places[name]

    def _tensor(self, name: str) -> int:
        """The slot of a node's tensor; a view is made from the node that it shows."""
        if name not in self._places:
            base = self._places[self._memory[name]]
            self._steps.append(_call(self._views[name], [base], self._new(name)))
        return self._places[name]

    def _reader(self, results: Any) -> Callable[[Slots], Any]:
        """A function that takes the results out of the slots, in the tuples that they are in."""
        if not isinstance(results, tuple):
            return itemgetter(self._none if results is None else self._places[results.name])
        if len(results) > 1 and not any(isinstance(one, tuple) for one in results):
            return itemgetter(*[self._none if one is None else self._places[one.name] for one in results])
        readers = [self._reader(one) for one in results]

        def read(slots: Slots) -> tuple[Any, ...]:
            found = []
            for reader in readers:
                found.append(reader(slots))
            return tuple(found)

        return read


class _List:
    """The steps that make nodes from arguments, in order.

    Attributes:
        steps: the steps in order.
        memory: for each node in memory the node with this memory: itself, or the node that it shows.
        views: the step of each view.
        constants: the nodes that do not depend on arguments.
    """

    def __init__(self, arguments: Sequence[ArrayValue | None], groups: Iterable[list[ArrayValue]]) -> None:
        self.memory = {node.name: node.name for node in arguments if node is not None}
        self.views: dict[str, View] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.steps: list[Native | TorchStep] = []
        for wanted in groups:
            for node in in_order(wanted):
                if node.step is not None and node.name not in self.memory:
                    self._note(node)
            self._place(wanted)

    def _note(self, node: ArrayValue) -> None:
        """Appends the step of a node, after the steps of its operands."""
        operands = [one for one in node.operands if isinstance(one, ArrayValue)]
        self._place(operands)
        names = [one.name for one in operands]
        self.memory[node.name] = node.name
        if all(name in self.constants for name in names):
            self.constants[node.name] = node.step(*map(self.constants.__getitem__, names))
        elif isinstance(node.step, View):
            self.views[node.name] = node.step
            self.memory[node.name] = self.memory[names[0]]
        elif isinstance(node.step, Sums):
            self.steps.append(sums_of(node, names, operands[0].shape, node.step.axes))
        elif isinstance(node.step, Multiplication):
            self._multiply(node, names, operands)
        else:
            self.steps.append(TorchStep(node.step, names, [node]))

    def _multiply(self, node: ArrayValue, names: Sequence[str], operands: Sequence[ArrayValue]) -> None:
        """Appends the steps of a product: steps of C, or one step of torch without a kernel."""
        try:
            made = product_steps(node.step, [one.shape for one in operands], names, node)
        except NoKernelError:
            made = [TorchStep(node.step, names, [node])]
        self.steps += made
        self.memory |= {array.name: array.name for one in made for array in one.makes}

    def _place(self, nodes: Iterable[ArrayValue]) -> None:
        """Appends the steps of nodes that are not in memory yet: a loop for each shape."""
        missing = {node.name: node for node in nodes if node.name not in self.memory}
        shapes = sorted(missing.values(), key=lambda node: node.shape)
        for _, group in groupby(shapes, key=lambda node: node.shape):
            results = list(group)
            self.steps.append(loop_for(results, self.memory))
            self.memory |= {node.name: node.name for node in results}

    def parts(self) -> Iterator[list[Native | TorchStep]]:
        """The steps in parts: neighbouring steps of C are one part, each step of torch is a part of its own."""
        for _, part in groupby(self.steps, lambda one: one.makes[0].name if isinstance(one, TorchStep) else ""):
            yield list(part)

    def shared(self, wanted: Iterable[ArrayValue]) -> set[str]:
        """The nodes whose memory is seen by torch, by several parts, or outside."""
        found = {self.memory[node.name] for node in wanted}
        before: set[str] = set()
        for part in self.parts():
            names = {self.memory[name] for one in part for name in one.reads if name is not None}
            names |= {node.name for one in part for node in one.makes}
            found |= names if isinstance(part[0], TorchStep) else names & before
            before |= names
        return found


def _call(function: Any, operands: Sequence[int], place: int) -> Step:
    def step(slots: Slots) -> None:
        slots[place] = function(*map(slots.__getitem__, operands))

    return step


def _leaves(results: Any) -> list[ArrayValue]:
    """The nodes, without None."""
    if isinstance(results, tuple):
        return [leaf for one in results for leaf in _leaves(one)]
    return [] if results is None else [results]


class Backward(NamedTuple):
    """The gradients of a law: the number of saved tensors, and the gradients that are needed.

    None instead of a number: the law's arguments are given, and what they need of it is computed again.
    """

    saved: int | None
    wanted: tuple[bool, ...]


def plan_for(
    law: Differentiable, results: str | Backward, tensors: Sequence[torch.Tensor | None], options: tuple[Any, ...]
) -> FusedProgram | None:
    """The plan of a law; None if tensors are not in the memory of the CPU, or there is no kernel.

    Args:
        law: the law.
        results: "result"; "each" for independent results; "forward" for the result and the saved arrays; or `Backward`.
        tensors: arguments; for `Backward` the saved arrays, or arguments, and the gradients of all results. All are
            plain (`are_plain_tensors`).
        options: the law's options, as pairs.
    """
    shapes = []
    for x in tensors:
        shapes.append(None if x is None else (x.shape, x.dtype, x.is_cpu))
    return _plan(law, results, tuple(shapes), options)


@lru_cache(maxsize=4096)
def _plan(
    law: Differentiable, results: str | Backward, shapes: tuple[Any, ...], options: tuple[Any, ...]
) -> FusedProgram | None:
    if not all(one is None or (0 not in one[0] and one[1] in _DTYPES and one[2]) for one in shapes):
        return None
    recording = ArrayTrace()
    arguments = [None if one is None else recording.argument(_DTYPES[one[1]], tuple(one[0])) for one in shapes]
    try:
        if isinstance(results, str):
            found = law.run(Names, arguments, dict(options))
            return FusedProgram(arguments, found if results == "forward" else found[0], results == "each")
        if results.saved is None:
            saved, gradients = law.run(Names, arguments[:-1], dict(options))[1], (arguments[-1],)
        else:
            saved, gradients = tuple(arguments[: results.saved]), tuple(arguments[results.saved :])
        found = law.gradients(Names, saved, law.gradient_of(gradients), dict(options))
        return FusedProgram(
            arguments, tuple([x if one else None for x, one in zip(found, results.wanted, strict=True)])
        )
    except NoKernelError:
        return None


def replace(
    law: Differentiable,
    groups: Sequence[Sequence[torch.Tensor]],
    common: Sequence[torch.Tensor | None],
    places: Sequence[int],
    options: dict[str, Any],
) -> bool:
    """Runs law(*group, *common, **options) for each group, and writes the results over some of its tensors.

    Returns False, and writes nothing, if there is no kernel for it.

    Args:
        law: a law without gradients, whose results are one for each of `places`; further results are None.
        groups: the groups of tensors.
        common: further arguments, which all groups share.
        places: the indices in a group of the tensors that the results replace.
        options: the law's options.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    old, tensors = [], []
    for group in groups:
        for x in group:
            if x.dtype is not torch.float32:
                return False
        for place in places:
            if not group[place].is_contiguous():
                return False
            old.append(group[place])
        tensors += group
    tensors += common
    many = _of_groups(law, len(groups), len(groups[0]))
    plan = plan_for(many, "each", tensors, tuple(options.items())) if are_plain_tensors(tensors) else None
    if plan is None or not _may_replace(plan, len(groups), len(groups[0]), tuple(places)):
        return False
    increment_version(old)
    plan.run_in_place(tensors, old)
    return True


@cache
def _of_groups(law: Differentiable, count: int, size: int) -> Differentiable:
    """The law of `count` groups of a size, followed by the arguments that they share."""

    def function(xp: Any, *arrays: Any, **options: Any) -> tuple[Any, ...]:
        groups = [arrays[begin : begin + size] for begin in range(0, count * size, size)]
        return tuple(law.forward(xp, *group, *arrays[count * size :], **options)[0] for group in groups)

    return without_gradients(function)


@cache
def _may_replace(plan: Any, count: int, size: int, places: tuple[int, ...]) -> bool:
    return plan.may_replace([index * size + place for index in range(count) for place in places])
