"""States of optimizers in codes with the names and layouts of torchao and of bitsandbytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qcore.reproducible.state_codes import FLOAT8, StateCodes

SCALE = "_scale"  # is appended to a state's name
LAYOUTS = ("torchao", "bitsandbytes")
_WRAPPED = "__bnb_optimizer_quant_state__"
_BNB_BLOCK = 256
_BNB_MAPS = ("dynamic", "udynamic")  # of the first and the second state

StatesAndCodes = Sequence[tuple[str, StateCodes | None]]


def state_map(codes: StateCodes) -> torch.Tensor:
    """The numbers of a map's codes."""
    return torch.from_numpy(codes.laws.decoding[: 1 << codes.bits].copy()).view(torch.float32)


def from_bitsandbytes(state: dict[str, Any], names: StatesAndCodes) -> dict[str, Any]:
    """bitsandbytes' state with our names; its codes become floats where ours have other blocks or other codes."""
    state = state | state.get(_WRAPPED, {})
    if "state1" not in state:
        return state
    found = {"step": state["step"]}
    for place, (name, one) in enumerate(names, 1):
        given, scale, numbers = (state.get(f"{part}{place}") for part in ("state", "absmax", "qmap"))
        if given is None or scale is None or numbers is None:
            found[name] = given
        elif one == StateCodes(_BNB_MAPS[place - 1], _BNB_BLOCK):
            found[name], found[name + SCALE] = given, scale
        else:
            x = numbers.float()[given.reshape(-1).long()] * scale.repeat_interleave(_BNB_BLOCK)[: given.numel()]
            found[name] = x.view(given.shape)
    return found


def to_bitsandbytes(state: dict[str, Any], names: StatesAndCodes) -> dict[str, Any]:
    """A state with bitsandbytes' names."""
    found: dict[str, Any] = {}
    for place, (name, one) in enumerate(names, 1):
        found[f"state{place}"] = state[name]
        if one is not None:
            if one.kind not in _BNB_MAPS or one.block != _BNB_BLOCK:
                raise ValueError(
                    f"layout='bitsandbytes' with codes {one.kind} in blocks of {one.block}; allowed are dynamic and "
                    f"udynamic in blocks of {_BNB_BLOCK}"
                )
            found[f"absmax{place}"], found[f"qmap{place}"] = state[name + SCALE], state_map(one)
    return {"step": int(state["step"]), _WRAPPED: found}


def to_torchao(state: dict[str, Any], names: StatesAndCodes, shape: torch.Size, dtype: torch.dtype) -> dict[str, Any]:
    """A state with torchao's tensors."""
    found: dict[str, Any] = {"step": state["step"]}
    for name, one in names:
        found[name] = state[name] if one is None else _torchao_tensor(state, name, one, shape, dtype)
    return found


def _torchao_tensor(
    state: dict[str, Any], name: str, codes: StateCodes, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    given, scale, signed = state[name], state[name + SCALE], codes.kind in ("dynamic", "dynamic4")
    if codes.companded:
        raise ValueError(f"layout='torchao' with codes {codes.kind}; allowed are those of Adam8bit, Adam4bit, AdamFp8")
    try:
        from torchao.optim.subclass_4bit import OptimState4bit
        from torchao.optim.subclass_8bit import OptimState8bit
        from torchao.optim.subclass_fp8 import OptimStateFp8
    except ModuleNotFoundError as error:
        raise ImportError("layout='torchao' needs torchao: pip install torchao") from error
    if codes.kind == FLOAT8:
        return OptimStateFp8(given.view(torch.float8_e4m3fn), scale, dtype)
    if codes.bits == 8:
        return OptimState8bit(given, scale, state_map(codes), signed, dtype)
    return OptimState4bit(given, scale, state_map(codes), signed, shape, dtype)
