"""How `OptimLP` rounds: its quantizers, and delayed scales, which are a row of state for each tensor.

A step advances a row once, see `qcore.linalg.scaling.next_row`: the scale, and the past largest magnitudes.
Between the steps rows are entries of the inner optimizer's state, where torch saves and copies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any

import torch

from qcore import Number, Quantization, Rounding
from qcore.arguments import quoted
from qcore.formats.block import BlockScaled
from qcore.formats.number import check_target
from qcore.linalg.scaling import check_row, is_delayed, newest_magnitude, next_row, operand_of, round_delayed
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.many import Tensors
from qtorch._rounding.sharded import is_sharded
from qtorch.linalg.namespace import Float64
from qtorch.optim.trained import Trained, momenta_of
from qtorch.quant import Quantizer

_PREFIX, _STATE = "low_precision_scaling_of_", "state_"
TENSORS = {"grad_quant": "gradient", "acc_quant": "accumulator", "weight_quant": "weight"}  # by argument

Function = Callable[[torch.Tensor], torch.Tensor]
Quantizers = Mapping[str, Quantization | Function | None]  # the result of `check_quantizer` for each argument
State = MutableMapping[torch.Tensor, dict[str, Any]]
Rows = dict[str, torch.Tensor]  # by entry


def check_quantizer(name: str, quantizer: Any) -> Quantization | Function | None:
    """The forward rounding of a quantizer, or a function; None for an argument that does not round."""
    if quantizer is None:
        return None
    if isinstance(quantizer, Quantizer):
        return None if quantizer.quantization.forward_number is None else quantizer.quantization
    if isinstance(quantizer, (Number, str)):
        return _nearest(check_target(quantizer, name))
    if callable(quantizer):
        return quantizer  # type: ignore[return-value]
    raise TypeError(
        f"{name}={quoted(quantizer)} is a {type(quantizer).__name__}; allowed are a function of a tensor, a "
        "Quantizer, a Number or its name, and None"
    )


@cache
def _nearest(number: Number) -> Quantization:
    return Quantization(number, forward_rounding=Rounding.NEAREST)


def is_stochastic(quantization: Quantization | Function | None) -> bool:
    """True if roundings need keys; a function has its own source of random bits, if any."""
    return isinstance(quantization, Quantization) and quantization.forward_rounding.stochastic


def apply_function(name: str, function: Function, tensors: Tensors) -> list[torch.Tensor]:
    """The function's results for copies, which it may keep or work on in place."""
    results = [function(x.clone()) for x in tensors]
    for x, y in zip(tensors, results, strict=True):
        if not isinstance(y, torch.Tensor) or y.shape != x.shape:
            got = f"shape {tuple(y.shape)}" if isinstance(y, torch.Tensor) else f"type {type(y).__name__}"
            raise ValueError(f"{name} returned a result of {got}; allowed is a tensor of shape {tuple(x.shape)}")
    return results


def describe(quantizer: Any) -> str:
    """A quantizer for `repr`."""
    if isinstance(quantizer, (Number, str)):
        return f"{quantizer}, nearest"
    return getattr(quantizer, "__name__", None) or str(quantizer)


def entry_of(argument: str, tensor: str) -> str:
    """The name in `state` of a tensor's row of scales; a momentum has its name in the inner optimizer's state."""
    return f"{_PREFIX}{_STATE if argument == 'momentum_quant' else ''}{tensor}"


def is_entry(name: Any) -> bool:
    """True for the name of an entry that is a row."""
    return isinstance(name, str) and name.startswith(_PREFIX)


def delayed_numbers(quantizers: Quantizers) -> dict[str, BlockScaled]:
    """The arguments of `OptimLP` whose formats have a history, and the formats."""
    numbers = {
        name: quantization.forward_number
        for name, quantization in quantizers.items()
        if isinstance(quantization, Quantization)
    }
    return {name: number for name, number in numbers.items() if is_delayed(number)}  # type: ignore[misc]


