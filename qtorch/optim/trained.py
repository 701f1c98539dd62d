"""The parameters that an optimizer trains, their accumulators, and float32 copies of 16-bit parameters."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from numbers import Number
from operator import attrgetter
from types import NoneType
from typing import Any

import torch

from qcore.notices import warn
from qtorch._rounding.many import copy_each, follow_each

Groups = Sequence[dict[str, Any]]
State = MutableMapping[torch.Tensor, dict[str, Any]]
Pair = tuple[torch.Tensor, torch.Tensor]  # an accumulator, and the numbers last written to its weight

NARROW = frozenset((torch.bfloat16, torch.float16))  # updates are often less than half a step of a weight
ENTRIES = ("low_precision_accumulator", "low_precision_weight")  # of a pair, in the inner optimizer's state

_PLAIN = (Number, str, bytes, NoneType, torch.dtype, torch.device, torch.Size)  # which have no tensors
_SCHEDULES = frozenset(("step", "eta", "mu", "mu_product"))  # scalars in the states of torch's optimizers
_properties = attrgetter("requires_grad", "shape", "dtype", "device")


class Trained:
    """The parameters that are trained and, if any, an accumulator for each.

    Args:
        groups: the optimizer's parameter groups.
        state: the optimizer's state, which keeps accumulators between the steps, from the first step on.
        accumulate: True for accumulators. A new accumulator is a copy of its weight, in float32 if the weight has 16
            bits.
        before: the object that this one replaces; parameters keep their accumulators, unless their shape has changed.

    Attributes:
        parameters: the parameters that require gradients, or did before, in the groups' order.
        numbers: their indices among all parameters.
        frozen: the parameters that do not require gradients.
        accumulators: one for each of `parameters`, or an empty list.
        written: the numbers last written to the weights, for each accumulator.
    """

    def __init__(self, groups: Groups, state: State, accumulate: bool, before: Trained | None = None) -> None:
        kept = [] if before is None else before.parameters
        pairs = {} if before is None else dict(zip(kept, before._pairs(), strict=False))
        was_trained = set(kept)
        self._all = _parameters(groups)
        self._properties = list(map(_properties, self._all))
        self.numbers = [number for number, p in enumerate(self._all) if p.requires_grad or p in was_trained]
        self.parameters: list[torch.Tensor] = [self._all[number] for number in self.numbers]
        self.frozen = [p for p in self._all if not p.requires_grad]
        self.accumulates = accumulate
        # A pair comes from the object before, else from the state, as after `copy.deepcopy` or unpickling.
        kept_pairs = {p: pairs.get(p) or _pair(state.get(p) or {}) for p in self.parameters}
        copies = [_copies(p, pair) for p, pair in kept_pairs.items()] if accumulate else []
        self.accumulators = [value for value, _ in copies]
        self.written = [last for _, last in copies]
        self._in_use: set[int] = set()  # which weights have the values of their accumulators now
        # Which accumulators are in the optimizer's state; as torch's own entries, they get there in the first step.
        self._kept = {i for i, p in enumerate(self.parameters) if accumulate and _pair(state.get(p) or {}) is not None}
        self.put_in(state, [])

    def _pairs(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each accumulator with the numbers last written to its weight."""
        return zip(self.accumulators, self.written, strict=True)

    def is_current(self, groups: Groups) -> bool:
        """True if parameters and their properties have not changed since this was made."""
        found = _parameters(groups)
        return (
            len(found) == len(self._all)
            and all(map(operator.is_, found, self._all))
            and list(map(_properties, found)) == self._properties
        )

    def follow_weights(self) -> None:
        """Accumulators take over the elements of weights that others have changed."""
        idle = [i for i in range(len(self.accumulators)) if i not in self._in_use]
        follow_each(_pick(self.accumulators, idle), _pick(self.parameters, idle), _pick(self.written, idle))

    def use_accumulators(self, chosen: list[int], stepped: list[torch.Tensor]) -> None:
        """Writes accumulators onto the stepped tensors of the chosen weights, until these are rounded or restored."""
        if self.accumulates and not self._in_use.issuperset(chosen):
            self.follow_weights()
            new = {i: x for i, x in zip(chosen, stepped, strict=True) if i not in self._in_use}
            self._in_use.update(new)
            copy_each(list(new.values()), _pick(self.accumulators, list(new)))

    def write_weights(self, chosen: list[int]) -> None:
        """Writes `written` onto the chosen weights."""
        copy_each(_pick(self.parameters, chosen), _pick(self.written, chosen))
        self._in_use.difference_update(chosen)

    def restore_weights(self) -> None:
        """Undoes `use_accumulators` where no others were written since."""
        if self._in_use:
            self.write_weights(sorted(self._in_use))

    def put_in(self, state: State, chosen: list[int]) -> None:
        """Puts accumulators into the optimizer's state, for the chosen parameters and those with one there before."""
        if self.accumulates:
            self._kept.update(chosen)
            for i in self._kept:
                state[self.parameters[i]].update(zip(ENTRIES, (self.accumulators[i], self.written[i]), strict=True))

    def take_out(self, state: State) -> None:
        """Takes accumulators out of the state; accumulators that other code put there replace the old ones."""
        for i, p in enumerate(self.parameters):
            if p in state and (pair := _pair(state[p])) is not None:
                for entry in ENTRIES:
                    del state[p][entry]
                if self.accumulates and pair[0] is not self.accumulators[i]:
                    copy_each((self.accumulators[i], self.written[i]), pair)
                self._kept.add(i)

    def check(self, saved: Mapping[int, Pair], steps: int) -> None:
        """Raises ValueError unless `load` accepts these pairs by the parameters' numbers, after `steps` steps."""
        if (steps > 0 or saved) and bool(saved) != self.accumulates:
            has, wants = ("some", "none") if saved else ("none", "some")
            raise ValueError(f"state_dict has {has} of the accumulators; allowed is {wants}, by acc_quant")
        for number, p in zip(self.numbers, self.parameters, strict=True):
            if number in saved and saved[number][0].shape != p.shape:
                raise ValueError(
                    f"state_dict has an accumulator of shape {tuple(saved[number][0].shape)} for parameter {number}; "
                    f"allowed is {tuple(p.shape)}"
                )

    @torch.no_grad()
    def load(self, saved: Mapping[int, Pair], state: State) -> None:
        """Takes over the pairs of a checkpoint; accumulators that it has not are their weights again."""
        self._kept.clear()
        for i, (number, pair) in enumerate(zip(self.numbers, self._pairs(), strict=False)):  # if there are any
            copy_each(pair, saved.get(number, (self.parameters[i], self.parameters[i])))
            if number in saved:
                self._kept.add(i)
        self.put_in(state, [])


