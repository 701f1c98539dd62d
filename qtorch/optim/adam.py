"""Adam and AdamW whose moments are codes of 8 or 4 bits, with torchao's names, arguments and order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from qcore.arguments import check_flag
from qcore.reproducible.optimizers import adam_options
from qcore.reproducible.state_codes import StateCodes, adam_codes
from qtorch._rounding.keys import Key
from qtorch.optim.coded import REMAINDER, CodedOptimizer, Codes, State, rate_of
from qtorch.optim.kernel import AdamStep
from qtorch.optim.layouts import SCALE
from qtorch.optim.shards import equal_parts
from qtorch.reproducible.functions import FUNCTIONS

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


_MOST = 1 << 16  # numbers that are updated at a time


class _Adam(CodedOptimizer):
    """The base of the optimizers of this file; `storage` is a key of `ADAM_KINDS`."""

    states = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    decoupled: bool
    order = "torchao"  # whose order a step has

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        group |= adam_options(group["betas"], group["eps"], group["weight_decay"])  # numbers, of tensors too
        check_flag("amsgrad", group["amsgrad"])
        adam_codes(self.storage, self.block_size, 0, False)  # raises for a block of the wrong size

    def _codes_of(self, p: torch.Tensor, group: dict[str, Any]) -> Codes:
        return adam_codes(self.storage, self.block_size, equal_parts(p), group["amsgrad"])

    def _moved_in_place(
        self,
        p: torch.Tensor,
        gradient: torch.Tensor,
        state: State,
        group: dict[str, Any],
        codes: Codes,
        key: tuple[int, int] | None,
    ) -> bool:
        kept = self._remainder_dtype(p)
        states = [
            state[name] if one is None else (state[name], state[name + SCALE], one)
            for name, one in zip(self.states, codes, strict=False)
        ]
        rounding = "nearest" if key is None else "stochastic"
        if kept is not None:
            rounding = "remainder" if self.order == "torchao" else str(kept)[len("torch.") :]
        numbers = group["betas"], group["eps"], group["weight_decay"], float(group["lr"]), float(state["step"])
        step = AdamStep(*numbers, self.decoupled, self.order, rounding, key)
        return step.run(p, gradient, states, None if kept is None else state[REMAINDER])

    def _moved(
        self,
        p: torch.Tensor,
        gradient: torch.Tensor,
        states: Any,
        count: torch.Tensor,
        group: dict[str, Any],
        codes: Codes,
    ) -> tuple[torch.Tensor, Any]:
        options: dict[str, Any] = {name: group[name] for name in ("betas", "eps", "weight_decay")}
        options |= {"decoupled": self.decoupled, "order": self.order}
        rate = rate_of(group, p)
        if codes[0] is None or p.numel() <= _MOST:
            return FUNCTIONS.adam_step_with_codes(p, gradient, states, count, rate, codes, **options)
        # Blocks do not depend on each other, and a step of so many numbers at a time needs little memory.
        flat, slope, found = p.reshape(-1), gradient.reshape(-1), []
        for begin in range(0, flat.numel(), size := max(_MOST // self.block_size, 1) * self.block_size):
            part = slice(begin, begin + size)
            own = tuple([_part(state, part, one) for state, one in zip(states, codes, strict=True) if one is not None])
            found.append(FUNCTIONS.adam_step_with_codes(flat[part], slope[part], own, count, rate, codes, **options))
        weights, parts = zip(*found, strict=True)
        joined = [tuple(map(torch.cat, zip(*each, strict=True))) for each in zip(*parts, strict=True)]
        kept = [(new.view_as(state[0]), scale) for (new, scale), state in zip(joined, states, strict=True)]
        return torch.cat(weights).view_as(p), tuple(kept)


def _part(
    state: tuple[torch.Tensor, torch.Tensor], part: slice, codes: StateCodes
) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes and scales of a part of a parameter's numbers."""
    given, scale = state
    bytes_, blocks = ([codes.counts(place)[i] for place in (part.start, part.stop)] for i in range(2))
    return given.reshape(-1)[slice(*bytes_)], scale[slice(*blocks)]


class Adam8bit(_Adam):
    """Adam whose moments are codes of 8 bits, with the names, arguments and order of `torchao.optim.Adam8bit`.

    The moments of a parameter with at least 4,096 numbers, whose count `block_size` divides, are codes with a float32
    scale for each block, see `qtorch.reproducible.StateCodes`; `state` has `exp_avg` and `exp_avg_sq` as uint8 tensors,
    and beside them `exp_avg_scale` and `exp_avg_sq_scale`. Those of other parameters are floats of the parameter's
    dtype, as in torchao. A step is `qtorch.reproducible.adam_step_with_codes`; results for 16-bit parameters are
    rounded to nearest. The optimizer's text says which parameters have codes.

    Of a DTensor, as FSDP2 makes them, each process steps its shard, in blocks of the shard as in torchao; the shard's
    numbers decide whether states have codes, and shards of several sizes have floats.

    Args:
        params: parameters of float32, bfloat16 or float16, or groups of them.
        lr: the learning rate, at least 0; a number or a tensor of one.
        betas: the moments' factors, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: times the parameter is added to its gradient, at least 0.
        amsgrad: True to divide by the root of the largest second moment so far, a third state.
        block_size: the count of neighbouring numbers of a parameter that share a scale.
        bf16_stochastic_round: True to round bfloat16 parameters stochastically, with 16 random bits.
        store_param_remainders: True to keep the other 16 bits of bfloat16 parameters in the state, as int16 tensors: a
            step reads and writes float32 numbers, of which the parameters are roundings.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, two 32-bit words, or an integer tensor of two words,
            used as by `OptimLP` for weights. None draws a key from torch's default generator, once a step.

    Raises:
        TypeError, ValueError: if an argument is out of range, or a parameter has another dtype.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(4096))
        >>> optimizer = Adam8bit([p], lr=0.5)
        >>> p.grad = torch.ones(4096)
        >>> optimizer.step()
        >>> round(p[0].item(), 3), optimizer.state[p]["exp_avg"].dtype
        (0.5, torch.uint8)
    """

    storage = "8bit"
    decoupled = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        block_size: int = 256,
        bf16_stochastic_round: bool = False,
        store_param_remainders: bool = False,
        key: Key = None,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, options, block_size, bf16_stochastic_round, store_param_remainders, key)


