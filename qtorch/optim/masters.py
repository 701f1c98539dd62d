"""float32 copies of 16-bit parameters, which an optimizer steps in their places."""

from __future__ import annotations

import torch

NARROW = frozenset((torch.bfloat16, torch.float16))  # updates are often less than half a step of a weight


class Masters:
    """Puts float32 parameters in the places of bfloat16 and float16 ones, in an optimizer's groups and its state.

    The optimizer keeps its lists and dictionaries, since optimizers such as LBFGS hold on to them.

    Args:
        optimizer: the inner optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._of: dict[torch.Tensor, torch.nn.Parameter] = {}
        self._in_place = False

    def put_in(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the optimizer steps for each parameter from now on: itself, or a copy in float32 if it is narrow."""
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
