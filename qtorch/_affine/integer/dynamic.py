"""Layers of floats with integer weights by kernels in C: products, and all steps of a recurrent layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from qcore.affine import AffineInteger
from qtorch._affine.integer.kernel import is_there, packed
from qtorch._kernels import dynamic
from qtorch._rounding.paths.choice import are_plain_tensors

_CPU = torch.device("cpu")
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class DynamicKernel:
    """A product of floats with a packed weight (`qcore.affine.arithmetic.recurrent`).

    Args:
        weight: QTensor of shape (outputs, features), served by the kernel (`kernel_of`).
        bias: float32 of shape (outputs,), or None.
        form: the integers that floats become.
    """

    def __init__(self, weight: Any, bias: torch.Tensor | None, form: AffineInteger) -> None:
        self.outputs, self.features = weight.shape
        self.form, self.biased = form, bias is not None
        self._memory = packed(weight.values.contiguous(), weight.qparams.zero_point, False)
        self._scales = weight.qparams.scale.expand(self.outputs).contiguous()
        self._bias = self._scales if bias is None else bias.contiguous()  # which is not read if there is none
        self.addresses = tuple(one.data_ptr() for one in (self._memory, self._scales, self._bias))
        self._function: Any = dynamic.product(self.biased, form)

    def __call__(self, x: Any) -> torch.Tensor | None:
        """The product with the last dimension of a tensor of floats; None of all that the kernel does not serve."""
        if not isinstance(x, torch.Tensor) or x.dtype not in _FLOATS or not are_plain_tensors((x,)) or not x.is_cpu:
            return None
        shape = x.shape
        if not shape or shape[-1] != self.features or x.numel() == 0:
            return None
        if x.dtype is not torch.float32:
            x = x.to(torch.float32)
        x = x.contiguous()
        result = torch.empty((*shape[:-1], self.outputs), dtype=torch.float32, device=_CPU)
        rows = x.numel() // self.features
        self._function(rows, self.features, self.outputs, *self.addresses, x.data_ptr(), result.data_ptr())
        return result

    def steps(
        self,
        law: str,
        of_input: torch.Tensor,
        sizes: Sequence[int],
        states: Sequence[torch.Tensor],
        reverse: bool,
    ) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
        """The results of all steps of a recurrent layer, and its last states; None where no kernel serves it.

        Args:
            law: "lstm" or "gru".
            of_input: the products of the input's rows, those of one step after those of another.
            sizes: how many sequences, the first ones, have each step.
            states: float32 of shape (batch, size), before the first step.
            reverse: whether the steps are taken from the last to the first.
        """
        function: Any = dynamic.steps(law, self.biased, self.form)
        needs_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in states)
        if function is None or needs_gradient or not are_plain_tensors((of_input, *states)) or not of_input.is_cpu:
            return None
        made = [one.clone(memory_format=torch.contiguous_format) for one in states]
        counts = torch.tensor(sizes, dtype=torch.int64, device=_CPU)
        result = torch.empty((len(of_input), self.features), dtype=torch.float32, device=_CPU)
        tensors = counts, of_input.contiguous(), made[0], made[-1], result
        function(
            *(len(sizes), self.features, len(made[0]), int(reverse)),
            *self.addresses,
            *(one.data_ptr() for one in tensors),
        )
        return result, made


def kernel_of(weight: Any, bias: torch.Tensor | None, form: AffineInteger) -> DynamicKernel | None:
    """The kernel of a product with a weight of 8 bits; None where there is none."""
    levels = (weight.form.qmax - weight.form.qmin) * (form.qmax - form.qmin)
    tensors = [weight.values, weight.qparams.scale, weight.qparams.zero_point, *([] if bias is None else [bias])]
    fits = weight.values.element_size() == 1 and prod(weight.shape[1:]) * levels < 2**31
    if not (fits and weight.values.is_cpu and weight.values.numel() > 0 and are_plain_tensors(tensors) and is_there()):
        return None
    return DynamicKernel(weight, bias, form)
