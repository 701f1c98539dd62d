"""MLX 0.31.2: scales by the rule "nearest", which its pull request 4353 replaced by "rceil" in 0.32.

MLX takes the logarithm in float32. Far from 1 it is half an integer there also for numbers a little beside sqrt(2)
times a power of two, and these may get the lower power. Such numbers are left out.
"""

import numpy as np
import pytest

import qcore
from qcore import BlockScaled

mlx = pytest.importorskip("mlx.core")


def blocks(top):
    """Blocks whose largest numbers have many significands, all those next to sqrt(2) times `top` among them."""
    rng = np.random.default_rng(0)
    some = rng.integers(0, 2**23, 40_000) + (rng.integers(30, 230, 40_000) << 23)
    some = some.astype(np.int32).view(np.float32)
    some = some[np.abs(np.log2(some.astype(np.float64) / top) % 1 - 0.5) > 1e-5]
    near = np.arange(-200, 200, dtype=np.int32) + np.float32(top * 2**0.5).view(np.int32)
    largest = np.concatenate([some, near.view(np.float32)])
    x = largest[:, None] * rng.uniform(-1, 1, (len(largest), 32)).astype(np.float32)
    x[:, 5] = largest
    return x


@pytest.mark.parametrize(("mode", "element", "bits", "top"), [("mxfp8", "e4m3fn", 8, 448), ("mxfp4", "e2m1fn", 4, 6)])
def test_scales(mode, element, bits, top):
    x = blocks(top)
    packed, theirs = mlx.quantize(mlx.array(x), group_size=32, bits=bits, mode=mode)
    codes, scales = qcore.encode(x, BlockScaled(element, {-1: 32}, "nearest"))
    np.testing.assert_array_equal(np.array(theirs), scales)
    if bits == 8:
        np.testing.assert_array_equal(np.array(packed).view(np.uint8).reshape(codes.shape), codes)
