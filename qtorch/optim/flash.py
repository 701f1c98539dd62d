"""FlashAdamW: AdamW with companded moments of 8 bits, and 16-bit weights with codes of their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from qcore.reproducible.companded import ERRORS, WEIGHT_ERROR, WEIGHT_WITH_ERROR, check_master_bits
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import Key
from qtorch.optim.adam import AdamW8bit
from qtorch.reproducible.functions import FUNCTIONS

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class FlashAdamW(AdamW8bit):
    """AdamW with FlashOptim's companded moments and split weights (arXiv 2602.23349).

    All moments are codes of 8 bits in blocks of 32, with a float16 scale for each block: "softsign" and "root" of
    `qtorch.reproducible.StateCodes`. The state of a bfloat16 or float16 parameter also has an error code, `remainder`:
    a step reads the sum of both, a number of 24 or nearly 32 bits.

    Args:
        params: parameters of float32, bfloat16 or float16, or groups of them.
        lr: the learning rate, at least 0; a number or a tensor of one.
        betas: the moments' factors, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: times the rate the part of a parameter that it loses, at least 0.
        master_weight_bits: the bits of a 16-bit parameter and its error code: 24, or 32; None is without error codes.
        bf16_stochastic_round, key: as for `AdamW8bit`; only with `master_weight_bits=None`.

    Raises:
        TypeError, ValueError: if an argument is out of range, or a parameter has another dtype.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        >>> optimizer = FlashAdamW([p], lr=1e-4, weight_decay=0.0)
        >>> p.grad = torch.ones(3, dtype=torch.bfloat16)
        >>> optimizer.step()
        >>> p[0].item(), optimizer.state[p]["remainder"].tolist()  # of 2^-9, half a step above 1
        (1.0, [-3, -3, -3])
    """

    storage = "Flash"
    order = "flashoptim"

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        master_weight_bits: int | None = 24,
        bf16_stochastic_round: bool = False,
        key: Key = None,
    ) -> None:
        check_master_bits(master_weight_bits, bf16_stochastic_round)
        self.master_weight_bits = master_weight_bits
        super().__init__(
            params, lr, betas, eps, weight_decay, block_size=32, bf16_stochastic_round=bf16_stochastic_round, key=key
        )

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"master_weight_bits": self.master_weight_bits}

    def _remainder_dtype(self, p: torch.Tensor) -> torch.dtype | None:
        if self.master_weight_bits is None or p.dtype is torch.float32:
            return None
        return getattr(torch, ERRORS[self.master_weight_bits])

    def _names_of(self, p: torch.Tensor) -> dict[str, str]:
        """The names of a parameter's dtype and its errors'."""
        return {"dtype": str(p.dtype)[len("torch.") :], "kept": ERRORS[self.master_weight_bits or 24]}

    def _joined(self, p: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS.call(WEIGHT_WITH_ERROR, p.float(), remainder, **self._names_of(p))

    def _split(self, weight: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        names = self._names_of(p)
        high = quantize(weight, names["dtype"], overflow="inf")
        return high, FUNCTIONS.call(WEIGHT_ERROR, weight, high, **names)
