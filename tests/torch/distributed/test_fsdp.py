"""Gradients of FSDP2 on CPUs: by the real gloo, by its law in FSDP's communication, and by one process."""

import os

import pytest
from processes import run_processes

from qtorch.distributed import FSDPReduceScatter

IMPORTS = """
import sys
sys.path.insert(0, "tests/support")
from hashlib import sha256
import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from ranks import DTYPES, KINDS, hard_stack, one_nan
from qcore import distributed as law
from qtorch.distributed import FSDPReduceScatter, Reducer
"""

GRADIENTS = """
SPLIT = "collective(order=gloo_ring,divide=split)"  # of float16, whose sums FSDP divides itself
RING = "nccl.ring.bf16"
mesh = init_device_mesh("cpu", (count,))


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name))


class Gradient(torch.nn.Module):
    def __init__(self, like):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros_like(like))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def scattered(stack, comm=None, policy=MixedPrecisionPolicy()):
    model = fully_shard(Gradient(tensor(stack[rank])), mesh=mesh, mp_policy=policy)
    if comm is not None:
        model.set_custom_reduce_scatter(FSDPReduceScatter(comm))
    model(tensor(stack[rank])).backward()
    return model.weight.grad.to_local()


def compare(actual, expected, *what):
    actual = one_nan(actual.float().numpy().astype(expected.dtype))
    assert actual.tobytes() == one_nan(expected).tobytes(), (count, rank, *what)


BF16 = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
for kind, dtype, size in [(k, d, s) for k in KINDS for d in DTYPES for s in ([3, 40, 1000] if {heavy} else [7])]:
    stack = hard_stack(kind, count, size * count, dtype)
    mean = SPLIT if dtype == "float16" else "gloo.avg"
    for comm in (None, "gloo"):
        compare(scattered(stack, comm), law.reduce_scatter(stack, mean)[rank], kind, dtype, size, comm)
    if dtype == "float32":
        compare(scattered(stack, RING), law.reduce_scatter(stack, RING + ".avg")[rank], kind, size)
        sent = stack.astype(DTYPES["bfloat16"])
        compare(scattered(stack, None, BF16), law.reduce_scatter(sent, mean)[rank], kind, size, "reduce_dtype")
"""

TRAINING = """
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))


def backward(model, step, part):
    data = torch.randn(8, 6, generator=torch.Generator().manual_seed(count * step + part))
    model.zero_grad()
    model(data).square().mean().backward()


def hashed(model):
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return sha256(b"".join(p.detach().numpy().tobytes() for p in whole)).hexdigest()


def trained(comm):
    model = fully_shard(make(), mesh=mesh)
    if comm is not None:
        model.set_custom_reduce_scatter(FSDPReduceScatter(comm))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        backward(model, step, rank)
        optimizer.step()
    return hashed(model)


def message(gradients):
    # FSDP's: each rank's rows of all parameters, of which the last ones are zeros where there are too few
    parts = []
    for gradient in gradients:
        rows = -(-len(gradient) // count) * count
        padded = torch.cat([gradient, gradient.new_zeros(rows - len(gradient), *gradient.shape[1:])])
        parts.append(padded.reshape(count, -1))
    return torch.cat(parts, 1).flatten()


def simulated(collective):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        reducer = Reducer(collective, count, labels="ranks")
        for part in range(count):
            backward(model, step, part)
            reducer.add(message([p.grad for p in model.parameters()]))
        mean = reducer.result().view(count, -1)
        for p in model.parameters():
            each = -(-len(p) // count) * p[0].numel()
            p.grad, mean = mean[:, :each].flatten()[: p.numel()].view_as(p), mean[:, each:]
        optimizer.step()
    return hashed(model)


of_gloo = trained(None)
assert of_gloo == trained("gloo") == simulated("gloo.avg"), rank
# another order is another sum, of more than two numbers
assert (trained("collective(order=nccl_ring,divide=before)") != of_gloo) == (count > 2)
"""


MEANS = """
average, total = dist.ReduceOp.AVG, dist.ReduceOp.SUM
x, y, group = torch.ones(count), torch.empty(1), dist.group.WORLD
for collective, op, message in [
    ("collective(order=gloo_ring)", average, "is a sum; allowed are means, as FSDP asks for one"),
    ("gloo.avg", total, "is a mean; allowed are sums, as FSDP asks for one"),
    ("nccl.pat", average, "allowed is nccl.pat, which has no mean"),
    ("gloo", dist.ReduceOp.MAX, "op is neither a sum nor a mean"),
]:
    try:
        FSDPReduceScatter(collective)(y, x, group, op)
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
FSDPReduceScatter("nccl.pat")(y, x, group, total)
assert y.tolist() == [count]
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize(
    ("count", "heavy"),
    [(3, False), *((count, True) for count in (2, 3, 4, 8))],
)
def test_fsdp(count, heavy, tmp_path):
    program = f"count = {count}\n" + (GRADIENTS + TRAINING + MEANS).replace("{heavy}", str(heavy))
    run_processes(IMPORTS, program, count, tmp_path / "store")


def test_wrong_collectives():
    with pytest.raises(ValueError, match="is stochastic; allowed are other roundings: FSDP has no key"):
        FSDPReduceScatter("collective(rounding=stochastic)")
    with pytest.raises(ValueError, match="has the order nccl_tree; allowed is it in reduce"):
        FSDPReduceScatter("nccl.tree.bf16")
