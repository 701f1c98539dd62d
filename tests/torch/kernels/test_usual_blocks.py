"""Kernels take fewer operations for parts of a tensor whose blocks are all usual; one other block changes its part."""

import numpy as np
import pytest
from covering import some, usually
from support import DTYPES, assert_same_bits, to_torch

import qcore
import qtorch
from qcore import parse
from qtorch._kernels.laws import rounding_kernel
from qtorch._rounding.plan import make_plan

FORMATS = ("mxfp8_e4m3", "scaled(e4m3fn,{0:32})", "scaled(e5m2,{0:16,1:16})", "scaled(e2m1fn,{1:None})", "nvfp4")
SMALL = {"float32": 1e-42, "bfloat16": 1e-39, "float16": 1e-7, "float64": 1e-320}


def tensor(dtype, shape):
    """Rows of numbers about 1; three blocks of others, and zeros."""
    x = np.random.default_rng(0).standard_normal(shape)
    x[-40:, -40:] *= SMALL[dtype]
    x[0, 1], x[shape[0] // 2, 2], x[:, 100:140] = np.nan, np.inf, 0
    return x.astype(DTYPES[dtype])


@some(
    *((0, text, dtype) for text in range(5) for dtype in range(text % 4, 4, 4)),
    mode=["nearest", "up", "stochastic"],
    text=FORMATS,
    dtype=[*DTYPES],
)
def test_one_block_that_is_not_usual(mode, text, dtype):
    key = 3 if mode == "stochastic" else None
    for shape in ((160, 400), (3, 40_000)):  # the second is shared in parts: its rows are blocks, or few
        x = tensor(dtype, shape)
        actual = qtorch.quantize(to_torch(x), text, mode, key=key)
        assert_same_bits(actual, qcore.quantize(x, text, mode, key=key), str(shape))


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(one, marks=pytest.mark.heavy) for one in ("bfloat16", "float64"))]
)
@pytest.mark.parametrize("text", usually(FORMATS[::2], FORMATS))
def test_codes_of_one_block_that_is_not_usual(text, dtype):
    x = tensor(dtype, (160, 400))
    (codes, scales), (expected, expected_scales) = qtorch.encode(to_torch(x), text), qcore.encode(x, text)
    assert (codes.numpy() == expected).all()
    if text != "nvfp4":
        assert (scales.numpy() == expected_scales).all()
    decoded = qtorch.decode(codes, text, to_torch(x).dtype, scales=scales)
    assert_same_bits(decoded, qcore.decode(expected, text, x.dtype, scales=expected_scales))


def test_kernels_for_usual_blocks_do_less():
    for text, layout in (("mxfp8_e4m3", "tiles of 32 columns"), ("nvfp4", "tiles of 16 columns")):
        for dtype in DTYPES:
            plan = make_plan(parse(text), "nearest", to_torch(np.zeros(1, DTYPES[dtype])).dtype, None, False)
            kernel = rounding_kernel(plan.kernels.compiled[0], layout)
            source = kernel.source()
            passes = [source.partition(f" {name}(")[2].partition("\n}\n")[0] for name in ("elements", "elements_usual")]
            passes += [source.partition(f" block_values{end}(")[2].partition("\n}\n")[0] for end in ("", "_usual")]
            whole, usual = passes[0] + passes[2], passes[1] + passes[3]
            assert 0 < usual.count("const") < whole.count("const")
