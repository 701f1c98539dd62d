"""The base of optimizers whose states are codes: state dicts, keys of stochastic rounding, what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import torch

from qcore.arguments import check_choice, check_flag, check_float, check_int, check_type, quoted
from qcore.random.threefry import fold_words
from qcore.reproducible.state_codes import FLOAT8, StateCodes, join_weight, split_weight
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.keys import Key, draw, key_tensor
from qtorch._rounding.sharded import is_sharded
from qtorch.optim.kernel import RANDOM_BITS
from qtorch.optim.layouts import LAYOUTS, SCALE, from_bitsandbytes, to_bitsandbytes, to_torchao
from qtorch.optim.shards import as_parts, check_placements, own_part
from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.operations import Names
from qtorch.reproducible.optimizers import listed_parameters

Loss = TypeVar("Loss")  # what a closure returns
Codes = tuple[StateCodes | None, ...]  # how the states of a parameter are stored; None for floats of its dtype
State = dict[str, Any]  # of a parameter
REMAINDER = "remainder"  # of bfloat16 weights
FLOATS = "none"  # the storage of optimizers without codes, whose states become codes when they are loaded
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WEIGHT = 2  # the role of weights in keys, as in `OptimLP`


class CodedOptimizer(torch.optim.Optimizer):
    """An optimizer whose states may be codes, with a scale for each block, beside them under a name of its own.

    A class has the names of its states, the storage's name, and the three functions below.
    """

    states: tuple[str, ...]
    storage: str
    _own_options: tuple[str, ...] = ("block_size", "bf16_stochastic_round", "store_param_remainders", "key")

    def __init__(
        self,
        params: Any,
        options: dict[str, Any],
        block_size: int,
        bf16_stochastic_round: bool,
        store_param_remainders: bool,
        key: Key,
    ) -> None:
        check_flag("bf16_stochastic_round", bf16_stochastic_round)
        check_flag("store_param_remainders", store_param_remainders)
        if store_param_remainders and bf16_stochastic_round:
            raise ValueError(
                "store_param_remainders=True with bf16_stochastic_round=True; allowed is one: remainders keep all bits"
            )
        self.store_param_remainders = store_param_remainders
        self.block_size = check_int("block_size", block_size, 1)
        self.bf16_stochastic_round = bf16_stochastic_round
        self.key = None if key is None else key_tensor(key)
        self._check_group(options)
        # A group says what its codes are: those of 8 bits and of FP8 have the same shapes.
        super().__init__(listed_parameters(params), options | {"storage": self.storage})

    def _codes_of(self, p: torch.Tensor, group: dict[str, Any]) -> Codes:
        """How the states of a parameter are stored; None for states that are floats of its dtype."""
        raise NotImplementedError

    def _moved(
        self,
        p: torch.Tensor,
        gradient: torch.Tensor,
        states: Any,
        count: torch.Tensor,
        group: dict[str, Any],
        codes: Codes,
    ) -> tuple[torch.Tensor, Any]:
        """The parameter and its states after a step."""
        raise NotImplementedError

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raises an error that names an option of a group if it is out of range."""
        rate = group["lr"]
        if isinstance(rate, torch.Tensor):
            check_dense("lr", rate)
            if rate.numel() != 1:
                raise ValueError(f"lr has shape {tuple(rate.shape)}; allowed is one number")
        check_float("lr", rate)
        # Options of torch's groups that change numbers; `foreach`, `fused` and `capturable` only say how to get them.
        for name in ("maximize", "differentiable"):
            if group.get(name):
                raise ValueError(f"{name}={quoted(group[name])}; allowed is False: these optimizers have no {name}")
        for name in self._own_options:
            if name in group:
                raise ValueError(f"{name}={quoted(group[name])} in a group; allowed is it as the optimizer's argument")
        if group.get("storage", FLOATS) not in (FLOATS, self.storage):
            raise ValueError(f"storage={quoted(group['storage'])}, of another class; allowed is {quoted(self.storage)}")

    def _check_parameter(self, p: torch.Tensor) -> None:
        check_dense("params", p)
        if p.dtype not in _DTYPES:
            raise TypeError(f"params has a tensor of {p.dtype}; allowed are {', '.join(map(str, _DTYPES))}")
        check_placements(p)
        if is_sharded(p) and self.bf16_stochastic_round and self.key is None:
            raise ValueError("key=None with bf16_stochastic_round=True and a DTensor; allowed is one key for all")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
            for p in self.param_groups[-1]["params"]:
                self._check_parameter(p)
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {name: getattr(self, name) for name in self._own_options}

    def __repr__(self) -> str:
        shapes = [(p.numel(), self._codes_of(p, group)[0] is not None) for group, p in self._parameters()]
        coded, whole = [size for size, is_coded in shapes if is_coded], sum(size for size, _ in shapes)
        rest = ", ".join(str(number) for number, (_, is_coded) in enumerate(shapes) if not is_coded)
        said = f"{len(coded)} of {len(shapes)} parameters, {sum(coded)} of {whole} numbers"
        floats = f"; floats are the states of parameters {rest}" if rest else ""
        return f"{super().__repr__()}\nStates in codes ({self.storage}, blocks of {self.block_size}): {said}{floats}"

    def _parameters(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        return ((group, p) for group in self.param_groups for p in group["params"])

    @torch.compiler.disable
    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """A step for all parameters that have a gradient. Programs for `torch.compile` call it as eager programs do."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        drawn = draw() if self.bf16_stochastic_round and self.key is None else None
        for number, (group, p) in enumerate(self._parameters()):
            if p.grad is not None:
                state: dict[str, Any] = self.state[p]
                if not state:
                    self._begin(state, p, self._codes_of(p, group))
                self._check_state(state, p, group, number)
                state["step"] += 1
                stochastic = self.bf16_stochastic_round and p.dtype is torch.bfloat16
                key = self._key(drawn, int(state["step"]) - 1, number) if stochastic else None
                self._move(p, p.grad, {name: own_part(x) for name, x in state.items()}, group, key)
        return loss

    def _check_state(self, state: State, p: torch.Tensor, group: dict[str, Any], number: int) -> None:
        """Raises if a parameter or its group was changed since the last step, so that the state no longer fits."""
        if p.dtype not in _DTYPES:
            raise TypeError(f"parameter {number} became {p.dtype}; allowed are {', '.join(map(str, _DTYPES))}")
        rest = [] if self._remainder_dtype(p) is None else [REMAINDER]
        missing = [name for name in (*self.states[: len(self._codes_of(p, group))], *rest) if name not in state]
        if missing:
            raise ValueError(
                f"parameter {number} has a state without {missing[0]}: its dtype or group was changed after a step; "
                "allowed is another optimizer"
            )

    def _move(
        self, p: torch.Tensor, gradient: Any, state: State, group: dict[str, Any], key: tuple[int, int] | None
    ) -> None:
        """Steps what this process has of a parameter and of its state; `key` is that of stochastic rounding."""
        part, slope, codes = own_part(p.detach()), own_part(gradient, p), self._codes_of(p, group)
        # Random words follow the index in the whole parameter, which kernels do not know.
        if (key is None or part.shape == p.shape) and self._moved_in_place(part, slope, state, group, codes, key):
            return
        weight = self._update(part, slope, state, group, codes)
        if key is not None:
            options: dict[str, Any] = {"key": key, "random_bits": RANDOM_BITS, "overflow": "inf"}
            weight = own_part(quantize(as_parts(weight, p), "bfloat16", "stochastic", **options))
        self._write(part, state, weight)

    def _moved_in_place(
        self,
        p: torch.Tensor,
        gradient: torch.Tensor,
        state: State,
        group: dict[str, Any],
        codes: Codes,
        key: tuple[int, int] | None,
    ) -> bool:
        """True if a kernel wrote the parameter and its states after a step."""
        return False

    def _remainder_dtype(self, p: torch.Tensor) -> torch.dtype | None:
        """The dtype of what the state has of a 16-bit parameter's further bits; None if it has nothing."""
        return torch.int16 if self.store_param_remainders and p.dtype is torch.bfloat16 else None

    def _joined(self, p: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
        """The float32 numbers that a parameter and its remainder stand for."""
        return join_weight(Names, p.view(torch.int16), remainder).view(torch.float32)

    def _split(self, weight: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A parameter and its remainder, of float32 numbers."""
        high, low = split_weight(Names, weight.contiguous().view(torch.int32))
        return high.view(torch.bfloat16), low

    def _master(self, p: torch.Tensor, state: State) -> torch.Tensor:
        """The parameter as the float32 numbers that a step reads."""
        return p.float() if self._remainder_dtype(p) is None else self._joined(p, state[REMAINDER])

    def _write(self, p: torch.Tensor, state: State, weight: torch.Tensor) -> None:
        if self._remainder_dtype(p) is None:
            p.copy_(weight)
            return
        high, low = self._split(weight, p)
        p.copy_(high)
        state[REMAINDER].copy_(low)

    def _update(
        self, p: torch.Tensor, gradient: torch.Tensor, state: State, group: dict[str, Any], codes: Codes
    ) -> torch.Tensor:
        """Writes the states of a parameter after a step; the parameter then, as float32."""
        names = self.states[: len(codes)]
        given = [
            state[name].float() if one is None else (state[name], state[name + SCALE])
            for name, one in zip(names, codes, strict=True)
        ]
        count = state["step"].to(p.device)
        weight, found = self._moved(self._master(p, state), gradient.float(), tuple(given), count, group, codes)
        for name, one, new in zip(names, codes, found, strict=True):
            if one is None:
                state[name].copy_(new)
            else:
                state[name].copy_(new[0])
                state[name + SCALE].copy_(new[1])
        return weight

    def _key(self, drawn: torch.Tensor | None, step: int, number: int) -> tuple[int, int]:
        """The key of a parameter's weight at a step; `drawn` is the key of the step, where the user gave none."""
        key = _words(drawn) if self.key is None else fold_words(*_words(self.key), step)
        return fold_words(*fold_words(*key, _WEIGHT), number)

    def _begin(self, state: dict[str, Any], p: torch.Tensor, codes: Codes) -> None:
        """The state before the first step: all codes and scales are 0, as in torchao; so codes stand for zeros."""
        state["step"], part = torch.zeros((), device="cpu"), own_part(p)
        if (kept := self._remainder_dtype(p)) is not None:
            state[REMAINDER] = as_parts(torch.zeros_like(part, dtype=kept), p)
        for name, one in zip(self.states, codes, strict=False):
            if one is None:
                state[name] = as_parts(torch.zeros_like(part), p)
            else:
                size, blocks = one.counts(part.numel())
                shape = part.shape if one.bits == 8 else (size,)
                of_codes, of_scales = _dtypes(one)
                state[name] = as_parts(torch.zeros(shape, dtype=of_codes, device=p.device), p)
                state[name + SCALE] = as_parts(torch.zeros(blocks, dtype=of_scales, device=p.device), p)

    def state_dict(self, layout: str | None = None) -> dict[str, Any]:  # type: ignore[override]
        """The state by the numbers of parameters, and the groups.

        Args:
            layout: whose names and tensors states have: None is this class's, uint8 tensors with scales beside them;
                "torchao" its tensor subclasses; "bitsandbytes" `state1`, `absmax1`, `qmap1` and so on. Remainders are
                only in this class's.

        Raises:
            ValueError: if a state has codes that the library has not.
            ImportError: if torchao is not installed.
        """
        found = super().state_dict()
        if layout is None:
            return found
        check_choice("layout", layout, LAYOUTS)
        if is_sharded(*(p for _, p in self._parameters())):
            raise ValueError(f"layout={quoted(layout)} with a DTensor; allowed is None")
        for (group, p), number in zip(self._parameters(), _numbers(found), strict=True):
            if number in found["state"]:
                names = [*zip(self.states, self._codes_of(p, group), strict=False)]
                own = found["state"][number]
                of_torchao = layout == "torchao"
                new = to_torchao(own, names, p.shape, p.dtype) if of_torchao else to_bitsandbytes(own, names)
                found["state"][number] = new
        if layout == "torchao":  # whose rates are tensors
            for group in found["param_groups"]:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32)
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` of an optimizer of this class, or of the same name of torch's, torchao's, bitsandbytes'.

        Float32 states become codes where this optimizer has codes; so do bitsandbytes' codes in other blocks.

        Args:
            state_dict: "state" by the numbers of parameters, and "param_groups" for the same number of parameters.

        Raises:
            TypeError, ValueError: if an entry does not belong to such an optimizer; nothing is loaded then.
        """
        check_type("state_dict", state_dict, dict, "a dict")
        for name, kind in (("state", dict), ("param_groups", list)):
            check_type(f"state_dict['{name}']", state_dict.get(name), kind, f"a {kind.__name__}")
        for i, group in enumerate(state_dict["param_groups"]):
            check_type(f"state_dict['param_groups'][{i}]", group, dict, "a dict")
            check_type(f"state_dict['param_groups'][{i}]['params']", group.get("params"), list, "a list")
        # bitsandbytes' groups have no "amsgrad".
        state_dict = state_dict | {"param_groups": [self.defaults | group for group in state_dict["param_groups"]]}
        numbers = _numbers(state_dict)
        groups = [group for group in state_dict["param_groups"] for _ in group["params"]]
        parameters = [p for _, p in self._parameters()]
        if len(numbers) != len(parameters):
            raise ValueError(f"state_dict has {len(numbers)} parameters; allowed are {len(parameters)}")
        for i, group in enumerate(state_dict["param_groups"]):
            try:
                self._check_group(group)
            except (TypeError, ValueError) as error:
                raise type(error)(f"state_dict['param_groups'][{i}]: {error}") from None
        states = {}
        for number, p, group in zip(numbers, parameters, groups, strict=True):
            if number in state_dict["state"]:
                where = f"state_dict['state'][{quoted(number)}]"
                names = [*zip(self.states, self._codes_of(p, group), strict=False)]
                given = state_dict["state"][number]
                check_type(where, given, dict, "a dict")
                given = from_bitsandbytes(given, names)
                states[number] = _converted(where, given, p, names)
                if (kept := self._remainder_dtype(p)) is not None:
                    states[number][REMAINDER] = _remainder(where, given, p, kept)
                elif REMAINDER in given:
                    raise ValueError(
                        f"{where} has a '{REMAINDER}' of a {p.dtype} parameter; allowed is an optimizer that keeps it"
                    )
        super().load_state_dict(state_dict | {"state": states})
        # torch's function casts what it loads to the parameter's dtype.
        for number, p in zip(numbers, parameters, strict=True):
            for name, x in states.get(number, {}).items():
                if name != "step":
                    self.state[p][name] = x.to(p.device, copy=True)


def _numbers(state_dict: dict[str, Any]) -> list[Any]:
    """The numbers of all parameters in a state dict."""
    return [*chain.from_iterable(group["params"] for group in state_dict["param_groups"])]


def rate_of(group: dict[str, Any], like: torch.Tensor) -> torch.Tensor:
    """The learning rate of a group, a float32 tensor without dimensions beside another."""
    return torch.as_tensor(group["lr"], dtype=torch.float32).squeeze().to(like.device)


def _remainder(where: str, state: dict[str, Any], p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The remainder in a state, zeros where it has none."""
    found = state.get(REMAINDER, torch.zeros_like(p, dtype=dtype))
    if not isinstance(found, torch.Tensor) or found.dtype is not dtype or found.shape != p.shape:
        raise ValueError(f"{where}['{REMAINDER}'] is wrong; allowed is {dtype} of shape {tuple(p.shape)}")
    return found


def _dtypes(codes: StateCodes) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of codes and of scales."""
    of_codes, of_scales = codes.dtypes
    return getattr(torch, of_codes), getattr(torch, of_scales)


def _words(key: torch.Tensor | None) -> tuple[int, int]:
    high, low = [] if key is None else key.tolist()
    return high & 0xFFFFFFFF, low & 0xFFFFFFFF


def _converted(
    where: str, state: Any, p: torch.Tensor, names: Iterable[tuple[str, StateCodes | None]]
) -> dict[str, Any]:
    """The state of a parameter with this optimizer's names: codes and scales, or floats."""
    part = own_part(p)
    step = state.get("step", 0 if "momentum_buffer" in state else None)  # torch's Muon counts none
    step = check_float(f"{where}['step']", step, "a whole number >= 0", lambda count: count >= 0 and count.is_integer())
    found: dict[str, Any] = {"step": torch.tensor(step, dtype=torch.float32)}
    for name, one in names:
        given, scale = state.get(name), state.get(name + SCALE)
        check_type(f"{where}['{name}']", given, torch.Tensor, "a torch.Tensor")
        if is_sharded(given) != is_sharded(p):
            raise ValueError(f"{where}['{name}'] is a {type(given).__name__}; allowed is one as the parameter")
        if hasattr(given, "codes") and hasattr(given, "scale"):  # torchao's
            if (given.codes.dtype is torch.float8_e4m3fn) != (one is not None and one.kind == FLOAT8):
                raise ValueError(f"{where}['{name}'] is a {type(given).__name__}, of another class of torchao's")
            given, scale = given.codes.view(torch.uint8), given.scale
        if one is None:
            if scale is not None or given.shape != p.shape:
                raise ValueError(f"{where}['{name}'] is no tensor of shape {tuple(p.shape)}; allowed is one of floats")
            found[name] = given.to(p.dtype)
            continue
        real = isinstance(scale, torch.Tensor) and not scale.is_complex()
        if not (given.is_floating_point() if scale is None else real):
            raise ValueError(
                f"{where}['{name}'] has {given.dtype}, and '{name}{SCALE}' is a {type(scale).__name__}; allowed are "
                "floats, or codes with a tensor of scales"
            )
        if scale is None:
            if given.shape != p.shape:
                raise ValueError(f"{where}['{name}'] has shape {tuple(given.shape)}; allowed is {tuple(p.shape)}")
            given, scale = FUNCTIONS.encode_state(own_part(given, p).float(), one)
        given, scale = own_part(given), own_part(scale)
        size, blocks = one.counts(part.numel())
        shape = tuple(part.shape) if one.bits == 8 else (size,)
        of_codes, of_scales = _dtypes(one)
        if given.dtype is not of_codes or tuple(given.shape) != shape or tuple(scale.shape) != (blocks,):
            raise ValueError(
                f"{where}['{name}'] has {given.dtype} of shape {tuple(given.shape)} and {scale.numel()} scales; "
                f"allowed are {of_codes} of shape {shape} and {blocks} scales"
            )
        found[name], found[name + SCALE] = as_parts(given, p), as_parts(scale.to(of_scales), p)
    return found
