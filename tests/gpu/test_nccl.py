"""Sums of the real NCCL, of ranks that share one GPU, beside the laws that were read from its source.

NCCL 2.30 or newer, five minutes: `python -m pytest -n 0 -m gpu tests/gpu/test_nccl.py`. No GPU has run it yet.
If a ring differs, `NCCL_DEBUG=INFO` shows the order of its ranks ("Channel 00"), which is ascending here.
"""

import os

import pytest
import torch
from processes import run_processes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.heavy,
    pytest.mark.skipif(
        not torch.cuda.is_available() or not hasattr(os, "fork"), reason="needs a CUDA device, and processes are forked"
    ),
]

IMPORTS = """
import sys
sys.path.insert(0, "tests/support")
import numpy as np
import torch
from ranks import DTYPES, KINDS, hard_stack, one_nan
from qcore import distributed as law
"""

# What NCCL leaves open: one channel, protocol Simple, no switch. Trees and PAT have one rank a node, so each process
# says that it is a host of its own, which sends by sockets. NCCL reads these names when its first communicator is made.
SETUP = """
os.environ |= {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_ALGO": algorithm, "NCCL_PROTO": "Simple", "NCCL_NVLS_ENABLE": "0",
    "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1",
}
if algorithm != "Ring":
    os.environ |= {
        "NCCL_HOSTID": f"host{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
    }
torch.cuda.set_device(0)
assert torch.cuda.nccl.version() >= (2, 30), f"NCCL {torch.cuda.nccl.version()} has no ranks that share a GPU"
nccl = dist.new_group(backend="nccl", timeout=timedelta(seconds=120))
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# Fewer elements than chunks, a last chunk that is shorter, and two loops of chunks of 2 MiB.
SIZES = [1, 7, 33, 1021, 20_003]
LARGE = [("wide", count * (1 << 20) + 1000, "bfloat16")] if count < 4 else []
CASES = [(kind, size, dtype) for kind in KINDS for size in SIZES for dtype in DTYPES]


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name)).cuda()


def bits(x):
    return one_nan(x).tobytes()


def found(x, dtype):
    return bits(x.float().cpu().numpy().astype(dtype))
"""

REDUCE = """
for kind, size, dtype in CASES + LARGE:
    stack = hard_stack(kind, count, size, dtype)
    for mean, op in (("", dist.ReduceOp.SUM), (".avg", dist.ReduceOp.AVG)):
        mine = tensor(stack[rank])
        dist.all_reduce(mine, op=op, group=nccl)
        name = f"nccl.{algorithm.lower()}.{SHORT[dtype]}{mean}"
        assert found(mine, stack.dtype) == bits(law.reduce(stack, name)), (count, rank, name, kind, size)
"""

EIGHT_BITS = """
if torch.cuda.get_device_capability() >= (9, 0):
    for short, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        for size in SIZES:
            mine = torch.from_numpy(hard_stack("ties", count, size, "float32")[rank]).to(dtype)
            every = [torch.empty(size) for _ in range(count)]
            dist.all_gather(every, mine.float())  # by gloo
            stack, mine = torch.stack(every).numpy(), mine.cuda()
            dist.all_reduce(mine, group=nccl)
            name = f"nccl.{algorithm.lower()}.{short}"
            assert found(mine, np.float32) == bits(law.reduce(stack, name)), (count, rank, name, size)
"""

SCATTER = """
# PAT sends some steps together, as many as the message's size says; the same for all elements.
names = {dtype: [f"nccl.ring.{SHORT[dtype]}"] for dtype in DTYPES}
if algorithm == "PAT":
    powers = [1 << k for k in range(count.bit_length()) if k == 0 or 1 << k <= count // 2]
    names = {dtype: [f"collective(order=nccl_pat,aggregation={n})" for n in powers] for dtype in DTYPES}
for kind, size, dtype in CASES:
    stack = hard_stack(kind, count, size * count, dtype)
    part = tensor(stack[rank, :size])
    dist.reduce_scatter_tensor(part, tensor(stack[rank]), group=nccl)
    laws = [bits(law.reduce_scatter(stack, name)[rank]) for name in names[dtype]]
    assert found(part, stack.dtype) in laws, (count, rank, algorithm, kind, size, dtype)
"""


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    ("algorithm", "program"),
    [("Ring", REDUCE + EIGHT_BITS + SCATTER), ("Tree", REDUCE + EIGHT_BITS), ("PAT", SCATTER)],
    ids=["ring", "tree", "pat"],
)
def test_nccl(algorithm, program, count, tmp_path):
    run_processes(IMPORTS, f"algorithm, count = {algorithm!r}, {count}\n" + SETUP + program, count, tmp_path / "store")
