"""Gradients of FSDP, scattered by a collective."""

# pyright: reportPrivateImportUsage=false
# torch documents `torch.distributed.ReduceOp`, and does not export it for type checkers.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from qcore.arguments import quoted
from qcore.distributed.backends import BACKENDS, CollectiveLike, check_collective
from qcore.distributed.collective import SCATTER
from qtorch.distributed.tensors import reduce_scatter


class FSDPReduceScatter:
    """The communication of gradients of `torch.distributed.fsdp.fully_shard`, as another program does it.

    Every rank gathers the gradients of all ranks, and computes `reduce_scatter` of them. So real processes train with
    the bits that the named program would have for the same messages, on any backend. A message has all gradients of a
    module that was given to `fully_shard`, padded. FSDP asks for a mean of float32 and bfloat16, and for a sum of
    float16, which it divides itself. The all-reduce of hybrid sharding stays the backend's.

    Args:
        collective: as for `reduce_scatter`; with a name such as "nccl.ring.bf16" the mean is its ".avg".

    Raises:
        ValueError: if the collective rounds stochastically, or has no reduce-scatter; in the backward pass if FSDP asks
            for a mean and the collective is a sum, or the other way round.

    Example:
        >>> comm = FSDPReduceScatter("nccl.ring.bf16")  # model.set_custom_reduce_scatter(comm)
    """

    def __init__(self, collective: CollectiveLike) -> None:
        law = check_collective(collective, "float32", SCATTER)
        if law.stochastic:
            raise ValueError(
                f"collective={quoted(collective)} is stochastic; allowed are other roundings: FSDP has no key"
            )
        self.collective = collective

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory of a message, as FSDP asks for it."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """What FSDP calls: this rank's part of the sum of all messages, or of their mean."""
        if async_op:
            raise ValueError("async_op=True; allowed is False")
        law = self._law(op)
        stack = input_tensor.new_empty((dist.get_world_size(group), input_tensor.numel()))
        dist.all_gather_into_tensor(stack.view(-1), input_tensor.contiguous().view(-1), group=group)
        output_tensor.copy_(reduce_scatter(stack, law)[dist.get_rank(group)].view_as(output_tensor))

    def _law(self, op: Any) -> CollectiveLike:
        """The collective of the sum or of the mean, as FSDP asks."""
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError(
                "op is neither a sum nor a mean; allowed are these: set_gradient_divide_factor may ask for others"
            )
        means = op == dist.ReduceOp.AVG
        if means and isinstance(self.collective, str) and self.collective in BACKENDS:
            return f"{self.collective}.avg"
        law = check_collective(self.collective, "float32", SCATTER)
        if means and law.divide is None:
            raise ValueError(f"collective={quoted(self.collective)} is a sum; allowed are means, as FSDP asks for one")
        if not means and law.divide is not None:
            raise ValueError(f"collective={quoted(self.collective)} is a mean; allowed are sums, as FSDP asks for one")
        return self.collective
