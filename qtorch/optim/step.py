"""One step of `OptimLP`: what comes before the inner optimizer's step, and what comes after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qcore import Quantization
from qcore.keys import fold_in_each
from qtorch.optim.layout import Accumulators, Copies, Layout
from qtorch.optim.many import Bundle, copy_all, joins, lie_apart, overlap, round_in_place, scale_all
from qtorch.optim.quantizers import Function, is_stochastic, round_all

_GRADIENT, _ACCUMULATOR, _WEIGHT, _MOMENTUM = range(4)  # roles; a parameter's i-th momentum has the role 3 + i
_ROLES = 4  # whose keys are worked out at once, which takes as long as for one
_SCHEDULES = frozenset(("step", "eta", "mu", "mu_product"))  # scalars in the states of torch's optimizers

Quantizers = Mapping[str, Quantization | Function | None]


class Step:
    """What is known during one step.

    Args:
        layout: the parameters, and memory.
        quantizers: for each of OptimLP's arguments what `check_quantizer` made of it.
        grad_scaling: see `OptimLP`.
        key: the two words of the step's key; None where nothing is stochastic.
    """

    def __init__(
        self, layout: Layout, quantizers: Quantizers, grad_scaling: float, key: tuple[int, int] | None
    ) -> None:
        self._layout = layout
        self._quantizers = quantizers
        self._grad_scaling = grad_scaling
        self._key = key
        self._folded = np.empty((0, len(layout.parameters), 2), np.uint32)  # keys by role and parameter
        self._chosen: list[int] = []  # which of the layout's parameters take part
        self._hidden: list[tuple[torch.Tensor, torch.Tensor]] = []  # frozen parameters and the gradients they had

    def evaluating(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, followed by what comes before an inner optimizer that has no closure."""

        def evaluate() -> Any:
            loss = closure()
            self.begin()
            return loss

        return evaluate

    @torch.no_grad()
    def begin(self) -> None:
        """Rounds the gradients and, once, gives the weights the values of the accumulators."""
        layout = self._layout
        for p in layout.frozen:
            if p.grad is not None:  # left over from before it was frozen; the inner optimizer would step it
                self._hidden.append((p, p.grad))
                p.grad = None
        found = [p.grad for p in layout.parameters]
        self._chosen = [i for i, gradient in enumerate(found) if gradient is not None]
        gradients = [
            gradient if gradient.layout is torch.strided else _values(p)
            for p, gradient in zip(layout.parameters, found, strict=True)
            if gradient is not None
        ]
        self._round("grad_quant", _GRADIENT, self._chosen, gradients, lambda: layout.scratch, self._grad_scaling)
        layout.enter()

    def leave(self) -> None:
        """Gives the weights their low precision back, and frozen parameters their gradients, also after an error."""
        self._layout.leave()
        for p, gradient in self._hidden:
            p.grad = gradient

    @torch.no_grad()
    def finish(self, state: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        """Rounds accumulators, weights and momenta."""
        layout, chosen = self._layout, self._chosen
        weights: list[torch.Tensor] = [layout.parameters[i] for i in chosen]
        if layout.accumulators is not None:
            self._round_accumulators(layout.accumulators, weights)
        elif self._quantizers["weight_quant"] is not None:
            self._round("weight_quant", _WEIGHT, chosen, weights, lambda: layout.weights)
        if self._quantizers["momentum_quant"] is not None:
            self._round_momenta(weights, [found or {} for found in map(state.get, weights)])

    def _round_accumulators(self, accumulators: Accumulators, weights: list[torch.Tensor]) -> None:
        """Rounds the weights onto them, and those onto the weights."""
        values, written, chosen = accumulators.values, accumulators.written, self._chosen
        targets, bundle = self._members(values, "acc_quant")
        stepped = weights if bundle is None else self._layout.weights.take(weights)
        self._round_onto(targets, "acc_quant", _ACCUMULATOR, chosen, stepped, bundle)
        targets, _ = self._members(written, "weight_quant")
        sources, bundle = self._members(values, "weight_quant")
        self._round_onto(targets, "weight_quant", _WEIGHT, chosen, sources, bundle)
        self._layout.leave(located=stepped is not weights)

    def _round_momenta(self, weights: Sequence[torch.Tensor], states: Sequence[dict[str, Any]]) -> None:
        roles, together = [_MOMENTUM] * len(weights), self._joins("momentum_quant")
        for name in sorted(set().union(*states)):
            values: list[Any] = [state.get(name) for state in states]
            bundle = self._layout.momenta(name, values) if together else None
            found = list(range(len(values)))
            if bundle is None:
                found = [n for n in found if _is_momentum(values[n], name, weights[n])]
                values = [values[n] for n in found]
                if found and together:
                    bundle = self._layout.adopt_momenta(name, [states[n] for n in found])
            parts = values if bundle is None else bundle.parts_with(values)
            own_roles, chosen = [roles[n] for n in found], [self._chosen[n] for n in found]
            self._round_onto(parts, "momentum_quant", own_roles, chosen, parts, bundle)
            for n in found:
                roles[n] += 1

    def _round(
        self,
        name: str,
        role: int,
        chosen: list[int],
        tensors: list[torch.Tensor],
        make_room: Callable[[], Bundle],
        scaling: float = 1.0,
    ) -> None:
        """Multiplies and rounds tensors in place, which belong to the chosen parameters.

        Where they are, if one kernel call can do that; otherwise in the room, if they fit.
        """
        told = self._quantizers[name]
        if not tensors or (scaling == 1.0 and told is None):
            return
        joined = self._joins(name)
        there = joined and not is_stochastic(told) and lie_apart(tensors) and (scaling == 1.0 or not overlap(tensors))
        room = make_room() if joined and not there else None
        if room is not None and not room.fits(tensors):
            room = None
        parts = tensors if room is None else room.take(tensors)
        if scaling != 1.0:
            scale_all(parts, scaling)
        if not (there and isinstance(told, Quantization) and round_in_place(tensors, told)):
            self._round_onto(parts, name, role, chosen, parts, room)
        if room is not None:
            room.give(tensors)

    def _round_onto(
        self,
        targets: list[torch.Tensor],
        name: str,
        roles: int | list[int],
        chosen: list[int],
        parts: list[torch.Tensor],
        bundle: Bundle | None,
    ) -> None:
        """Rounds tensors of the chosen parameters, or the parts of a bundle of them, onto others or themselves."""
        told = self._quantizers[name]
        keys = self._keys(roles, chosen) if is_stochastic(told) else None
        if told is None:
            if targets is not parts:
                copy_all(targets, parts)
        elif bundle is not None and isinstance(told, Quantization):
            bundle.round_onto(targets, parts, told, keys)
        else:
            copy_all(targets, round_all(name, told, parts, keys))

    def _members(self, copies: Copies, name: str) -> tuple[list[torch.Tensor], Bundle | None]:
        """The chosen ones of copies; all of them as a bundle, if the quantizer allows."""
        if len(self._chosen) < len(copies.tensors):
            return [copies.tensors[i] for i in self._chosen], None
        return (copies.parts, copies) if self._joins(name) else (copies.tensors, None)

    def _joins(self, name: str) -> bool:
        told = self._quantizers[name]
        return told is None or (isinstance(told, Quantization) and joins(told))

    def _keys(self, roles: int | list[int], chosen: list[int]) -> torch.Tensor:
        """fold_in(fold_in(k, role), number) for each of the chosen parameters."""
        while len(self._folded) <= (roles if isinstance(roles, int) else max(roles, default=0)):
            more = np.arange(len(self._folded), len(self._folded) + _ROLES, dtype=np.uint32)
            of_roles = fold_in_each(np.array(self._key, np.uint32), more)
            numbers = np.array(self._layout.numbers, np.uint32)
            self._folded = np.concatenate([self._folded, fold_in_each(of_roles[:, None], numbers)])
        return torch.from_numpy(self._folded[roles, chosen].view(np.int32))


def _values(p: torch.nn.Parameter) -> torch.Tensor:
    """The values of a sparse gradient."""
    assert p.grad is not None
    p.grad = p.grad.coalesce()  # what belongs to one element is added up before it is rounded
    return p.grad._values()


def _is_momentum(value: Any, name: str, p: torch.Tensor) -> bool:
    """Whether an entry of a parameter's state counts as momentum."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return value.dim() > 0 or (p.dim() == 0 and name not in _SCHEDULES)
