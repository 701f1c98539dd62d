"""Muon with Newton-Schulz iterations in any format, and with momentum in codes of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from qcore import Number
from qcore.linalg import Accumulator
from qcore.reproducible.muon import iterations, rate_scale
from qcore.reproducible.state_codes import LEAST_SIZE, StateCodes
from qtorch._rounding.keys import Key
from qtorch._rounding.sharded import is_sharded
from qtorch.optim.coded import FLOATS, CodedOptimizer, Codes, rate_of
from qtorch.reproducible.functions import FUNCTIONS

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

Format = Number | str | None


class Muon(CodedOptimizer):
    """Muon in the order of `torch.optim.Muon`, by `qtorch.reproducible.muon_step`; only for matrices.

    With the arguments of `torch.optim.Muon` alone, the matrices of the iterations are bfloat16 and products have exact
    sums, rounded once: bits that torch's products have as long as their sums round to the same numbers.

    Args:
        params: parameters of two dimensions, of float32, bfloat16 or float16, or groups of them.
        lr: the learning rate, at least 0; a number or a tensor of one.
        weight_decay: the factor of the weight's decay, at least 0.
        momentum: the momentum's factor, at least 0 and below 1.
        nesterov: True for Nesterov's momentum.
        ns_coefficients: three numbers, or the name of a set, see `qtorch.reproducible.orthogonalize`.
        eps: the least norm that a matrix is divided by.
        ns_steps: the number of iterations; None is that of the coefficients, 5 for three numbers.
        adjust_lr_fn: how the rate follows from the shape: "original", which is None too, or "match_rms_adamw".
        storage: the format of the iterations' matrices; None is float32.
        operands: the format of the operands of all products, None for their own; block formats lie along sums.
        accumulator: how products are summed, as for `qtorch.linalg.matmul`: a name such as "hopper.wgmma.bf16", or an
            `Accumulator`.
        bf16_stochastic_round, store_param_remainders, key: as for `Adam8bit`.

    Raises:
        TypeError, ValueError: if an argument is out of range, or a parameter has another dtype or shape.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(2, 2))
        >>> optimizer = Muon([p], lr=0.5, ns_coefficients="deepseek_v4", operands="e4m3fn")
        >>> p.grad = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
        >>> optimizer.step()
        >>> p.data
        tensor([[ 0.0000, -0.5000],
                [-0.5000,  0.0000]])
    """

    states = ("momentum_buffer",)
    storage = FLOATS

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: str | tuple[float, float, float] = "simple",
        eps: float = 1e-7,
        ns_steps: int | None = None,
        adjust_lr_fn: str | None = None,
        *,
        storage: Format = "bfloat16",
        operands: Format = None,
        accumulator: Accumulator | str | None = None,
        bf16_stochastic_round: bool = False,
        store_param_remainders: bool = False,
        key: Key = None,
    ) -> None:
        options = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "ns_storage": storage,
            "operands": operands,
            "accumulator": accumulator,
        }
        super().__init__(params, options, self._block, bf16_stochastic_round, store_param_remainders, key)

    _block = 1

    def __repr__(self) -> str:
        return torch.optim.Optimizer.__repr__(self) if self.storage == FLOATS else super().__repr__()

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        iterations(group["ns_coefficients"], group["ns_steps"])
        rate_scale(group["adjust_lr_fn"], 1, 1)
        # Everything else is checked by a step of one number.
        one = torch.zeros(1, 1)
        self._step(one, one, one, one[0, 0], group | {"lr": 0.0}, None)

    def _check_parameter(self, p: torch.Tensor) -> None:
        super()._check_parameter(p)
        if is_sharded(p):
            raise TypeError("params has a DTensor; allowed are whole matrices, which Newton-Schulz iterations multiply")
        if p.ndim != 2:
            raise ValueError(f"params has a tensor of shape {tuple(p.shape)}; allowed are two dimensions")

    def _codes_of(self, p: torch.Tensor, group: dict[str, Any]) -> Codes:
        return (None,)

    def _moved(
        self,
        p: torch.Tensor,
        gradient: torch.Tensor,
        states: Any,
        count: torch.Tensor,
        group: dict[str, Any],
        codes: Codes,
    ) -> tuple[torch.Tensor, Any]:
        weight, state = self._step(p, gradient, states[0], rate_of(group, p), group, codes[0])
        return weight, (state,)

    def _step(
        self, p: torch.Tensor, gradient: torch.Tensor, state: Any, rate: torch.Tensor, group: dict[str, Any], codes: Any
    ) -> tuple[torch.Tensor, Any]:
        pair = None if group["operands"] is None else (group["operands"],) * 2
        return FUNCTIONS.muon_step(
            p,
            gradient,
            state,
            rate,
            group["momentum"],
            group["nesterov"],
            group["weight_decay"],
            group["adjust_lr_fn"],
            codes,
            coefficients=group["ns_coefficients"],
            steps=group["ns_steps"],
            eps=group["eps"],
            storage=group["ns_storage"],
            operands=pair,
            accumulator=group["accumulator"],
        )


class Muon8bit(Muon):
    """`Muon` whose momentum is codes of 8 bits, in blocks of 256.

    As for `Adam8bit`, matrices with at least 4,096 numbers, whose count 256 divides, have codes, of the map "dynamic".

    Args:
        params, lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as for `Muon`.
        storage, operands, accumulator, bf16_stochastic_round, store_param_remainders, key: as for `Muon`.

    Raises:
        TypeError, ValueError: as for `Muon`.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(64, 64))
        >>> optimizer = Muon8bit([p])
        >>> p.grad = torch.eye(64)
        >>> optimizer.step()
        >>> optimizer.state[p]["momentum_buffer"].dtype
        torch.uint8
    """

    storage = "8bit"
    _block = 256

    def _codes_of(self, p: torch.Tensor, group: dict[str, Any]) -> Codes:
        coded = p.numel() >= LEAST_SIZE and p.numel() % self._block == 0
        return (StateCodes("dynamic", self._block) if coded else None,)
