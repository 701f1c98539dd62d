"""One step of `OptimLP`: the roundings before and after the inner optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar

import numpy as np
import torch

from qcore import Number, Quantization
from qcore.formats.number import check_number
from qcore.random.threefry import fold_in_each
from qtorch._rounding.many import Tensors, copy_each, have_same_bits, round_each, scale_each
from qtorch.optim.quantizers import TENSORS, Quantizers, Scalings, apply_function, is_entry, is_stochastic
from qtorch.optim.trained import Masters, Trained, momenta_of

_GRADIENT, _ACCUMULATOR, _WEIGHT, _MOMENTUM = range(4)  # roles; a parameter's i-th momentum has the role 3 + i
_AT_ONCE = 4  # roles whose keys one call computes, in the time of one key

Loss = TypeVar("Loss")  # what a closure returns
Result = TypeVar("Result")
Observer = Callable[[torch.Tensor, str, torch.Tensor, torch.Tensor, Number], None]


class Step:
    """One step; see `OptimLP`.

    Args:
        trained: the parameters.
        quantizers: the result of `check_quantizer` for each of OptimLP's arguments.
        grad_scaling: see `OptimLP`.
        key: the two words of the step's key; None without stochastic rounding.
        observer: see `OptimLP`.
        masters: the float32 copies of 16-bit parameters, if these are stepped in float32.
        scalings: the rows of delayed scales, if formats have them.
    """

    def __init__(
        self,
        trained: Trained,
        quantizers: Quantizers,
        grad_scaling: float,
        key: tuple[int, int] | None,
        observer: Observer | None = None,
        masters: Masters | None = None,
        scalings: Scalings | None = None,
    ) -> None:
        self._trained = trained
        self._quantizers = quantizers
        self._grad_scaling = grad_scaling
        self._key = key
        self._observer = observer
        self._masters = masters
        self._scalings = scalings
        self._folded = np.empty((0, len(trained.parameters), 2), np.uint32)  # keys by role and parameter
        self._chosen: list[int] = []  # which of the trained parameters have gradients
        self._stepped: list[torch.Tensor] = []  # the tensors that the inner optimizer steps in their places
        self._hidden: list[tuple[torch.Tensor, torch.Tensor]] = []  # frozen parameters and the gradients they had

    def run(self, inner: torch.optim.Optimizer, closure: Callable[[], Loss] | None) -> Loss | None:
        """Takes the step, once; returns the result of the inner optimizer's step."""

        def evaluate() -> Any:
            if self._masters is not None:  # the model and the closure's zero_grad have the parameters only
                self._masters.show()
                self._masters.take_out()
            loss = closure() if closure else None
            self._begin(inner.state)
            return loss

        try:
            if closure is None:
                self._begin(inner.state)
            loss: Any = inner.step(*([evaluate] if closure else []))
            self._finish(inner.state)
            if self._scalings is not None:
                self._scalings.advance()
        finally:
            self._end(inner.state)
        return loss

    def call(self, inner: torch.optim.Optimizer, method: Callable[[], Result]) -> Result:
        """Calls another method of the inner optimizer, and rounds the weights that it changed, and their momenta.

        It sees what the inner step sees: accumulators, or float32 copies, in the places of weights. Delayed scales do
        not change.
        """
        try:
            self._take_out(inner.state)
            self._show(list(range(len(self._trained.parameters))))
            self._trained.use_accumulators(self._chosen, self._stepped)
            before = [x.detach().clone() for x in self._stepped]
            result = method()
            pairs = zip(self._chosen, self._stepped, before, strict=True)
            changed = [(i, x) for i, x, y in pairs if not have_same_bits(x.detach(), y)]
            self._chosen, self._stepped = [i for i, _ in changed], [x for _, x in changed]
            self._finish(inner.state)
        finally:
            self._end(inner.state)
        return result

    def _take_out(self, state: MutableMapping[torch.Tensor, dict[str, Any]]) -> None:
        """Takes what is not the inner optimizer's out of its state: an empty state is one that is to be initialized."""
        self._trained.take_out(state)
        if self._scalings is not None:
            self._scalings.take_out(state)

    def _show(self, chosen: list[int]) -> None:
        """Chooses parameters, and gives the inner optimizer the tensors in their places."""
        self._chosen = chosen
        weights = [self._trained.parameters[i] for i in chosen]
        self._stepped = weights if self._masters is None else self._masters.put_in(weights)

    @torch.no_grad()
    def _begin(self, state: MutableMapping[torch.Tensor, dict[str, Any]]) -> None:
        """Rounds the gradients and, once, writes the accumulators onto the weights."""
        for p in self._trained.frozen:
            if p.grad is not None:  # left over from before it was frozen; the inner optimizer would step it
                self._hidden.append((p, p.grad))
                p.grad = None
        self._take_out(state)
        self._show([i for i, p in enumerate(self._trained.parameters) if p.grad is not None])
        weights = [self._trained.parameters[i] for i in self._chosen]
        if self._scalings is not None:
            self._scalings.check_tensors(self._stepped, self._chosen)
        for p, x in zip(weights, self._stepped, strict=True):
            if p is not x:
                x.grad = p.grad.to(torch.float32)  # type: ignore[union-attr]
        gradients = [_values(x) for x in self._stepped]
        if self._grad_scaling != 1.0:
            scale_each(gradients, self._grad_scaling)
        self._round("grad_quant", _GRADIENT, gradients, gradients, self._chosen)
        for p, x, gradient in zip(weights, self._stepped, gradients, strict=True):
            if p is not x:
                _values(p).copy_(gradient)
        self._trained.use_accumulators(self._chosen, self._stepped)

    @torch.no_grad()
    def _finish(self, state: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        """Rounds accumulators, weights and momenta."""
        trained, chosen, stepped = self._trained, self._chosen, self._stepped
        weights = [trained.parameters[i] for i in chosen]
        sources = stepped
        if trained.accumulates:
            sources = [trained.accumulators[i] for i in chosen]
            self._round("acc_quant", _ACCUMULATOR, sources, stepped, chosen)
            weights = [trained.written[i] for i in chosen]
        # A 16-bit weight is rounded in float32, and then to its own dtype if this does not hold the result.
        targets = [x if x.dtype is y.dtype else y for x, y in zip(weights, stepped, strict=True)]
        self._round("weight_quant", _WEIGHT, targets, sources, chosen)
        narrow = [(x, y) for x, y in zip(weights, targets, strict=True) if x is not y]
        copy_each([x for x, _ in narrow], [y for _, y in narrow])
        if trained.accumulates:
            trained.write_weights(chosen)
        delayed = self._scalings is not None and "momentum_quant" in self._scalings  # in a step that only makes state
        if delayed or self._quantizers["momentum_quant"] is not None:
            self._round_momenta(stepped, [state.get(x) or {} for x in stepped])

    def _end(self, state: MutableMapping[torch.Tensor, dict[str, Any]]) -> None:
        """Takes back all that only the inner step should see, also after an error."""
        if self._masters is not None:
            self._masters.take_out()
        self._trained.restore_weights()
        self._trained.put_in(state, self._chosen)
        if self._scalings is not None:
            self._scalings.put_in(state)
        for p, gradient in self._hidden:
            p.grad = gradient

    def _round_momenta(self, weights: list[torch.Tensor], states: list[dict[str, Any]]) -> None:
        roles = [_MOMENTUM] * len(weights)
        # Entries of rows were left by formats of before, with delayed scales.
        own = [{name: x for name, x in state.items() if not is_entry(name)} for state in states]
        each = [momenta_of(state, p) for state, p in zip(own, weights, strict=True)]
        for name in sorted(set().union(*each), key=_order):
            found = [n for n, momenta in enumerate(each) if name in momenta]
            momenta = [each[n][name] for n in found]
            chosen = [self._chosen[n] for n in found]
            self._round("momentum_quant", [roles[n] for n in found], momenta, momenta, chosen, name)
            for n in found:
                roles[n] += 1

    def _round(
        self,
        name: str,
        roles: int | list[int],
        targets: Tensors,
        sources: Tensors,
        chosen: list[int],
        tensor: str = "",
    ) -> None:
        """Rounds tensors of the chosen parameters, in place or onto others; `tensor` is the name of a state tensor."""
        quantizer = self._quantizers[name]
        if self._observer is not None and isinstance(quantizer, Quantization):
            before = [x.clone() if x is y else x for x, y in zip(sources, targets, strict=True)]
            self._round_unobserved(name, roles, targets, sources, chosen, tensor)
            for i, x, y in zip(chosen, before, targets, strict=True):
                parameter = self._trained.parameters[i]
                self._observer(parameter, tensor or TENSORS[name], x, y, check_number(quantizer.forward_number))
        else:
            self._round_unobserved(name, roles, targets, sources, chosen, tensor)

    def _round_unobserved(
        self, name: str, roles: int | list[int], targets: Tensors, sources: Tensors, chosen: list[int], tensor: str
    ) -> None:
        quantizer = self._quantizers[name]
        keys = self._keys(roles, chosen) if is_stochastic(quantizer) else None
        if self._scalings is not None and name in self._scalings:
            place = name, tensor or TENSORS[name]
            if isinstance(quantizer, Quantization):
                self._scalings.round(*place, targets, sources, chosen, quantizer.forward_rounding, keys)
                return
            self._scalings.prepare(*place, sources, chosen)  # the step only makes state
        if isinstance(quantizer, Quantization):
            number, rounding = check_number(quantizer.forward_number), quantizer.forward_rounding
            round_each(_with_axes(targets), _with_axes(sources), number, rounding, keys)
        elif quantizer is not None:
            copy_each(targets, apply_function(name, quantizer, sources))
        elif targets is not sources:
            copy_each(targets, sources)

    def _keys(self, roles: int | list[int], chosen: list[int]) -> torch.Tensor:
        """fold_in(fold_in(k, role), number) for each of the chosen parameters."""
        while len(self._folded) <= (roles if isinstance(roles, int) else max(roles, default=0)):
            more = np.arange(len(self._folded), len(self._folded) + _AT_ONCE, dtype=np.uint32)
            of_roles = fold_in_each(np.array(self._key, np.uint32), more)
            numbers = np.array(self._trained.numbers, np.uint32)
            self._folded = np.concatenate([self._folded, fold_in_each(of_roles[:, None], numbers)])
        return torch.from_numpy(self._folded[roles, chosen].view(np.int32))


def _with_axes(tensors: Tensors) -> Tensors:
    """The tensors; a number without dimensions as a row, which is a block."""
    return [x if x.dim() else x.view(1) for x in tensors]


def _order(name: str) -> list[tuple[int, str]]:
    """The place of a momentum in the order of names, in which numbers in lists have theirs."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _values(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter; of a sparse one its values."""
    gradient: Any = p.grad
    if gradient.layout is torch.strided:
        return gradient
    p.grad = gradient.coalesce()  # several gradients of one element are added up before they are rounded
    return p.grad.values()  # type: ignore[union-attr]
