"""Sums of the real gloo, by several processes, beside the law that is said to be its."""

import os

import pytest
from processes import run_processes

IMPORTS = """
import sys
sys.path.insert(0, "tests/support")
import numpy as np
import torch
from ranks import DTYPES, KINDS, hard_stack, one_nan
from qcore import distributed as law
"""

PROGRAM = """
AVG = dist.ReduceOp.AVG
# Fewer elements than chunks, chunks that are empty, a last one that is shorter; and 5 MB, more than a segment a rank.
SIZES = [1, 2, 5, 7, 17, 33, 1021] if {heavy} else [5, 33]
LARGE = [("wide", 2_100_003, "float16")] if {heavy} else []


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize(
    ("count", "heavy"),
    [
        (2, False),
        (3, False),
        (4, False),
        pytest.param(2, True, marks=pytest.mark.heavy),
        pytest.param(3, True, marks=pytest.mark.heavy),
        pytest.param(8, True, marks=pytest.mark.heavy),
    ],
)
def test_gloo(count, heavy, tmp_path):
    program = f"count = {count}\n" + PROGRAM.replace("{heavy}", str(heavy))
    run_processes(IMPORTS, program, count, tmp_path / "store")
