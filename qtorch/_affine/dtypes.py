"""The integers and schemes that torch's dtypes and qschemes mean, and modules whose tensors keep their dtypes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from qcore.affine import FORMS, SCHEMES, AffineInteger
from qcore.arguments import quoted
from qtorch._torch_internals import Unscripted

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

    Example:
        >>> module = FixedDtypes()
        >>> module.register_buffer("scale", torch.tensor(0.1))
        >>> module.half().scale.dtype
        torch.float32
    """

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> FixedDtypes:
        def moved(x: torch.Tensor) -> torch.Tensor:
            result = fn(x)
            return result if result.dtype == x.dtype else x.to(result.device)

        return super()._apply(moved, recurse)
