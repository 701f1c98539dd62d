"""Functions of several steps of tensors."""

from __future__ import annotations

from typing import Any

import torch

from qcore.arithmetic.composed import Stepwise
from qtorch import linalg
from qtorch._torch_internals import unseen_by_modes
from qtorch.arithmetic.functions import FUNCTIONS


class Tensors(Stepwise):
    """The steps of a function on tensors."""

    functions, matmul = FUNCTIONS, staticmethod(linalg.matmul)

    @staticmethod
    def scalar(value: float, like: torch.Tensor) -> torch.Tensor:
        return torch.full((), value, dtype=torch.float32, device=like.device)

    @staticmethod
    def ones(rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        return torch.ones(rows, columns, dtype=torch.float32, device=like.device)

    @staticmethod
    def greatest(x: torch.Tensor) -> torch.Tensor:
        return x.detach().amax(-1, keepdim=True)

    def __call__(self, x: torch.Tensor, *parameters: Any, **options: Any) -> torch.Tensor:
        """The function of a tensor of float32, float16 or bfloat16, in its dtype."""
        self.check_result(FUNCTIONS.floats("x", x)[1])
        with unseen_by_modes(), torch.autocast(x.device.type, enabled=False):
            wide = [one if one is None else one.to(torch.float32) for one in (x, *parameters)]
            return self.run(*wide, **options).to(x.dtype)
