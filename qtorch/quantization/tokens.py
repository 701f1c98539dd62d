"""torch's names of integer types and schemes, and what they say to the affine law."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import FORMS, SCHEMES, AffineInteger

_FORMS = {getattr(torch, name): form for name, form in FORMS.items()}
_SCHEMES = {
    torch.per_tensor_affine: ("affine", False),
    torch.per_tensor_symmetric: ("symmetric", False),
    torch.per_channel_affine: ("affine", True),
    torch.per_channel_symmetric: ("symmetric", True),
}


def integers(
    dtype: Any, quant_min: int | None = None, quant_max: int | None = None, reduce_range: bool = False
) -> AffineInteger:
    """The integers that a dtype, or a part of its range, stands for.

    Args:
        dtype: torch.quint8, qint8, qint32, or a plain integer type of up to 32 bits, or an `AffineInteger`.
        quant_min, quant_max: the part of the range; both, or neither for all of it.
        reduce_range: whether both ends are then halved and rounded down.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the range is not in that of dtype, or only one of its ends is given.

    Example:
        >>> integers(torch.quint8, reduce_range=True)
        AffineInteger(qmin=0, qmax=127, signed=False, middle=63)
    """
    form = dtype if isinstance(dtype, AffineInteger) else _FORMS.get(dtype)
    if form is None:
        raise TypeError(f"dtype={dtype!r}; allowed are {', '.join(map(str, _FORMS))}, or an AffineInteger")
    return form.part(quant_min, quant_max, reduce_range)


def scheme(qscheme: Any, per_channel: bool) -> str:
    """ "affine" or "symmetric", from one of those or one of torch's schemes.

    Args:
        qscheme: torch.per_tensor_affine, per_tensor_symmetric, per_channel_affine, per_channel_symmetric, "affine" or
            "symmetric".
        per_channel: which of torch's schemes are allowed.

    Raises:
        ValueError: if qscheme is none of those.

    Example:
        >>> scheme(torch.per_tensor_symmetric, per_channel=False)
        'symmetric'
    """
    allowed = [token for token, (_, channels) in _SCHEMES.items() if channels is per_channel]
    if isinstance(qscheme, str) and qscheme in SCHEMES:
        return qscheme
    if qscheme not in allowed:
        raise ValueError(f"qscheme={qscheme!r}; allowed are {', '.join(map(str, (*allowed, *SCHEMES)))}")
    return _SCHEMES[qscheme][0]