class AdamW8bit(Adam8bit):
    """`Adam8bit` whose weight decay is decoupled: the parameter loses lr * weight_decay times itself.

    Args:
        params, lr, betas, eps, amsgrad, block_size: as for `Adam8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `Adam8bit`.
        weight_decay: at least 0; 0.01 by default.

    Raises:
        TypeError, ValueError: as for `Adam8bit`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(4096))
        >>> optimizer = AdamW8bit([p], lr=0.25, weight_decay=1.0)
        >>> p.grad = torch.ones(4096)
        >>> optimizer.step()
        >>> round(p[0].item(), 3)  # 1 - 0.25, then a step of 0.25
        0.5
    """

    decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        block_size: int = 256,
        bf16_stochastic_round: bool = False,
        store_param_remainders: bool = False,
        key: Key = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            block_size=block_size,
            bf16_stochastic_round=bf16_stochastic_round,
            store_param_remainders=store_param_remainders,
            key=key,
        )


class Adam4bit(Adam8bit):
    """`Adam8bit` with codes of 4 bits, two a byte, in blocks of 128: `torchao.optim.Adam4bit`.

    Codes are uint8 tensors of one dimension, with half as many bytes as the parameter has numbers. No code of the
    second moment stands for 0.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, block_size: as for `Adam8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `Adam8bit`.

    Raises:
        TypeError, ValueError: as for `Adam8bit`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(4096))
        >>> optimizer = Adam4bit([p])
        >>> p.grad = torch.ones(4096)
        >>> optimizer.step()
        >>> optimizer.state[p]["exp_avg"].shape
        torch.Size([2048])
    """

    storage = "4bit"

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        block_size: int = 128,
        bf16_stochastic_round: bool = False,
        store_param_remainders: bool = False,
        key: Key = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            block_size=block_size,
            bf16_stochastic_round=bf16_stochastic_round,
            store_param_remainders=store_param_remainders,
            key=key,
        )


class AdamW4bit(AdamW8bit):
    """`AdamW8bit` with codes of 4 bits, two a byte, in blocks of 128: `torchao.optim.AdamW4bit`.

    Codes are uint8 tensors of one dimension, with half as many bytes as the parameter has numbers. No code of the
    second moment stands for 0.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, block_size: as for `AdamW8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `AdamW8bit`.

    Raises:
        TypeError, ValueError: as for `AdamW8bit`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(4096))
        >>> optimizer = AdamW4bit([p])
        >>> p.grad = torch.ones(4096)
        >>> optimizer.step()
        >>> optimizer.state[p]["exp_avg"].shape
        torch.Size([2048])
    """

    storage = "4bit"

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        block_size: int = 128,
        bf16_stochastic_round: bool = False,
        store_param_remainders: bool = False,
        key: Key = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            block_size=block_size,
            bf16_stochastic_round=bf16_stochastic_round,
            store_param_remainders=store_param_remainders,
            key=key,
        )


class AdamFp8(Adam8bit):
    """`Adam8bit` whose codes are numbers of e4m3fn, for both moments: `torchao.optim.AdamFp8`.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, block_size: as for `Adam8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `Adam8bit`.

    Raises:
        TypeError, ValueError: as for `Adam8bit`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(4096))
        >>> optimizer = AdamFp8([p])
        >>> p.grad = torch.ones(4096)
        >>> optimizer.step()
        >>> optimizer.state[p]["exp_avg"][0].item()  # 0x7e, the code of 448
        126
    """

    storage = "Fp8"


class AdamWFp8(AdamW8bit):
    """`AdamW8bit` whose codes are numbers of e4m3fn, for both moments: `torchao.optim.AdamWFp8`.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, block_size: as for `AdamW8bit`.
        bf16_stochastic_round, store_param_remainders, key: as for `AdamW8bit`.

    Raises:
        TypeError, ValueError: as for `AdamW8bit`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(4096))
        >>> optimizer = AdamWFp8([p])
        >>> p.grad = torch.ones(4096)
        >>> optimizer.step()
        >>> optimizer.state[p]["exp_avg"][0].item()  # 0x7e, the code of 448
        126
    """

    storage = "Fp8"
