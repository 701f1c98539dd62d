"""The parameters that an optimizer trains, and their accumulators."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch

from qtorch._rounding.many import copy_each, follow_each

Groups = Sequence[dict[str, Any]]
SavedAccumulators = dict[int, tuple[torch.Tensor, torch.Tensor]]

_properties = attrgetter("requires_grad", "shape", "dtype", "device")


class Trained:
    """The parameters that are trained and, if any, an accumulator for each.

    Args:
        groups: the optimizer's.
        accumulate: whether there are accumulators; a new one is a copy of its weight.
        before: what this replaces; parameters keep their accumulators, unless they have got another shape.

    Attributes:
        parameters: those that require gradients, or did before, in the groups' order.
        numbers: their places among all parameters.
        frozen: those that require no gradients.
        accumulators: one for each of `parameters`, or none.
        written: what was last written to the weights, for each accumulator.
    """

    def __init__(self, groups: Groups, accumulate: bool, before: Trained | None = None) -> None:
        kept = [] if before is None else before.parameters
        pairs = {} if before is None else dict(zip(kept, before._pairs(), strict=False))
        was_trained = set(kept)
        self._all = _parameters(groups)
        self._properties = list(map(_properties, self._all))
        self.numbers = [number for number, p in enumerate(self._all) if p.requires_grad or p in was_trained]
        self.parameters: list[torch.Tensor] = [self._all[number] for number in self.numbers]
        self.frozen = [p for p in self._all if not p.requires_grad]
        self.accumulates = accumulate
        copies = [_copies(p, pairs.get(p)) for p in self.parameters] if accumulate else []
        self.accumulators = [value for value, _ in copies]
        self.written = [last for _, last in copies]
        self._in_use: set[int] = set()  # which weights have the values of their accumulators now

    def _pairs(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each accumulator with what was written to its weight."""
        return zip(self.accumulators, self.written, strict=True)

    def is_current(self, groups: Groups) -> bool:
        """True if parameters and their properties are what they were when this was made."""
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

    def use_accumulators(self, chosen: list[int]) -> None:
        """Writes accumulators onto the chosen weights, until these are rounded or restored."""
        if self.accumulates and not self._in_use.issuperset(chosen):
            self.follow_weights()
            new = [i for i in chosen if i not in self._in_use]
            self._in_use.update(new)
            copy_each(_pick(self.parameters, new), _pick(self.accumulators, new))

    def write_weights(self, chosen: list[int]) -> None:
        """Writes onto the chosen weights what `written` has."""
        copy_each(_pick(self.parameters, chosen), _pick(self.written, chosen))
        self._in_use.difference_update(chosen)

    def restore_weights(self) -> None:
        """Undoes `use_accumulators` where no others were written since."""
        if self._in_use:
            self.write_weights(sorted(self._in_use))

    def save(self) -> SavedAccumulators | None:
        """Copies of the accumulators, and of what was written to the weights, by the parameters' numbers."""
        if not self.accumulates:
            return None
        return {n: (value.clone(), last.clone()) for n, (value, last) in zip(self.numbers, self._pairs(), strict=True)}

    def check(self, saved: SavedAccumulators | None) -> None:
        """Raises ValueError unless `load` can take this."""
        if (saved is None) == self.accumulates:
            has, wants = ("none", "some") if saved is None else ("some", "none")
            raise ValueError(f"state_dict has {has} of the accumulators; allowed is {wants}, by acc_quant")
        for number, p in zip(self.numbers, self.parameters, strict=True):
            value, _ = (saved or {}).get(number, (p, p))
            if value.shape != p.shape:
                raise ValueError(
                    f"state_dict has an accumulator of shape {tuple(value.shape)} for parameter {number}; "
                    f"allowed is {tuple(p.shape)}"
                )

    def load(self, saved: SavedAccumulators | None) -> None:
        """Takes over the values of what `save` returned."""
        for number, pair in zip(self.numbers, self._pairs(), strict=False):  # if there are any
            if saved is not None and number in saved:
                copy_each(pair, saved[number])


def _parameters(groups: Groups) -> list[torch.nn.Parameter]:
    return [p for group in groups for p in group["params"]]


def _pick(tensors: list[torch.Tensor], chosen: list[int]) -> list[torch.Tensor]:
    return [tensors[i] for i in chosen]


@torch.no_grad()
def _copies(p: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """A parameter's new accumulator and what was written to it: those that it had, unless it has got another shape."""
    with torch.inference_mode(False):  # steps outside of that mode write these, too
        if pair is None or pair[0].shape != p.shape:
            return p.detach().clone(), p.detach().clone()
        return pair[0].to(p.device, p.dtype), pair[1].to(p.device, p.dtype)
