"""Adam and AdamW whose moments are codes of 8 or 4 bits, with torchao's names, arguments and order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from qcore.arguments import check_flag, check_float, check_int, check_type, quoted
from qcore.random.threefry import fold_words
from qcore.reproducible.optimizers import adam_options
from qcore.reproducible.state_codes import StateCodes, adam_codes
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import Key, draw, key_tensor
from qtorch.reproducible.functions import FUNCTIONS

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

Loss = TypeVar("Loss")  # what a closure returns
_STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_SCALE = "_scale"  # is appended to a state's name
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WEIGHT = 2  # the role of weights in keys, as in `OptimLP`
_RANDOM_BITS = 16  # as many as a bfloat16 number has fewer than a float32 number


class AdamInCodes(torch.optim.Optimizer):
    """The base of the optimizers of this file; `storage` is a key of `ADAM_KINDS`."""

    storage: str
    decoupled: bool

    def __init__(
        self, params: Any, options: dict[str, Any], block_size: int, bf16_stochastic_round: bool, key: Key
    ) -> None:
        check_flag("amsgrad", options["amsgrad"])
        check_flag("bf16_stochastic_round", bf16_stochastic_round)
        self.block_size = check_int("block_size", block_size, 1)
        adam_codes(self.storage, block_size, 0, False)  # raises for a block of the wrong size
        self.bf16_stochastic_round = bf16_stochastic_round
        self.key = None if key is None else key_tensor(key)
        _check_group(options)
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
            for p in self.param_groups[-1]["params"]:
                if p.dtype not in _DTYPES:
                    raise TypeError(f"params has a tensor of {p.dtype}; allowed are {', '.join(map(str, _DTYPES))}")
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("block_size", "bf16_stochastic_round", "key")}
        return super().__getstate__() | kept

    def __repr__(self) -> str:
        shapes = [(p.numel(), self.codes(p)[0] is not None) for p in self._parameters()]
        coded, whole = [size for size, is_coded in shapes if is_coded], sum(size for size, _ in shapes)
        rest = ", ".join(str(number) for number, (_, is_coded) in enumerate(shapes) if not is_coded)
        said = f"{len(coded)} of {len(shapes)} parameters, {sum(coded)} of {whole} numbers"
        floats = f"; floats are the states of parameters {rest}" if rest else ""
        return f"{super().__repr__()}\nStates in codes ({self.storage}, blocks of {self.block_size}): {said}{floats}"

    def codes(self, p: torch.Tensor) -> tuple[StateCodes | None, ...]:
        """How the states of a parameter are stored; None for states that are floats of its dtype."""
        amsgrad = any(group["amsgrad"] for group in self.param_groups if any(one is p for one in group["params"]))
        return adam_codes(self.storage, self.block_size, p.numel(), amsgrad)

    def _parameters(self) -> Iterator[torch.Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    @torch.compiler.disable
    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """A step for all parameters that have a gradient. Programs for `torch.compile` call it as eager programs do."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        drawn = draw() if self.bf16_stochastic_round and self.key is None else None
        number = 0
        for group in self.param_groups:
            rate = torch.as_tensor(group["lr"], dtype=torch.float32).squeeze()
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, rate, group, number, drawn)
                number += 1
        return loss

    def _update(
        self,
        p: torch.Tensor,
        gradient: torch.Tensor,
        rate: torch.Tensor,
        group: dict[str, Any],
        number: int,
        drawn: torch.Tensor | None,
    ) -> None:
        state: dict[str, Any] = self.state[p]
        codes = adam_codes(self.storage, self.block_size, p.numel(), group["amsgrad"])
        if not state:
            self._begin(state, p, codes)
        state["step"] += 1
        names = _STATES[: len(codes)]
        given = [
            state[name].float() if one is None else (state[name], state[name + _SCALE])
            for name, one in zip(names, codes, strict=True)
        ]
        options = {name: group[name] for name in ("betas", "eps", "weight_decay")}
        count, rate = (x.to(p.device) for x in (state["step"], rate))
        weight, found = FUNCTIONS.adam_step_with_codes(
            p.detach().float(), gradient.float(), tuple(given), count, rate, codes, decoupled=self.decoupled, **options
        )
        for name, one, new in zip(names, codes, found, strict=True):
            if one is None:
                state[name].copy_(new)
            else:
                state[name].copy_(new[0])
                state[name + _SCALE].copy_(new[1])
        if self.bf16_stochastic_round and p.dtype is torch.bfloat16:
            weight = quantize(
                weight,
                "bfloat16",
                "stochastic",
                key=self._key(drawn, int(state["step"]) - 1, number),
                random_bits=_RANDOM_BITS,
                overflow="inf",
            )
        p.copy_(weight)

    def _key(self, drawn: torch.Tensor | None, step: int, number: int) -> tuple[int, int]:
        """The key of a parameter's weight at a step; `drawn` is the key of the step, where the user gave none."""
        key = _words(drawn) if self.key is None else fold_words(*_words(self.key), step)
        return fold_words(*fold_words(*key, _WEIGHT), number)

    def _begin(self, state: dict[str, Any], p: torch.Tensor, codes: tuple[StateCodes | None, ...]) -> None:
        """The state before the first step: all codes and scales are 0, as in torchao; so codes stand for zeros."""
        state["step"] = torch.zeros((), device="cpu")
        for name, one in zip(_STATES, codes, strict=False):
            if one is None:
                state[name] = torch.zeros_like(p)
            else:
                size, blocks = one.counts(p.numel())
                shape = p.shape if one.bits == 8 else (size,)
                state[name] = torch.zeros(shape, dtype=torch.uint8, device=p.device)
                state[name + _SCALE] = torch.zeros(blocks, device=p.device)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` of an optimizer of this class, of torchao's of the same name, or of torch's Adam.

        Float32 states become codes where this optimizer has codes.

        Args:
            state_dict: "state" by the numbers of parameters, and "param_groups" for the same number of parameters.

        Raises:
            TypeError, ValueError: if an entry does not belong to such an optimizer; nothing is loaded then.
        """
        check_type("state_dict", state_dict, dict, "a dict")
        for name, kind in (("state", dict), ("param_groups", list)):
            check_type(f"state_dict['{name}']", state_dict.get(name), kind, f"a {kind.__name__}")
        numbers = [*chain.from_iterable(group["params"] for group in state_dict["param_groups"])]
        amsgrad = [
            *chain.from_iterable([group["amsgrad"]] * len(group["params"]) for group in state_dict["param_groups"])
        ]
        parameters = [*self._parameters()]
        if len(numbers) != len(parameters):
            raise ValueError(f"state_dict has {len(numbers)} parameters; allowed are {len(parameters)}")
        states = {}
        for number, p, has_largest in zip(numbers, parameters, amsgrad, strict=True):
            if number in state_dict["state"]:
                where = f"state_dict['state'][{quoted(number)}]"
                codes = adam_codes(self.storage, self.block_size, p.numel(), has_largest)
                states[number] = _converted(where, state_dict["state"][number], p, codes)
        super().load_state_dict(state_dict | {"state": states})
        # torch's function casts what it loads to the parameter's dtype.
        for number, p in zip(numbers, parameters, strict=True):
            for name, x in states.get(number, {}).items():
                if name != "step":
                    self.state[p][name] = x.to(p.device, copy=True)


def _words(key: torch.Tensor | None) -> tuple[int, int]:
    high, low = [] if key is None else key.tolist()
    return high & 0xFFFFFFFF, low & 0xFFFFFFFF


def _check_group(group: dict[str, Any]) -> None:
    rate = group["lr"]
    if isinstance(rate, torch.Tensor) and rate.numel() != 1:
        raise ValueError(f"lr has shape {tuple(rate.shape)}; allowed is one number")
    check_float("lr", rate)
    adam_options(group["betas"], group["eps"], group["weight_decay"])


def _converted(where: str, state: Any, p: torch.Tensor, codes: Iterable[StateCodes | None]) -> dict[str, Any]:
    """The state of a parameter with this optimizer's names: codes and scales, or floats."""
    check_type(where, state, dict, "a dict")
    found: dict[str, Any] = {"step": torch.as_tensor(state["step"], dtype=torch.float32, device="cpu").clone()}
    for name, one in zip(_STATES, codes, strict=False):
        given, scale = state.get(name), state.get(name + _SCALE)
        check_type(f"{where}['{name}']", given, torch.Tensor, "a torch.Tensor")
        if hasattr(given, "codes") and hasattr(given, "scale"):  # torchao's
            given, scale = given.codes.view(torch.uint8), given.scale
        if one is None:
            if scale is not None or given.shape != p.shape:
                raise ValueError(f"{where}['{name}'] is no tensor of shape {tuple(p.shape)}; allowed is one of floats")
            found[name] = given.to(p.dtype)
            continue
        if scale is None:
            if given.shape != p.shape:
                raise ValueError(f"{where}['{name}'] has shape {tuple(given.shape)}; allowed is {tuple(p.shape)}")
            given, scale = FUNCTIONS.encode_state(given.float(), one)
        size, blocks = one.counts(p.numel())
        shape = tuple(p.shape) if one.bits == 8 else (size,)
        if given.dtype is not torch.uint8 or tuple(given.shape) != shape or tuple(scale.shape) != (blocks,):
            raise ValueError(
                f"{where}['{name}'] has {given.dtype} of shape {tuple(given.shape)} and {scale.numel()} scales; "
                f"allowed are torch.uint8 of shape {shape} and {blocks} scales"
            )
        found[name], found[name + _SCALE] = given, scale.float()
    return found


class Adam8bit(AdamInCodes):
    """Adam whose moments are codes of 8 bits, with the names, arguments and order of `torchao.optim.Adam8bit`.

    The moments of a parameter with at least 4,096 numbers, whose count `block_size` divides, are codes with a float32
    scale for each block, see `qtorch.reproducible.StateCodes`; `state` has `exp_avg` and `exp_avg_sq` as uint8 tensors,
    and beside them `exp_avg_scale` and `exp_avg_sq_scale`. Those of other parameters are floats of the parameter's
    dtype, as in torchao. A step is `qtorch.reproducible.adam_step_with_codes`; results for 16-bit parameters are
    rounded to nearest. The optimizer's text says which parameters have codes.

    Args:
        params: parameters of float32, bfloat16 or float16, or groups of them.
        lr: the learning rate, at least 0; a number or a tensor of one.
        betas: the moments' factors, at least 0 and below 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: times the parameter is added to its gradient, at least 0.
        amsgrad: True to divide by the root of the largest second moment so far, a third state.
        block_size: the count of neighbouring numbers of a parameter that share a scale.
        bf16_stochastic_round: True to round bfloat16 parameters stochastically, with 16 random bits.
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
        key: Key = None,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, options, block_size, bf16_stochastic_round, key)


class AdamW8bit(Adam8bit):
    """`Adam8bit` whose weight decay is decoupled: the parameter loses lr * weight_decay times itself.

    Args:
        params, lr, betas, eps, amsgrad, block_size, bf16_stochastic_round, key: as for `Adam8bit`.
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
            key=key,
        )


class Adam4bit(Adam8bit):
    """`Adam8bit` with codes of 4 bits, two a byte, in blocks of 128: `torchao.optim.Adam4bit`.

    Codes are uint8 tensors of one dimension, with half as many bytes as the parameter has numbers. No code of the
    second moment stands for 0.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `Adam8bit`.

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
            key=key,
        )


class AdamW4bit(AdamW8bit):
    """`AdamW8bit` with codes of 4 bits, two a byte, in blocks of 128: `torchao.optim.AdamW4bit`.

    Codes are uint8 tensors of one dimension, with half as many bytes as the parameter has numbers. No code of the
    second moment stands for 0.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `AdamW8bit`.

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
            key=key,
        )


class AdamFp8(Adam8bit):
    """`Adam8bit` whose codes are numbers of e4m3fn, for both moments: `torchao.optim.AdamFp8`.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `Adam8bit`.

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
        params, lr, betas, eps, weight_decay, amsgrad, block_size, bf16_stochastic_round, key: as for `AdamW8bit`.

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
