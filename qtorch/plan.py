"""What can be worked out once for a format, a rounding mode and a dtype."""

from __future__ import annotations

import torch

from qcore import Number, Rounding
from qcore.arguments import check_number, check_rounding
from qcore.law import Program
from qtorch import kernels
from qtorch.cache import remember
from qtorch.lanes import CARRIERS


class Plan:
    """A format under a rounding mode on a dtype, reduced to what the paths need.

    Attributes:
        number, program, constants: the format, what is traced, and the format's integers.
        stochastic: whether there are random words.
        flat: whether a tensor's shape does not matter (random words aside).
    """

    def __init__(self, number: Number, rounding: str | Rounding, dtype: torch.dtype) -> None:
        self.number = check_number(number)
        mode = check_rounding(rounding)
        if dtype not in CARRIERS:
            hint = "; convert it with x.float()" if dtype is torch.float64 else ""
            raise TypeError(f"x has dtype {dtype}; allowed are torch.float32, torch.float16 and torch.bfloat16{hint}")
        kind, self.constants = number.reduce(CARRIERS[dtype])
        self.program = Program(CARRIERS[dtype], mode, kind)
        self.stochastic = mode is Rounding.STOCHASTIC
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


plan_for = remember(Plan)
