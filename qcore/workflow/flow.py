"""The data flow between the layers of a model: a recorded run shows which layers can be fused and stay in integers.

A recorded run is a list of calls, of layers and of functions between them. Each call takes tensors and gives tensors,
which any hashable may identify: numbers in PyTorch, variables of a jaxpr in JAX. If a call changes a tensor in place
(a ReLU in place), its result is the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

Bounds = tuple[float | None, float | None]
_How = TypeVar("_How")
_LONGEST = 3  # layers in a row that become one: a convolution, its batch norm and a ReLU


@dataclass(eq=False)
class Call:
    """One call of a layer, or of a function outside of all layers.

    Attributes:
        path: the layer's name; None for functions.
        takes, gives: the tensors.
        keeps: True if the call takes integers as well as floats, and gives the same kind as it takes.
        bounds: of the result, where the call clamps; None where there is no bound.
        joins: True if the call takes several tensors, and its result has their numbers, moved.
    """

    path: str | None
    takes: list[Any]
    gives: list[Any]
    keeps: bool = False
    bounds: Bounds = (None, None)
    joins: bool = False


class Flow:
    """A recorded run.

    Args:
        calls: in order.
        returned: the tensors that the model returns, which stay floats.

    Attributes:
        by_path: the calls of each layer.
    """

    def __init__(self, calls: Sequence[Call], returned: Iterable[Hashable]) -> None:
        self.calls, self.returned = calls, set(returned)
        self.by_path: dict[str, list[Call]] = {}
        self._takers: dict[Hashable, list[Call]] = {}
        self._givers: dict[Hashable, Call] = {}
        for call in calls:
            if call.path is not None:
                self.by_path.setdefault(call.path, []).append(call)
            for tensor in call.takes:
                self._takers.setdefault(tensor, []).append(call)
            for tensor in call.gives:
                self._givers.setdefault(tensor, call)

    def only_call(self, path: str | None) -> Call | None:
        """The call of a layer that runs once."""
        calls = self.by_path.get(path, []) if path is not None else []
        return calls[0] if len(calls) == 1 else None

    def only_next(self, call: Call) -> Call | None:
        """The call that alone sees what a call gives; what follows a change in place sees the change."""
        if len(call.gives) != 1 or call.gives[0] in call.takes:
            return None
        takers = self._takers.get(call.gives[0], [])
        if not takers:
            return None
        first = takers[0]
        in_place = call.gives[0] in first.gives
        alone = len(takers) == 1 and call.gives[0] not in self.returned
        return first if in_place or alone else None

    def rows(
        self, joins: Callable[[str], bool], fused: Callable[[list[str], Call | None], _How | None]
    ) -> Iterator[tuple[list[str], _How]]:
        """The names of layers in a row that become one, the longest rows first, each layer in one row at most.

        Args:
            joins: True of a layer that may go into another; the model itself and layers that run twice do not.
            fused: how a row becomes one, given the function that alone follows it or None; None if it does not.
        """
        used = set[str]()

        def may_join(call: Call | None) -> bool:
            return call is not None and bool(call.path) and self.only_call(call.path) is call and joins(str(call.path))

        for first in self.calls:
            calls, after = list[Call](), first
            while after is not None and len(calls) < _LONGEST and may_join(after):
                calls.append(after)
                after = self.only_next(after)
            function = after if after is not None and after.path is None else None
            for count in range(len(calls), 0, -1):
                row = [str(call.path) for call in calls[:count]]
                how = fused(row, function if count == len(calls) else None) if used.isdisjoint(row) else None
                if how is not None:
                    used |= set(row)
                    yield row, how
                    break

    def has_row(self, row: Sequence[str], function: Call | None) -> bool:
        """True if layers run in a row, with a function behind them that clamps as this one; or if none of them runs."""
        if not any(path in self.by_path for path in row):
            return True
        calls = [self.only_call(path) for path in row]
        if any(
            call is None or (after and self.only_next(call) is not after)
            for call, after in zip_longest(calls, calls[1:])
        ):
            return False
        after = self.only_next(calls[-1])  # type: ignore[arg-type]
        return function is None or (after is not None and after.path is None and after.bounds == function.bounds)

    def way(self) -> Hashable:
        """The calls, with tensors numbered by their first use: equal for runs that take the same way in the code."""
        numbers: dict[Hashable, int] = {}

        def numbered(tensors: Iterable[Hashable]) -> tuple[int, ...]:
            return tuple(numbers.setdefault(tensor, len(numbers)) for tensor in tensors)

        calls = tuple((one.path, one.keeps, one.bounds, numbered(one.takes), numbered(one.gives)) for one in self.calls)
        return calls, tuple(sorted(numbers[tensor] for tensor in self.returned if tensor in numbers))

    def clamped(self, layers: Iterable[str]) -> dict[str, Bounds]:
        """The layers whose results are clamped and go nowhere else, with the bounds.

        Integers saturate: with the range of what is left (0 to 6 behind a ReLU6), none of them stands for what is cut
        off.
        """
        found = {}
        for path in layers:
            call = self.only_call(path)
            after = None if call is None else self.only_next(call)
            if after is not None and after.bounds != (None, None) and len(after.takes) == 1:
                found[path] = after.bounds
        return found

    def joined(self, stubs: Mapping[str, tuple[bool, bool]]) -> dict[str, str]:
        """The layers whose results only go into a join (a concatenation) that a layer quantizes, with that layer.

        Args:
            stubs: as `stubs` returns them.
        """
        found = {}
        for path, (_, dequantizes) in stubs.items():
            call = self.only_call(path) if dequantizes else None
            join = None if call is None else self._behind(call)
            while join is not None and join.joins and join.gives:
                taker = self._behind(join)
                if taker is not None and stubs.get(taker.path or "", (False, False))[0]:
                    found[path] = str(taker.path)
                join = taker
        return found

    def _behind(self, call: Call) -> Call | None:
        """The call that alone takes what a call gives, if need be behind calls that keep integers, or clamp."""
        after = self.only_next(call)
        while after is not None and len(after.takes) == 1 and (after.keeps or after.bounds != (None, None)):
            if after.gives != after.takes:
                after = self.only_next(after)
                continue
            takers = self._takers[after.takes[0]]  # a dropout in evaluation gives what it takes
            others = takers[takers.index(after) + 1 :]
            after = others[0] if len(others) == 1 and after.gives[0] not in self.returned else None
        return after

    def stubs(
        self,
        layers: Collection[str],
        giving: Collection[Call] | None = None,
        takers: Collection[str] | None = None,
    ) -> dict[str, tuple[bool, bool]]:
        """Whether each layer in integers quantizes what it takes, and dequantizes what it gives.

        Args:
            layers: the names of the layers in integers.
            giving: the calls that may give integers; None for all.
            takers: the names of the layers that may take integers; None for all.
        """
        integers = self._integers(
            layers, self.calls if giving is None else giving, layers if takers is None else takers
        )
        found = {}
        for path in layers:
            call = self.only_call(path)  # a layer that runs several times is between floats
            found[path] = (
                call is None or not integers.issuperset(call.takes),
                call is None or not integers.issuperset(call.gives),
            )
        return found

    def in_integers(self, call: Call, layers: Collection[str]) -> bool:
        """True of the only call of a layer in integers."""
        return call.path in layers and self.only_call(call.path) is call

    def _integers(self, layers: Collection[str], giving: Iterable[Call], takers: Collection[str]) -> set[Hashable]:
        """The tensors that may be integers: layers in integers give them, and all that take them can."""
        suited = {tensor for call in giving for tensor in call.gives} - self.returned
        changed = True
        while changed:  # what passes a tensor on takes integers if its result may be integers
            fit = {
                tensor
                for tensor in suited
                if all(
                    self.in_integers(call, takers) or (call.keeps and suited.issuperset(call.gives))
                    for call in self._takers.get(tensor, [])
                )
            }
            changed, suited = fit != suited, fit
        found = set[Hashable]()
        for call in self.calls:  # a giver comes before all takers
            if self.in_integers(call, layers) or (call.keeps and found.issuperset(call.takes)):
                found |= {tensor for tensor in call.gives if tensor in suited and self._givers[tensor] is call}
        return found


class Flows:
    """The runs of one model on several data: each layer is what suits all runs in which it is called.

    Args:
        flows: one for each way through the model's code.
    """

    def __init__(self, flows: Sequence[Flow]) -> None:
        self.flows = flows
        self.calls = [call for flow in flows for call in flow.calls]

    def rows(
        self, joins: Callable[[str], bool], fused: Callable[[list[str], Call | None], _How | None]
    ) -> Iterator[tuple[list[str], _How]]:
        """As `Flow.rows`, of the first run: the rows that every other run has, too."""
        first, *others = self.flows

        def agreed(row: list[str], function: Call | None) -> _How | None:
            function = function if all(other.has_row(row, function) for other in others) else None
            return fused(row, function) if all(other.has_row(row, function) for other in others) else None

        return first.rows(joins, agreed)

    def clamped(self, layers: Iterable[str]) -> dict[str, Bounds]:
        """As `Flow.clamped`, of the layers that all runs clamp to the same bounds."""
        layers = list(layers)
        found = [(flow.by_path, flow.clamped(layers)) for flow in self.flows]
        bounds = {path: {clamped.get(path) for paths, clamped in found if path in paths} for path in layers}
        return {path: one for path, ones in bounds.items() if len(ones) == 1 and (one := next(iter(ones)))}

    def joined(self, stubs: Mapping[str, tuple[bool, bool]]) -> dict[str, str]:
        """As `Flow.joined`, of the layers of which it is true in all runs that call them."""
        found = [(flow.by_path, flow.joined(stubs)) for flow in self.flows]
        everywhere = {path for path in stubs if all(path in joined for paths, joined in found if path in paths)}
        return {path: one for _, joined in found for path, one in joined.items() if path in everywhere}

    def stubs(self, layers: Collection[str], giving: Collection[Call] | None = None) -> dict[str, tuple[bool, bool]]:
        """As `Flow.stubs`: a layer takes, or gives, integers if it does in all runs."""
        takers, givers = set(layers), set(layers)
        while True:
            ends: dict[str, list[tuple[bool, bool]]] = {path: [] for path in layers}
            for flow in self.flows:
                may_give = {id(call) for call in (flow.calls if giving is None else giving)}
                chosen = [
                    call
                    for call in flow.calls
                    if id(call) in may_give and (call.path not in layers or call.path in givers)
                ]
                for path, one in flow.stubs(layers, chosen, takers).items():
                    if path in flow.by_path:
                        ends[path].append(one)
            found = {
                path: (any(one[0] for one in ones), any(one[1] for one in ones)) if ones else (True, True)
                for path, ones in ends.items()
            }
            less = {path for path in takers if not found[path][0]}, {path for path in givers if not found[path][1]}
            if len(self.flows) == 1 or less == (takers, givers):
                return found
            takers, givers = less

    def in_integers(self, call: Call, layers: Collection[str]) -> bool:
        """True of the only call of a layer in integers in its run."""
        return any(flow.in_integers(call, layers) for flow in self.flows)
