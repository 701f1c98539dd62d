"""Autograd functions of ordinary tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def apply_directly(function: Any) -> Callable[..., Any]:
    """`function.apply` without a look at transforms and at the names of arguments, which takes longer than the rest.

    Args:
        function: a subclass of `torch.autograd.Function`, whose tensors are ordinary (see `qtorch.dispatch`), and all
            of whose arguments are given, by position.
    """
    return super(torch.autograd.Function, function).apply  # type: ignore[attr-defined]
