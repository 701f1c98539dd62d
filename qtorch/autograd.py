"""Autograd functions in two forms: for tensors under transforms of torch, and for ordinary ones."""

from __future__ import annotations

from typing import Any

import torch


def without_transforms(function: Any) -> Any:
    """The same function in the form that no transform understands: torch calls it in half the time.

    Args:
        function: a subclass of `torch.autograd.Function` with `forward`, `setup_context` and `backward`.
    """

    class Ordinary(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = function.forward(*inputs)
            function.setup_context(ctx, inputs, output)
            return output

        backward = function.backward

    return Ordinary
