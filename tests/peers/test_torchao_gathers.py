"""torchao's float8 all-gather of FSDP's shards: its own functions on a CPU."""

import numpy as np
import pytest
import torch
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
