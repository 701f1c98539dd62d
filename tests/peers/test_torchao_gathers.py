"""torchao's float8 all-gather of FSDP's shards: its own functions on a CPU."""

import os

import numpy as np
import pytest
import torch
from processes import run_processes
from ranks import DTYPES, hard_stack, one_nan

from qtorch.distributed import all_gather

utils = pytest.importorskip("torchao.float8.float8_utils")
tensors = pytest.importorskip("torchao.float8.float8_training_tensor")


def gathered(stack):
    """Codes of the ranks, and the scale, which follows from the largest magnitude of all ranks."""
    scale = utils.tensor_to_scale(stack, torch.float8_e4m3fn)
    return [tensors.hp_tensor_and_scale_to_float8(shard, scale, torch.float8_e4m3fn) for shard in stack]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["wide", "tiny", "zeros", "special"])
def test_float8_all_gather(kind, dtype):
    stack = hard_stack("wide" if kind == "special" else kind, 3, 500, dtype)
    stack = torch.from_numpy(stack.astype(np.float32)).to(getattr(torch, dtype))
    for special in (torch.inf, torch.nan) if kind == "special" else (None,):
        if special is not None:
            stack[1, 7] = special
        found = all_gather(stack, "torchao.float8_all_gather")
        shards = gathered(stack)
        # what products read: codes, and the scale by whose float32 number the sum is divided
        expected = torch.stack([shard._data.float() / shard._scale for shard in shards]).to(stack.dtype)
        assert one_nan(found.float().numpy()).tobytes() == one_nan(expected.float().numpy()).tobytes(), special
        if dtype == "float32":
            own = torch.stack([shard.to_original_precision() for shard in shards])
            assert one_nan(own.numpy()).tobytes() == one_nan(found.numpy()).tobytes(), special


IMPORTS = """
import sys
sys.path.insert(0, "tests/support")
import torch
from ranks import one_nan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp
from qcore import distributed as law
"""

PROGRAM = """
mesh = init_device_mesh("cpu", (3,))
for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48, bias=False), torch.nn.Linear(48, 48, bias=False)).to(dtype)
    with torch.no_grad():
        model[1].weight.mul_(1e-9)
    stacks = [torch.stack(layer.weight.detach().chunk(3)).float().numpy() for layer in model]
    convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
    fully_shard(model, mesh=mesh)
    for precomputes in (False, True):
        if precomputes:
            precompute_float8_dynamic_scale_for_fsdp(model)
        for layer, stack in zip(model, stacks):
            (codes,), (scale,) = layer.weight._local_tensor.fsdp_pre_all_gather(mesh)
            found, expected = codes.float() / scale, law.all_gather(stack, "torchao.float8_all_gather")[rank]
            assert found.numpy().tobytes() == expected.tobytes(), (rank, dtype, precomputes)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_shards_of_fsdp(tmp_path):
    """What three processes of FSDP2 send, with scales that follow from the shards of all."""
    run_processes(IMPORTS, PROGRAM, 3, tmp_path / "store")
