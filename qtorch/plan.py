"""What can be worked out once for a format, a rounding mode and a dtype."""

from __future__ import annotations

from typing import Any

import torch

from qcore import Number, Rounding
from qcore.arguments import check_rounding
from qcore.carrier import Carrier
from qcore.formats import check_number
from qcore.law import Block, Grid, Program
from qtorch import kernels
from qtorch.cache import constant, literal, remember
from qtorch.lanes import CARRIERS


class Plan:
    """A format under a rounding mode on a dtype, reduced to what the paths need.

    Attributes:
        number, program, constants: the format, what is traced, and the format's integers.
        stochastic: whether there are random words.
        flat: whether a tensor's shape does not matter (random words aside).
    """

    def __init__(self, number: Number, program: Program, constants: Grid | Block) -> None:
        self.number = number
        self.program = program
        self.constants = constants
        self.stochastic = program.mode is Rounding.STOCHASTIC
        self.flat = getattr(number, "dim", -1) == -1
        self._runners: dict[tuple[str, torch.device], tuple[kernels.Kernel | None, torch.Tensor]] = {}

    def runner(self, layout: str, device: torch.device) -> tuple[kernels.Kernel | None, torch.Tensor]:
        """The kernel for a layout, if there is one, and this format's integers as its argument."""
        try:
            return self._runners[layout, device]
        except KeyError:
            constants = torch.tensor(self.constants, dtype=torch.int32, device=device)
            runner = kernels.load(self.program, layout, device), constants
            self._runners[layout, device] = runner
            return runner


def make_plan(number: Any, rounding: Any, dtype: torch.dtype) -> Plan:
    """The plan for a user's arguments, or an error that names what is wrong with them."""
    number, mode = check_number(number), check_rounding(rounding)
    if dtype not in CARRIERS:
        hint = "; convert it with x.float()" if dtype is torch.float64 else ""
        raise TypeError(f"x has dtype {dtype}; allowed are torch.float32, torch.float16 and torch.bfloat16{hint}")
    if torch.compiler.is_compiling():
        fields = tuple(literal(getattr(number, name)) for name in type(number).__match_args__)
        kind, constants, carrier = _reduce(type(number), dtype, *fields)
        shape = Block if kind == "block" else Grid
        return Plan(number, Program(Carrier(*carrier), mode, kind), shape(*constants))
    kind, constants = number.reduce(CARRIERS[dtype])
    return Plan(number, Program(CARRIERS[dtype], mode, kind), constants)


@constant
def _reduce(make: type[Number], dtype: torch.dtype, *fields: Any) -> tuple[str, tuple[int, ...], tuple[Any, ...]]:
    """A format's kind, its integers and its carrier as literals of a traced program; see `literal`."""
    carrier = CARRIERS[dtype]
    kind, constants = make(*fields).reduce(carrier)
    return kind, tuple(constants), (carrier.name, carrier.exponent_bits, carrier.mantissa_bits)


plan_for = remember(make_plan)
