"""The inner optimizer's state as codes of a format, between the steps of `OptimLP`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch

from qcore import Number, Quantization, parse
from qcore.arguments import check_choice
from qcore.formats.number import check_number
from qcore.linalg.scaling import is_delayed
from qtorch._rounding.dispatch import decode, encode
from qtorch._rounding.many import have_same_bits
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch.optim.quantizers import Function
from qtorch.optim.trained import momenta_of

_OWN = "low_precision_"  # begins the names of all entries that are not the inner optimizer's
_CODES, _SCALES, _FORMAT = (f"{_OWN}{what}_of_" for what in ("codes", "scales", "format"))

_PICKLED = {torch.uint16: torch.int16, torch.uint32: torch.int32}  # torch does not pickle all unsigned integers

States = Iterable[tuple[torch.Tensor, MutableMapping[str, Any]]]


def stored_number(state_storage: str | None, quantizer: Quantization | Function | None) -> Number | None:
    """The format in whose codes the state is kept; None for floats."""
    if state_storage is None:
        return None
    check_choice("state_storage", state_storage, ["codes"])
    found = quantizer.forward_number if isinstance(quantizer, Quantization) else None
    if found is None:
        raise ValueError("state_storage='codes' without a format in momentum_quant; allowed is a format with codes")
    number = check_number(found)
    if is_delayed(number):
        raise ValueError(f"state_storage='codes' with {number.text}; allowed are formats without a history")
    if not number.text or parse(number.text) != number:
        raise ValueError(f"state_storage='codes' with {number.text or number}; allowed are formats that a text names")
    # Raise for a format without codes, or with numbers that float32 does not have.
    codes, scales = _encoded(torch.zeros(32, 32), number)
    decode(codes, number, scales=scales)
    return number


def encode_states(states: States, number: Number) -> None:
    """Replaces float32 tensors by codes that give the same numbers back; others stay as they are."""
    for p, entries in states:
        own = {name: x for name, x in entries.items() if not str(name).startswith(_OWN)}
        for name, x in momenta_of(own, p).items():
            if name not in own or x.dtype is not torch.float32 or not is_plain_tensor(x) or not x.numel():
                continue
            if not x.dim() and number.axes(1):  # a block of one number takes more as codes
                continue
            codes, scales = _encoded(x, number)
            # Blocks that are rounded again may have other scales. Not all formats have -0.0; a sum with 0 has none.
            if have_same_bits(decode(codes, number, scales=scales) + 0.0, x + 0.0):
                del entries[name]
                entries[_CODES + name], entries[_FORMAT + name] = codes, number.text
                if scales is not None:
                    entries[_SCALES + name] = scales


def _encoded(x: torch.Tensor, number: Number) -> tuple[torch.Tensor, Any]:
    """The codes of numbers of a format, and the scales of blocks, or None."""
    found = encode(x, number)
    codes, scales = found if isinstance(found, tuple) else (found, None)
    return codes.view(_PICKLED.get(codes.dtype, codes.dtype)), scales


def decode_states(states: States) -> None:
    """The inverse of `encode_states`."""
    for _, entries in states:
        for name in [name[len(_CODES) :] for name in entries if str(name).startswith(_CODES)]:
            codes, text = entries.pop(_CODES + name), entries.pop(_FORMAT + name)
            entries[name] = decode(codes, text, scales=entries.pop(_SCALES + name, None))


def has_codes(entries: Mapping[str, Any]) -> bool:
    """True for a state with codes."""
    return any(str(name).startswith(_CODES) for name in entries)