class Scalings:
    """The rows of delayed scales in a step.

    All roundings of a step, in each evaluation of a closure, read the scales of the step before. `advance` then takes
    the largest of all their magnitudes.
    """

    def __init__(self, numbers: Mapping[str, BlockScaled], trained: Trained) -> None:
        self._numbers = numbers
        self._trained = trained
        self._rows: list[Rows] = [{} for _ in trained.parameters]
        self._newest: dict[tuple[int, str], tuple[torch.Tensor, BlockScaled]] = {}

    def __contains__(self, argument: str) -> bool:
        return argument in self._numbers

    def take_out(self, state: State) -> None:
        """Takes the rows out of the state, so that the inner optimizer finds only its own entries."""
        for p, rows in zip(self._trained.parameters, self._rows, strict=True):
            entries = state.get(p) or {}
            for name in list(filter(is_entry, entries)):
                row = entries.pop(name)
                if _argument_of(name) in self._numbers:
                    rows[name] = row

    def put_in(self, state: State) -> None:
        """Puts the rows back."""
        for p, rows in zip(self._trained.parameters, self._rows, strict=True):
            if rows:
                state[p].update(rows)

    def check_tensors(self, tensors: Tensors, chosen: Sequence[int]) -> None:
        """Raises for parameters whose tensors cannot have a delayed scale, before a step changes anything."""
        for argument in self._numbers:
            self._check(argument, tensors, chosen)

    def _check(self, argument: str, tensors: Tensors, chosen: Sequence[int]) -> None:
        for x, i in zip(tensors, chosen, strict=True):
            text, number = self._numbers[argument].text, self._trained.numbers[i]
            place = f"{argument}={text} has a delayed scale, and parameter {number}"
            if is_sharded(x):
                raise TypeError(
                    f"{place} is a DTensor; allowed are tensors of one process, and formats without history"
                )
            if x.dtype is not torch.float32:
                raise TypeError(
                    f"{place} has a tensor of {x.dtype}; allowed are torch.float32, in which 16-bit parameters are "
                    "stepped if weights, accumulators or momenta are rounded, and formats without history"
                )

    def prepare(self, argument: str, tensor: str, sources: Tensors, chosen: Sequence[int]) -> list[torch.Tensor]:
        """The rows of a tensor of each chosen parameter; missing rows are made."""
        self._check(argument, sources, chosen)
        history, entry = self._numbers[argument].history, entry_of(argument, tensor)
        assert history is not None
        found = []
        for x, i in zip(sources, chosen, strict=True):
            rows = self._rows[i]
            if entry not in rows:
                with torch.inference_mode(False):  # steps outside of that mode write it, too
                    rows[entry] = torch.eye(1, 1 + history)[0].to(x.device)
            check_row(
                f"optimizer.state of parameter {self._trained.numbers[i]} has {entry}, which", rows[entry], history
            )
            rows[entry] = rows[entry].to(x.device)
            found.append(rows[entry])
        return found

    @torch.no_grad()
    def round(
        self,
        argument: str,
        tensor: str,
        targets: Tensors,
        sources: Tensors,
        chosen: Sequence[int],
        rounding: Rounding,
        keys: torch.Tensor | None,
    ) -> None:
        """Rounds a tensor of each chosen parameter onto its target, and notes its largest magnitude."""
        number, entry = self._numbers[argument], entry_of(argument, tensor)
        rows = self.prepare(argument, tensor, sources, chosen)
        for i, x in zip(chosen, sources, strict=True):  # all before the first is written: gradients may share memory
            newest, (before, _) = newest_magnitude(Float64, x), self._newest.get((i, entry), (None, None))
            self._newest[i, entry] = newest if before is None else torch.maximum(newest, before), number
        each = None if keys is None or not sources else keys.to(sources[0].device)
        for n, (target, x, row) in enumerate(zip(targets, sources, rows, strict=True)):
            key = None if each is None else each[n]
            target.copy_(
                round_delayed(Float64, x, number, row[0], lambda y, one, key=key: quantize(y, one, rounding, key=key))
            )

    @torch.no_grad()
    def advance(self) -> None:
        """Ends the step: advances the rows of all tensors that were rounded."""
        for (i, entry), (newest, number) in self._newest.items():
            row = self._rows[i][entry]
            row.copy_(next_row(Float64, row, newest, operand_of(number)))
        self._newest = {}


def check_saved(
    numbers: Mapping[str, BlockScaled],
    trained: Trained,
    saved: Mapping[int, Rows],
    states: Mapping[int, Mapping[str, Any]],
    steps: int,
) -> None:
    """Raises ValueError unless a checkpoint has exactly the rows that an optimizer needs.

    Args:
        numbers: see `delayed_numbers`.
        trained: the parameters.
        saved: rows by the parameters' numbers.
        states: the other entries of the inner optimizer's state, by the parameters' numbers.
        steps: the number of steps before it was saved.
    """
    for number, p in zip(trained.numbers, trained.parameters, strict=True):
        rows, entries = saved.get(number, {}), states.get(number, {})
        tensors = [*TENSORS.items(), *(("momentum_quant", name) for name in momenta_of(entries, p))]
        expected = {entry_of(*one): numbers[one[0]] for one in tensors if one[0] in numbers}
        place = f"state_dict['state'][{number}]"
        for name, row in rows.items():
            if name not in expected:
                raise ValueError(
                    f"{place} has {name}; allowed are {', '.join(expected) or 'none'}, by formats' history"
                )
            history = expected[name].history
            assert history is not None
            check_row(f"{place}[{quoted(name)}]", row, history)
            if not (0 < row[0] < torch.inf and bool((row.view(torch.int32) >= 0).all())):
                raise ValueError(
                    f"{place}[{quoted(name)}] begins with {row[:4].tolist()}; allowed are a finite scale above 0, and "
                    "magnitudes without a sign"
                )
        # Optimizers such as Adagrad have entries of parameters that no step has changed; rows come with the first step.
        stepped = bool(rows) or bool(entries and entries.get("step", 1) > 0) or not saved
        for name in expected if steps > 0 and stepped else ():
            if name not in rows:
                raise ValueError(f"{place} lacks {name}; allowed is the state of an OptimLP with the same histories")


def load_rows(trained: Trained, saved: Mapping[int, Rows], state: State) -> None:
    """Puts copies of the rows of a checkpoint, by the parameters' numbers, into the optimizer's state."""
    for number, p in zip(trained.numbers, trained.parameters, strict=True):
        if number in saved:
            with torch.inference_mode(False):
                state[p].update({name: row.detach().to(p.device, copy=True) for name, row in saved[number].items()})


def _argument_of(entry: str) -> str:
    """The argument of `OptimLP` that rounds an entry's tensor."""
    tensor = entry.removeprefix(_PREFIX)
    arguments = {name: argument for argument, name in TENSORS.items()}
    return "momentum_quant" if tensor.startswith(_STATE) else arguments.get(tensor, "")
