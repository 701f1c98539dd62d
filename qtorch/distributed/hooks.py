"""Gradients of DistributedDataParallel, averaged by a collective."""

# pyright: reportPrivateImportUsage=false
# torch documents `torch.distributed.GradBucket`, and does not export it for type checkers.

from collections.abc import Callable

import torch
import torch.distributed as dist

from qcore.arguments import quoted
from qcore.distributed.backends import CollectiveLike, check_collective
from qcore.distributed.collective import REDUCE
from qtorch.distributed.tensors import reduce


def comm_hook(
    collective: CollectiveLike,
) -> Callable[[dist.ProcessGroup | None, dist.GradBucket], torch.futures.Future[torch.Tensor]]:
    """A communication hook of DistributedDataParallel: buckets of gradients are averaged as another program does it.

    Every rank gathers the bucket of all ranks, and computes `reduce` of them. So real processes train with the bits
    that the named program would have for the same buckets, on any backend. A bucket is one message.

    Args:
        collective: as for `reduce`: a mean, as DistributedDataParallel does not divide what a hook returns.

    Returns:
        A function of a process group, or None for the default one, and a bucket.

    Raises:
        ValueError: if the collective does not divide, rounds stochastically, or has no all-reduce.

    Example:
        >>> hook = comm_hook("nccl.ring.bf16.avg")  # model.register_comm_hook(None, hook)
    """
    law = check_collective(collective, "float32", REDUCE)
    if law.divide is None:
        raise ValueError(f"collective={quoted(collective)} is a sum; allowed are means, such as 'gloo.avg'")
    if law.stochastic:
        raise ValueError(
            f"collective={quoted(collective)} is stochastic; allowed are other roundings: a hook has no key"
        )

    def hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        mine = bucket.buffer()
        stack = mine.new_empty((dist.get_world_size(group), mine.numel()))
        gathered = dist.all_gather_into_tensor(stack.view(-1), mine, group=group, async_op=True)
        assert gathered is not None  # as it is asynchronous
        return gathered.get_future().then(lambda _: reduce(stack, collective))

    return hook
