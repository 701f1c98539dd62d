"""Sums of the real gloo, and means of DistributedDataParallel over it, beside the laws that are said to be theirs."""

import os

import pytest
from processes import run_processes

from qtorch.distributed import comm_hook

IMPORTS = """
import sys
import warnings
sys.path.insert(0, "tests/support")
import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from ranks import DTYPES, KINDS, hard_stack, one_nan
from qcore import distributed as law
"""

PROGRAM = """
AVG = dist.ReduceOp.AVG
# Fewer elements than chunks, chunks that are empty, a last one that is shorter; and 5 MB, more than a segment a rank.
SIZES = [1, 2, 5, 7, 17, 33, 1021] if {heavy} else [5, 33]
LARGE = [("wide", 2_100_003, "float16")] if {heavy} and count == 3 else []


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name))


def compare(actual, expected, *what):
    actual = one_nan(actual.float().numpy().astype(expected.dtype))
    assert actual.tobytes() == one_nan(expected).tobytes(), (count, rank, *what)


for kind, size, dtype in [(k, s, d) for k in KINDS for s in SIZES for d in DTYPES] + LARGE:
    stack = hard_stack(kind, count, size, dtype)
    wide = hard_stack(kind, count, size * count, dtype)
    for name, op in (("gloo", dist.ReduceOp.SUM), ("gloo.avg", AVG)):
        mine = tensor(stack[rank])
        dist.all_reduce(mine, op=op)
        compare(mine, law.reduce(stack, name), "all_reduce", kind, size, dtype, name)
        part = torch.empty(size, dtype=mine.dtype)
        dist.reduce_scatter_tensor(part, tensor(wide[rank]), op=op)
        compare(part, law.reduce_scatter(wide, name)[rank], "reduce_scatter", kind, size, dtype, name)
    dist.reduce_scatter(part, list(tensor(wide[rank]).chunk(count)))
    # torch reduces each tensor of a list as a message of its own
    alone = np.ascontiguousarray(wide[:, size * rank : size * (rank + 1)])
    compare(part, law.reduce(alone, "gloo"), "reduce_scatter of a list", kind, size, dtype)
"""

# DistributedDataParallel of one parameter, whose gradient is the input. Without a hook it multiplies gradients by
# float32(1 / N) while it copies them to a bucket, and divides those that are views of it already.
DDP = """
MULTIPLIES = law.Collective(order="gloo_ring", divide="premultiply")
DIVIDES = law.Collective(order="gloo_ring", divide="before")
HOOKS = {
    "allreduce_hook": DIVIDES,
    "bf16_compress_hook": law.Collective("bfloat16", "gloo_ring", divide="before"),
    "fp16_compress_hook": law.Collective("float16", "gloo_ring", divide="before"),
}
warnings.simplefilter("ignore")  # of gradients whose strides differ from their bucket's


class Gradient(torch.nn.Module):
    def __init__(self, like):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros_like(like))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def named_hook(name):
    # torch refuses the hook of bfloat16 without CUDA, and reads the types of a hook
    def hook(group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return getattr(default_hooks, name)(group, bucket)

    return hook


for kind, dtype in [(k, d) for k in KINDS for d in DTYPES]:
    stack = hard_stack(kind, count, 33, dtype)
    mine = tensor(stack[rank])
    # 1 / N is no number of 16 bits here: the product with it is the quotient, rounded
    first = MULTIPLIES if dtype == "float32" else DIVIDES
    for view, static in [(False, False), (True, False), *([(False, True), (True, True)] if {heavy} else [])]:
        model = DistributedDataParallel(Gradient(mine), gradient_as_bucket_view=view, static_graph=static)
        for step in range(2):
            model.zero_grad(set_to_none=False)  # from the second step on gradients are added to +0
            model(mine).backward()
            terms, way = (stack + stack.dtype.type(0), DIVIDES if view else first) if step else (stack, first)
            compare(model.module.weight.grad, law.reduce(terms, way), "DDP", kind, dtype, view, static, step)
    for name, way in HOOKS.items():
        model = DistributedDataParallel(Gradient(mine))
        model.register_comm_hook(None, named_hook(name))
        model(mine).backward()
        compare(model.module.weight.grad, law.reduce(stack, way), name, kind, dtype)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize(
    ("count", "heavy"),
    [(3, False), *(pytest.param(count, True, marks=pytest.mark.heavy) for count in (2, 3, 4, 8))],
)
def test_gloo(count, heavy, tmp_path):
    """Two processes would say nothing of the order."""
    program = f"count = {count}\n" + (PROGRAM + DDP).replace("{heavy}", str(heavy))
    run_processes(IMPORTS, program, count, tmp_path / "store")


TRAINING = """
from hashlib import sha256
from qcore.distributed import Collective
from qtorch.distributed import Reducer, comm_hook

orders = []  # of the parameters in the one bucket of each step
DDP = Collective(order="gloo_ring", divide="before")  # the gradients are divided, then gloo sums


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))


def backward(model, step, part):
    data = torch.randn(8, 6, generator=torch.Generator().manual_seed(count * step + part))
    model.zero_grad()
    model(data).square().mean().backward()
    return [p.grad.flatten() for p in model.parameters()]


def trained(hook):
    model = DistributedDataParallel(make())
    places = {id(p): place for place, p in enumerate(model.parameters())}
    orders.clear()

    def noting(group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        orders.append([places[id(p)] for p in bucket.parameters()])
        return hook(group, bucket)

    model.register_comm_hook(None, noting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        backward(model, step, rank)
        optimizer.step()
    return hashed(model)


def hashed(model):
    return sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def simulated(collective):
    # One process, which computes all ranks, and puts gradients into a bucket in DDP's order: it changes after a step.
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        gradients = [backward(model, step, part) for part in range(count)]
        buckets = [torch.cat([one[place] for place in orders[step]]) for one in gradients]
        reducer = Reducer(collective, count, labels="ranks")
        for bucket in buckets:
            reducer.add(bucket)
        mean = reducer.result()
        for p in [list(model.parameters())[place] for place in orders[step]]:
            p.grad = mean[: p.numel()].view_as(p)
            mean = mean[p.numel() :]
        optimizer.step()
    return hashed(model)


RING = "nccl.ring.bf16.avg"
of_gloo, of_law, of_ring = map(trained, (default_hooks.allreduce_hook, comm_hook(DDP), comm_hook(RING)))
assert of_gloo == of_law == simulated(DDP), rank
assert of_ring == simulated(RING) != of_law, rank
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_processes_and_one_that_simulates_them(tmp_path):
    """The weights after some steps: of gloo, of its law in the hook, and of one process."""
    run_processes(IMPORTS, "count = 4\n" + TRAINING, 4, tmp_path / "store")


@pytest.mark.parametrize(
    ("collective", "message"),
    [
        ("gloo", "collective='gloo' is a sum; allowed are means"),
        ("collective(divide=after,rounding=stochastic)", "is stochastic; allowed are other roundings"),
    ],
)
def test_hooks_of_wrong_collectives(collective, message):
    with pytest.raises(ValueError, match=message):
        comm_hook(collective)
