"""The parameters of an optimizer, and memory that is kept from step to step."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as _preserve_version

from qtorch.optim.comparison import as_bits, same_bits
from qtorch.optim.homes import LIMIT, Homes
from qtorch.optim.many import Bundle, copy_all, properties
from qtorch.sharded import is_sharded

Groups = Sequence[dict[str, Any]]
SavedAccumulators = dict[int, tuple[torch.Tensor, torch.Tensor]]


class Copies(Bundle):
    """A bundle that has room for the large tensors as well, and starts as a copy of the given ones.

    Attributes:
        tensors: all copies, in the given order.
        parts: all their memory, in few tensors.
    """

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        super().__init__(like, LIMIT)
        self.take(like)
        copies = {i: like[i].detach().clone() for i in self.large}
        self.parts = [*self.flats, *copies.values()]
        copies |= dict(zip(self.small, self.places, strict=True))
        self.tensors = [copies[i] for i in range(len(like))]


class Accumulators:
    """One accumulator for each weight.

    Where a weight is not, bit for bit, what was last written to it here, others have written it (loaded a checkpoint,
    clipped it), and that element of the accumulator takes its value.

    Attributes:
        values: the accumulators.
        written: what was last written to the weights, or is to be.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self.values = Copies(weights)
        self.written = Copies(weights)

    def follow(self, weights: Sequence[torch.Tensor]) -> None:
        """Takes over what others wrote; the weights are given as all the parts of a bundle."""
        for now, last, value in zip(weights, self.written.parts, self.values.parts, strict=True):
            if now.is_cpu and not is_sharded(now) and same_bits(now, last):  # of others the answer is waited for
                continue
            value.copy_(torch.where(as_bits(now) == as_bits(last), value, now))
            last.copy_(now)

    def set(self, i: int, value: torch.Tensor, written: torch.Tensor) -> None:
        copy_all([self.values.tensors[i], self.written.tensors[i]], [value, written])

    def inherit(self, i: int, other: Accumulators, j: int) -> None:
        """Takes over the j-th of other accumulators, unless the weight has got another shape."""
        value, written = other.values.tensors[j], other.written.tensors[j]
        if value.shape == self.values.tensors[i].shape:
            self.set(i, value, written)


class Layout:
    """The parameters that are trained, and memory for them.

    Attributes:
        parameters: those that require gradients or did when an earlier layout was made, in the groups' order.
        numbers: their places among all parameters.
        accumulators: if there are any.
        frozen: those that require no gradients.
    """

    @torch.no_grad()
    def __init__(self, groups: Groups, accumulate: bool, before: Layout | None = None) -> None:
        kept = {} if before is None else {p: i for i, p in enumerate(before.parameters)}
        self._every = _parameters(groups)
        self._required = [p.requires_grad for p in self._every]
        self.numbers = [number for number, p in enumerate(self._every) if p.requires_grad or p in kept]
        self.parameters = [self._every[number] for number in self.numbers]
        self.frozen = [p for p in self._every if not p.requires_grad]
        self._properties = properties(self.parameters)
        self._momenta: dict[str, Homes] = {}
        self._entered = False  # whether the weights have the accumulators' values
        self.accumulators = Accumulators(self.parameters) if accumulate else None
        if self.accumulators is not None and before is not None and before.accumulators is not None:
            for i, p in enumerate(self.parameters):
                if p in kept:
                    self.accumulators.inherit(i, before.accumulators, kept[p])

    def holds(self, groups: Groups) -> bool:
        """Whether all is as it was when this was made."""
        every = _parameters(groups)
        return (
            len(every) == len(self._every)
            and all(map(operator.is_, every, self._every))
            and [p.requires_grad for p in every] == self._required
            and properties(self.parameters) == self._properties
        )

    @cached_property
    def scratch(self) -> Bundle:
        """Where gradients are put side by side."""
        with torch.inference_mode(False):  # others may step outside of it
            return Bundle(self.parameters)

    @cached_property
    def weights(self) -> Homes:
        """The parameters' own memory, side by side from the first use on, as far as it may be moved."""
        with torch.inference_mode(False):
            homes = Homes(self.parameters)
            homes.move_in(self.parameters)
        return homes

    @torch.no_grad()
    def follow(self) -> None:
        """See `Accumulators.follow`."""
        if self.accumulators is not None and not self._entered:
            self.accumulators.follow(self.weights.take(self.parameters))

    def enter(self) -> None:
        """Gives the weights the values of the accumulators, if any, unless they have them."""
        if self.accumulators is not None and not self._entered:
            self.follow()
            self._entered = True
            self._write(self.accumulators.values)

    @torch.no_grad()
    def leave(self, located: bool = False) -> None:
        """Gives the weights what is to be written to them, unless they have it.

        Args:
            located: whether they are where they were last looked for; the inner optimizer may have moved them.
        """
        if self.accumulators is not None and self._entered:
            if not located:
                self.weights.locate(self.parameters)
            self._write(self.accumulators.written)
            self._entered = False

    def _write(self, copies: Copies) -> None:
        """Copies onto the weights last looked for, of which autograd need not know: the inner step tells it itself."""
        weights = self.weights
        with _preserve_version(weights.outside(self.parameters)):
            copy_all(weights.parts_with(self.parameters), copies.parts)
            weights.give(self.parameters)

    def momenta(self, name: str, values: Sequence[Any]) -> Homes | None:
        """The memory that these are in, if `adopt_momenta` put them all there."""
        homes = self._momenta.get(name)
        return homes if homes is not None and homes.holds(values) else None

    def adopt_momenta(self, name: str, states: Sequence[dict[str, Any]]) -> Homes:
        """Puts the momenta of this name side by side: the states get copies that are."""
        momenta = [state[name] for state in states]
        homes = self._momenta[name] = Homes(momenta)
        homes.take(momenta)
        for i, home in zip(homes.small, homes.homes, strict=True):
            states[i][name] = home
        return homes

    def save_accumulators(self) -> SavedAccumulators | None:
        """Copies of the accumulators, and of what was written to the weights, by the parameters' numbers."""
        if self.accumulators is None:
            return None
        values, written = self.accumulators.values.tensors, self.accumulators.written.tensors
        return {number: (values[i].clone(), written[i].clone()) for i, number in enumerate(self.numbers)}

    def check_accumulators(self, saved: SavedAccumulators | None) -> None:
        if (saved is None) != (self.accumulators is None):
            has, wants = ("none", "some") if saved is None else ("some", "none")
            raise ValueError(f"state_dict has {has} of the accumulators; allowed is {wants}, by acc_quant")
        for number, p in zip(self.numbers, self.parameters, strict=True):
            if saved is not None and number in saved and saved[number][0].shape != p.shape:
                raise ValueError(
                    f"state_dict has an accumulator of shape {tuple(saved[number][0].shape)} for parameter {number}; "
                    f"allowed is {tuple(p.shape)}"
                )

    @torch.no_grad()
    def load_accumulators(self, saved: SavedAccumulators | None) -> None:
        if saved is not None and self.accumulators is not None:
            for i, number in enumerate(self.numbers):
                if number in saved:
                    self.accumulators.set(i, *saved[number])


def _parameters(groups: Groups) -> list[torch.nn.Parameter]:
    return [p for group in groups for p in group["params"]]
