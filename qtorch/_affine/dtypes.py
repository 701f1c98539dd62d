"""The integers and schemes that torch's dtypes and qschemes mean, and modules whose tensors keep their dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qcore.affine import FORMS, SCHEMES, AffineInteger
from qcore.arguments import quoted
from qtorch._torch_internals import Unscripted

_STANDS = "stands_for_parameters"
_WIDE = torch.float32
_FORMS = {getattr(torch, name): form for name, form in FORMS.items()}


def integers(
    dtype: torch.dtype | AffineInteger,
    quant_min: int | None = None,
    quant_max: int | None = None,
    reduce_range: bool = False,
    argument: str = "dtype",
) -> AffineInteger:
    """The integers of torch.quint8, qint8, qint32, a plain integer type of up to 32 bits, or an `AffineInteger`.

    The other arguments are those of `AffineInteger._part`; `argument` is the name of dtype in errors.

    Example:
        >>> integers(torch.quint8, reduce_range=True)
        AffineInteger(qmin=0, qmax=127, signed=False, middle=63)
    """
    form = dtype if isinstance(dtype, AffineInteger) else _FORMS.get(dtype) if isinstance(dtype, torch.dtype) else None
    if form is None:
        raise TypeError(f"{argument}={quoted(dtype)}; allowed are {', '.join(map(str, _FORMS))}, or an AffineInteger")
    return form._part(quant_min, quant_max, reduce_range)


def scheme(qscheme: torch.qscheme | str, per_channel: bool) -> str:
    """ "affine" or "symmetric", from either text or from one of torch's schemes, per channel or per tensor.

    Example:
        >>> scheme(torch.per_tensor_symmetric, per_channel=False)
        'symmetric'
    """
    granularity = "channel" if per_channel else "tensor"
    allowed = {getattr(torch, f"per_{granularity}_{name}"): name for name in SCHEMES} | {name: name for name in SCHEMES}
    if not isinstance(qscheme, (str, torch.qscheme)) or qscheme not in allowed:
        raise ValueError(f"qscheme={quoted(qscheme)}; allowed are {', '.join(map(str, allowed))}")
    return allowed[qscheme]


class FixedDtypes(Unscripted, torch.nn.Module):
    """A module whose tensors keep their dtypes: `half()` and `to(torch.float64)` of a model do not change its scales.

    What stands for float parameters of a converted layer has the model's dtype, and follows it.

    Example:
        >>> module = FixedDtypes()
        >>> module.register_buffer("scale", torch.tensor(0.1))
        >>> module.half().scale.dtype
        torch.float32
    """

    _narrow: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> FixedDtypes:
        free = [getattr(self, name, None) for name in (_STANDS, *self._narrow)]

        def moved(x: torch.Tensor) -> torch.Tensor:
            result = fn(x)
            return result if result.dtype == x.dtype or any(x is one for one in free) else x.to(result.device)

        for child in self.children() if recurse else ():  # others, such as a user's rounding, have scales as well
            child._apply(fn if isinstance(child, FixedDtypes) else moved)
        return super()._apply(moved, recurse=False)

    def stand_for(self, dtype: torch.dtype, device: torch.device | None = None) -> None:
        """Adds a parameter without elements in the place of float parameters that this module replaces.

        Much code takes device and dtype of `next(model.parameters())`. State_dicts do not have the parameter.
        """
        empty = torch.empty(0, dtype=dtype, device=device)
        self.register_parameter(_STANDS, torch.nn.Parameter(empty, requires_grad=False))

    def take_dtype(self, dtype: torch.dtype) -> None:
        """Gives a bias, and the weight of a norm, the dtype of the float parameter, whose numbers they have.

        Functions of torch take both with inputs of one dtype. State_dicts have them in float32.
        """
        found = dict(self.named_buffers(recurse=False))
        self._narrow = tuple(name for name in ("weight", "bias") if name in found and found[name].dtype is _WIDE)
        for name in self._narrow:
            setattr(self, name, found[name].to(dtype))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(prefix + _STANDS, None)
        for name in self._narrow:
            destination[prefix + name] = destination[prefix + name].to(_WIDE)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        if (empty := self._parameters.get(_STANDS)) is not None:
            state_dict.setdefault(prefix + _STANDS, empty)
        super()._load_from_state_dict(state_dict, prefix, *others)
