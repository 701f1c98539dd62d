"""Sums over many ranks in one process, on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

import qcore.distributed.reducer as law
from qcore import arrays
from qcore.distributed.collective import BEFORE, FIRST, PREMULTIPLY, REDUCE, SPLIT
from qcore.distributed.law import OfLevel
from qcore.distributed.stream import Level, Steps
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import check_number
from qcore.law.rounding import Rounding
from qcore.linalg.accumulator import FLOAT32_NUMBER
from qtorch._kernels.launch import addresses, aligned, serve_cpu
from qtorch._kernels.ranks import adding
from qtorch._kernels.store import Function
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import given_or_drawn
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._rounding.sharded import check_not_sharded
from qtorch.distributed.tensors import Terms, names_of, reduce, reduce_scatter

_DTYPES = {check_number(name): getattr(torch, name) for name in ("float32", "float16", "bfloat16")}


class Reducer(law.Reduction):
    """The sum of many ranks' gradients, given one after the other: one process simulates N.

    It has the bits of `reduce` of the stack of all gradients, for which it needs less memory; see
    `qcore.distributed.Reducer`, whose bits it has. Sums in float32, float16 and bfloat16 that round to nearest are
    torch's own additions, on the gradients' device; on the CPU one kernel rounds and adds, without float16.

    Args:
        collective: as for `reduce`; also NCCL's PAT, which has a reduce-scatter alone: its parts, one after the other.
        ranks: how many gradients will be added, N.
        labels: "rotated": in each chunk of a ring the k-th gradient is that of the rank whose number is added as the
            k-th; "ranks": the k-th gradient is that of rank k, for which rings keep all gradients.
        key: as for `reduce`.

    Attributes:
        labels: the labels that are used: "ranks" for other orders than rings, "own_first" and "nccl_pat".
        came: how many gradients were added.

    Raises:
        ValueError: if ranks fill no nodes of the collective.

    Example:
        >>> reducer = Reducer("nccl.ring.bf16", ranks=3)
        >>> for number in 1.0, 256.0, 1.0:  # 257 is no bfloat16
        ...     reducer.add({"weight": torch.tensor([number])})
        >>> reducer.result(), reducer.labels
        ({'weight': tensor([256.])}, 'rotated')
    """

    classes, allowed, terms = torch.Tensor, "a torch.Tensor", Terms

    def _words(self, key: Any, stochastic: bool) -> torch.Tensor | None:
        return given_or_drawn(key, stochastic, True)

    def _flattened(self, gradient: Any) -> Any:
        leaves, make = law.flattened(gradient)
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):  # before its shape is read, which nested tensors have not
                check_dense("gradient", leaf)
                check_not_sharded(leaf, "gradient")
                if leaf.requires_grad and torch.is_grad_enabled():
                    raise ValueError("gradient requires gradients; allowed is gradient.detach()")
                allowed = leaves[0].device if self._shapes is None else self._like.device
                if leaf.device != allowed:
                    raise ValueError(f"gradient is on {leaf.device}; allowed is {allowed}, as for the tensors before")
        return leaves, make

    def _message(self, leaves: list[torch.Tensor], kept: bool) -> torch.Tensor:
        x = leaves[0].detach().reshape(-1) if len(leaves) == 1 else torch.cat([leaf.reshape(-1) for leaf in leaves])
        return x.clone() if kept else x

    def _names(self, flush: bool, role: int) -> Terms:
        key = None if self._key is None else self._key.to(self._like.device)
        return names_of(key, flush, role)

    def _steps(self, level: Level, names: OfLevel) -> Steps:
        return _fastest(level, self._like.device)(level, names)

    def _of_total(self, total: torch.Tensor) -> torch.Tensor:
        found = total.to(torch.float32).to(self._like.dtype)
        return found.masked_fill_(found.isnan(), torch.nan)

    def _of_stack(self) -> torch.Tensor:
        call = reduce if self._call == REDUCE else reduce_scatter
        return call(torch.stack(self._stack).reshape(self.ranks, *self._shape), self.collective, key=self._key).reshape(
            -1
        )


class TensorSteps(Steps):
    """The law on tensors of any dtype."""

    def term(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        return super().term(x.to(torch.float32), rank)


class OwnSteps(Steps):
    """Steps by torch's additions, whose sums of two numbers of a dtype are the exact ones, rounded once.

    Sums of bfloat16 and float16 are those of float32 in torch, and float32 has more than twice their significand's
    bits: the second rounding changes nothing.
    """

    def __init__(self, level: Level, names: OfLevel) -> None:
        super().__init__(level, names)
        assert level.law.wire is not None  # as nothing is left open
        assert level.law.accumulator is not None
        self.wire = _DTYPES.get(level.law.wire, torch.float32)
        self.sum = _DTYPES.get(level.law.accumulator.number, torch.float32)
        self.factor: float | None = None
        if level.law.divide == PREMULTIPLY:
            self.factor = arrays.quantize(np.array([1 / level.ranks]), level.law.wire).item()
        self.divisor = float(level.ranks) if level.law.divide == BEFORE else None
        self.sent: torch.Tensor | None = None  # the same memory for all terms, as new pages cost as much as the sum

    def term(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        as_it_is = self.factor is None and self.divisor is None
        if as_it_is and x.dtype == self.wire:
            return x
        if self.sent is None:
            self.sent = torch.empty_like(x, dtype=self.wire)
        if x.dtype != self.wire:
            x = self.sent.copy_(x)
        if as_it_is:
            return x
        if self.factor is not None:
            return torch.mul(x, self.factor, out=self.sent)
        assert self.divisor is not None  # as terms change
        return torch.div(x, self.divisor, out=self.sent)

    def kept(self, term: torch.Tensor) -> torch.Tensor:
        return term.to(self.sum, copy=True)

    def started(self, term: Any) -> tuple[torch.Tensor, bool]:
        if self.level.law.start == FIRST or not self.level.adds:
            return self.kept(term), True
        return torch.zeros_like(term, dtype=self.sum), False

    def added(self, total: torch.Tensor, terms: Sequence[torch.Tensor], step: int) -> torch.Tensor:
        return total.add_(terms[0])

    def node(self, term: torch.Tensor) -> torch.Tensor:
        return term

    def hop(self, total: torch.Tensor, child: torch.Tensor, level: int, row: int) -> torch.Tensor:
        return total.add_(child)

    def result(self, total: torch.Tensor) -> torch.Tensor:
        return super().result(total.to(torch.float64))


class Given(NamedTuple):
    """The numbers of a rank, which are not yet rounded to the wire."""

    numbers: torch.Tensor


class OnePass(OwnSteps):
    """Steps that round what a rank sends while they add it: one pass over memory, with the same bits."""

    def term(self, x: torch.Tensor, rank: int) -> Any:
        is_sum = self.factor is None and self.divisor is None and x.dtype == self.wire == self.sum
        if is_sum or not (x.is_cpu and is_plain_tensor(x)) or self._kernel(x.dtype) is None:
            return super().term(x, rank)
        return Given(aligned(x.contiguous()))

    def kept(self, term: Any) -> torch.Tensor:
        return super().kept(super().term(term.numbers, 0) if isinstance(term, Given) else term)

    def started(self, term: Any) -> tuple[torch.Tensor, bool]:
        if not isinstance(term, Given) or self.level.law.start == FIRST or not self.level.adds:
            return super().started(term)
        return torch.zeros_like(term.numbers, dtype=self.sum), False

    def added(self, total: torch.Tensor, terms: Sequence[Any], step: int) -> torch.Tensor:
        return self._plus(total, terms[0])

    def hop(self, total: torch.Tensor, child: Any, level: int, row: int) -> torch.Tensor:
        return self._plus(total, child)

    def _plus(self, total: torch.Tensor, term: Any) -> torch.Tensor:
        if not isinstance(term, Given):
            return total.add_(term)
        x, function = term.numbers, self._kernel(term.numbers.dtype)
        assert function is not None  # as `term` found it
        function(x.numel(), *addresses(x, total), self.bits)
        return total

    def _kernel(self, dtype: torch.dtype) -> Function | None:
        return adding(dtype, self.wire, self.sum, "*" if self.factor is not None else "/" if self.divisor else "")

    @cached_property
    def bits(self) -> int:
        """Of the factor or divisor, a float32 number."""
        return int(np.float32(self.factor or self.divisor or 0).view(np.int32))


class RoundedSteps(OwnSteps):
    """Steps in formats of few bits: torch's float32 sums, rounded again by the kernel of `quantize`.

    Float32 has more than twice the bits of their significands, so the first rounding changes nothing.
    """

    def term(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        wire = self.level.law.wire
        assert wire is not None  # as nothing is left open
        sent = quantize(x.to(torch.float32), wire)
        return sent if self.factor is None else quantize(sent.mul_(self.factor), wire)

    def added(self, total: torch.Tensor, terms: Sequence[torch.Tensor], step: int) -> torch.Tensor:
        return self._rounded(total.add_(terms[0]))

    def hop(self, total: torch.Tensor, child: torch.Tensor, level: int, row: int) -> torch.Tensor:
        return self._rounded(total.add_(child))

    def _rounded(self, total: torch.Tensor) -> torch.Tensor:
        assert self.level.law.accumulator is not None  # as nothing is left open
        number = self.level.law.accumulator.number
        return total if number == FLOAT32_NUMBER else quantize(total, number)


def _fastest(level: Level, device: torch.device) -> type[Steps]:
    """The steps of which torch, on a device, has the bits of the law."""
    law = level.law
    assert law.accumulator is not None  # as nothing is left open
    wire, number = law.wire, law.accumulator.number
    rounds = (law.rounding, law.accumulator.rounding) != (Rounding.NEAREST, Rounding.NEAREST)
    if rounds or law.flush or law.grouped or not law.accumulator._sequential or law.divide == SPLIT:
        return TensorSteps
    if wire in _DTYPES and number in _DTYPES and (number == wire or _DTYPES[number] == torch.float32):
        # GPUs multiply by the reciprocal of a number, where CPUs divide.
        if device.type != "cpu":
            return TensorSteps if law.divide == BEFORE else OwnSteps
        return OwnSteps if serve_cpu() else OnePass
    is_few = _has_few_bits(wire) and number in (wire, FLOAT32_NUMBER)
    return RoundedSteps if is_few and law.divide != BEFORE else TensorSteps


def _has_few_bits(number: Any) -> bool:
    """True if float32 has sums and products of two such numbers to more than twice their bits."""
    if not isinstance(number, FloatingPoint | BinaryFloat):
        return False
    bits, step, largest = number.span
    return 2 * bits + 2 <= 24 and step > -60 and largest < 60
