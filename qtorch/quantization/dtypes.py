"""torch's names of integer types and schemes, and what they say to the affine law."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import FORMS, SCHEMES, AffineInteger

_FORMS = {getattr(torch, name): form for name, form in FORMS.items()}


def integers(
    dtype: Any, quant_min: int | None = None, quant_max: int | None = None, reduce_range: bool = False
) -> AffineInteger:
    """The integers that a dtype, or a part of its range, stands for.

    Args:
        dtype: torch.quint8, qint8, qint32, or a plain integer type of up to 32 bits, or an `AffineInteger`.
        quant_min, quant_max, reduce_range: as for `AffineInteger.part`, which raises the same errors.

    Example:
        >>> integers(torch.quint8, reduce_range=True)
        AffineInteger(qmin=0, qmax=127, signed=False, middle=63)
    """
    form = dtype if isinstance(dtype, AffineInteger) else _FORMS.get(dtype)
    if form is None:
        raise TypeError(f"dtype={dtype!r}; allowed are {', '.join(map(str, _FORMS))}, or an AffineInteger")
    return form.part(quant_min, quant_max, reduce_range)


def scheme(qscheme: Any, per_channel: bool) -> str:
    """ "affine" or "symmetric", from one of those or one of torch's schemes, per channel or per tensor.

    Example:
        >>> scheme(torch.per_tensor_symmetric, per_channel=False)
        'symmetric'
    """
    granularity = "channel" if per_channel else "tensor"
    allowed = {getattr(torch, f"per_{granularity}_{name}"): name for name in SCHEMES} | {name: name for name in SCHEMES}
    if qscheme not in list(allowed):  # which needs no hash
        raise ValueError(f"qscheme={qscheme!r}; allowed are {', '.join(map(str, allowed))}")
    return allowed[qscheme]