class Masters:
    """Replaces bfloat16 and float16 parameters by float32 copies, in an optimizer's groups and in its state.

    The optimizer keeps its lists and dictionaries, because optimizers such as LBFGS keep references to them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._of: dict[torch.Tensor, torch.nn.Parameter] = {}
        self._in_place = False

    def put_in(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors that the optimizer steps from now on: parameters, or float32 copies of them."""
        for p in parameters:
            if p.dtype in NARROW and p not in self._of:
                self._of[p] = torch.nn.Parameter(p.detach().to(torch.float32))
        if not self._in_place:
            self._exchange(dict(self._of))
            self._in_place = True
        return [self._of.get(p, p) for p in parameters]

    def take_out(self) -> None:
        """Puts the parameters back."""
        if self._in_place:
            self._exchange({master: p for p, master in self._of.items()})
            self._in_place = False

    @torch.no_grad()
    def show(self) -> None:
        """Writes the float32 numbers onto the parameters, rounded to nearest."""
        for p, master in self._of.items():
            p.copy_(master)

    def _exchange(self, others: dict[torch.Tensor, torch.Tensor]) -> None:
        if not others:
            return
        for group in self._optimizer.param_groups:
            group["params"][:] = [others.get(p, p) for p in group["params"]]
        state = self._optimizer.state
        for p, other in others.items():
            if p in state:
                state[other] = state.pop(p)


def momenta_of(state: Mapping[str, Any], p: torch.Tensor) -> dict[str, torch.Tensor]:
    """The floating tensors in a parameter's state, also in lists and dictionaries there ("GG.0"), by their names.

    Without scalars of parameters that are not scalars.
    """
    found: dict[str, torch.Tensor] = {}

    def visit(value: Any, name: str, first: str) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and (value.dim() > 0 or (p.dim() == 0 and first not in _SCHEDULES)):
                found[name] = value
        elif isinstance(value, Mapping):
            for key in sorted(value, key=str):
                visit(value[key], f"{name}.{key}", first)
        elif isinstance(value, list | tuple | deque):
            for index, item in enumerate(value):
                visit(item, f"{name}.{index}", first)
        elif not isinstance(value, _PLAIN):
            warn(
                f"momentum_quant leaves {name} of the state, a {type(value).__name__}, as it is; rounded are "
                "tensors, and tensors in lists, tuples and dictionaries"
            )

    for name in sorted(state):
        visit(state[name], name, name)
    return found


def _parameters(groups: Groups) -> list[torch.nn.Parameter]:
    return [p for group in groups for p in group["params"]]


def _pick(tensors: list[torch.Tensor], chosen: list[int]) -> list[torch.Tensor]:
    return [tensors[i] for i in chosen]


def _pair(entries: Mapping[str, Any]) -> Pair | None:
    """A parameter's pair in its state."""
    return (entries[ENTRIES[0]], entries[ENTRIES[1]]) if ENTRIES[0] in entries else None


@torch.no_grad()
def _copies(p: torch.Tensor, pair: Pair | None) -> Pair:
    """A parameter's accumulator and the numbers last written to it: the given pair, unless the shape has changed."""
    dtype = torch.float32 if p.dtype in NARROW else p.dtype
    with torch.inference_mode(False):  # steps outside of that mode write these, too
        if pair is None or pair[0].shape != p.shape:
            return p.detach().to(dtype, copy=True), p.detach().clone()
        return pair[0].to(p.device, dtype), pair[1].to(p.device, p.dtype)
