"""Blocks with scales of a format or micro-exponents: numbers, codes and scales have the same bits in all packages."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import some, usually
from support import OTHERS, assert_same_bits, by_numpy, to_torch

import qcore
import qjax
import qtorch
from benchmarks.support.inputs import hard_inputs
from qcore import parse

KEY = 0x1234_5678
TEXTS = [  # with a mode for JAX, which compiles for seconds
    ("nvfp4({-2:16,-1:16},law=torchao_0_18)", "nearest"),
    ("scaled(e2m1fn,{-1:16},scale=e5m2)", "up"),
    ("scaled(e4m3fn,{-1:32},scale=bfloat16)", "nearest"),
    ("scaled(fixed(8,0),{0:4},scale=e4m3fn,tensor_scale=float32)", "stochastic"),
    ("nvfp4(four_over_six=mae)", "nearest"),
    ("mx6", "nearest"),
    ("scaled(e2m1fn,{0:2,-1:12},sub_block={-1:4})", "stochastic"),
]


@some(*((i, 0) for i in range(7) if i not in (1, 2)), **{"text, mode": TEXTS, "every": [False, True]})
def test_numbers(text, mode, every):
    """In float32 in its mode in all packages, in float64 stochastically in torch; every mode in both is heavy."""
    modes = dict.fromkeys((mode, "nearest", "stochastic"))
    for dtype, chosen in ((np.float32, (mode,)), (np.float64, ("stochastic",))):
        for x in hard_inputs(parse(text), 4_000, dtype):
            for one in modes if every else chosen:
                expected = by_numpy(x, parse(text), one, KEY)
                for name, backend in OTHERS.items():
                    if name != "jax jit" or (one == mode and dtype == np.float32):
                        assert_same_bits(backend(x, parse(text), one, KEY), expected, f"{name} {one}")


@pytest.mark.parametrize("text", usually(("mx9",), (TEXTS[2][0], TEXTS[3][0], "mx9")))
def test_codes_and_scales(text):
    (x,) = hard_inputs(parse(text), 4_000)
    codes, scales = qcore.encode(x, text, "stochastic", key=3)
    decoded = qcore.decode(codes, text, scales=scales)
    compiled = torch.compile(lambda x: qtorch.encode(x, text, "stochastic", key=3), backend="eager")
    found = [
        (qtorch, qtorch.encode(to_torch(x), text, "stochastic", key=3)),
        (qtorch, compiled(to_torch(x))),
        (qjax, qjax.encode(jnp.asarray(x), text, "stochastic", key=3)),
    ]
    for one in (scales, found[0][1][1]):
        assert text != "mx9" or (one.flags.c_contiguous if isinstance(one, np.ndarray) else one.is_contiguous())
    for package, (found_codes, found_scales) in found:
        assert_same_bits(found_codes, codes)
        pairs = zip(found_scales, scales, strict=True) if isinstance(scales, tuple) else [(found_scales, scales)]
        for actual, expected in pairs:
            actual = actual.view(torch.int16) if getattr(actual, "dtype", None) is torch.uint16 else actual
            assert_same_bits(actual, np.asarray(expected))
        assert_same_bits(package.decode(found_codes, text, scales=found_scales), decoded)
