"""The states of delayed scales: a backward pass gathers largest magnitudes, and advances each state once, at its end.

Until then all products read the same scales, also in layers that are used several times or that checkpointing computes
again. A pass begins with the first product with a state in a backward pass, and ends with this backward pass. Nested
backward passes (`torch.utils.checkpoint` with `use_reentrant=True`) are one pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist

from qcore.formats.number import check_number
from qcore.law.rounding import RoundingName, check_rounding
from qcore.linalg.operands import Operand
from qcore.linalg.product import Products
from qcore.linalg.scaling import is_delayed, newest_magnitude, next_row, operand_of, round_delayed
from qtorch._rounding.dispatch import quantize
from qtorch._torch_internals import at_end_of_backward, in_backward, outside_transforms, unseen_by_modes
from qtorch.linalg.namespace import Float64
from qtorch.linalg.native import product_of


@dataclass
class _Advance:
    """A state to be advanced: how its rows are rounded, and the bits of their largest magnitudes so far."""

    state: torch.Tensor
    rows: tuple[Operand, ...]
    newest: torch.Tensor


class _Pass:
    """A backward pass: its states to be advanced, by the address of their memory. It lives as long as torch's pass."""

    def __init__(self) -> None:
        self.advances: dict[int, _Advance] = {}
        self.finished = False

    def gather(self, state: torch.Tensor, rows: tuple[Operand, ...], newest: torch.Tensor) -> None:
        """Notes the largest magnitudes of a product's tensors, int32 of shape (3,)."""
        one = self.advances.setdefault(state.data_ptr(), _Advance(state, rows, newest))
        if one.rows != rows:
            here, there = (" and ".join(dict.fromkeys(row.text for row in each)) for each in (rows, one.rows))
            raise ValueError(
                f"scaling is the state of {here} and of {there}; allowed is a state of its own for each of them"
            )
        one.newest = torch.maximum(one.newest, newest)

    def finish(self) -> None:
        self.finished = True
        with unseen_by_modes(), torch.no_grad(), outside_transforms():  # such as torch.func.grad
            advances = list(self.advances.values())
            for device in dict.fromkeys(one.newest.device for one in advances):
                _reduce([one for one in advances if one.newest.device == device])
            for one in advances:
                for row, newest, operand in zip(one.state, one.newest.split(1), one.rows, strict=True):
                    if operand.delayed:
                        row.copy_(next_row(Float64, row, newest, operand))


# The pass that runs in this thread; devices have threads of their own. Torch drops a pass that fails.
_RUNNING: ContextVar[ReferenceType[_Pass] | None] = ContextVar("running", default=None)


def _reduce(advances: Iterable[_Advance]) -> None:
    """Takes the largest magnitudes over the processes of the default group: all states at once."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    places = [
        (one, row)
        for one in advances
        for row, operand in enumerate(one.rows)
        if operand.delayed and operand.scale is not None and operand.scale.reduce_amax
    ]
    if places:
        bits = torch.stack([one.newest[row] for one, row in places])
        dist.all_reduce(bits, dist.ReduceOp.MAX)  # of bits, as NaN is the largest magnitude
        for (one, row), found in zip(places, bits, strict=True):
            one.newest[row] = found


def enter_pass() -> _Pass | None:
    """The backward pass that runs now; None outside of any."""
    running = _RUNNING.get()
    found = None if running is None else running()
    if (found is None or found.finished) and in_backward():
        found = _Pass()
        at_end_of_backward(found.finish)
        _RUNNING.set(ref(found))
    return found


def gather(state: torch.Tensor, rows: tuple[Operand, ...], tensors: Iterable[torch.Tensor]) -> None:
    """Collects the largest magnitudes of tensors; the current backward pass advances the state by them at its end.

    The state has a row for each tensor; `rows` are the roundings of the tensors.
    """
    found = enter_pass()
    if found is None:
        raise RuntimeError(
            "delayed scales in a backward pass that torch's engine does not run, as in compiled autograd and in "
            "torch.func; allowed are torch.compile without it, and eager programs"
        )
    with unseen_by_modes():
        newest = [newest_magnitude(Float64, x.detach().contiguous()).to(state.device) for x in tensors]
        found.gather(state, rows, torch.cat(newest))


def gather_product(
    state: torch.Tensor, scales: torch.Tensor, a: torch.Tensor, b: torch.Tensor, gradient: torch.Tensor, *products: str
) -> torch.Tensor:
    """`gather` for a product's tensors; returns a copy of the scales.

    The products of gradients use this copy, so that compilers keep the call.
    """
    gather(state, Products(*map(product_of, products)).rows, (a, b, gradient))
    return scales.clone()


def round_with_state(
    x: torch.Tensor, key: torch.Tensor | None, scale: torch.Tensor, number: str, rounding: RoundingName
) -> torch.Tensor:
    """A tensor rounded to a format, with the scale that is given if the format's is delayed."""
    given = _number(number)
    key = key if check_rounding(rounding).stochastic else None
    if given is None:
        return x.clone()
    if not is_delayed(given):
        return quantize(x, given, rounding, key=key)
    enter_pass()  # in which checkpoints run a forward pass again
    return round_delayed(Float64, x, given, scale, lambda y, element: quantize(y, element, rounding, key=key))


def gather_rows(
    state: torch.Tensor, scale: torch.Tensor, x: torch.Tensor, gradient: torch.Tensor, numbers: list[str]
) -> torch.Tensor:
    """`gather` for a tensor and its gradient; returns a copy of the scale.

    The gradient's rounding takes the scale from here, so that compilers keep the call.
    """
    forward, backward = (operand_of(one) if is_delayed(one) else Operand() for one in map(_number, numbers))
    gather(state, (forward, backward), (x, gradient))
    return scale.clone()


def scales_shape(state: torch.Tensor, scales: torch.Tensor, *_: Any) -> torch.Tensor:
    """A tensor of the shape and dtype of the scales that the gathering operators return."""
    return torch.empty_like(scales)


def rounded_shape(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """A tensor of the shape and dtype of a rounded one."""
    return torch.empty_like(x)


def _number(text: str) -> Any:
    return check_number(text) if text else None


def given_scales(operands: Any, rows: Any, state: torch.Tensor | None) -> list[torch.Tensor | None]:
    """The delayed scales of a product's operands, None for operands without; a recomputed product begins a pass."""
    pairs = list(zip(operands, rows, strict=True))
    if state is not None and any(operand.delayed for operand, _ in pairs):
        enter_pass()
    return [state[row, 0] if state is not None and operand.delayed else None for operand, row in pairs]
