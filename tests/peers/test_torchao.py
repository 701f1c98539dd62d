"""The fp4 and fp6 kernels of torchao's MX formats."""

import numpy as np
import pytest
import torch
from peer_support import compare, inside, numbers_of, patterns, points, same_numbers

import qcore

kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")

KERNELS = {
    "e2m1fn": (kernels.f32_to_f4_unpacked, kernels.f4_unpacked_to_f32),
    "e2m3fn": (kernels.f32_to_f6_e2m3_unpacked, kernels.f6_e2m3_unpacked_to_f32),
    "e3m2fn": (kernels.f32_to_f6_e3m2_unpacked, kernels.f6_e3m2_unpacked_to_f32),
}


def nan(x):
    """The formats have no NaN. torchao rounds its bits like those of a number, and some number results; here
    `quantize` keeps it, and `encode` makes it 0."""
    return np.isnan(x)


def compared(x, name):
    encode, decode = KERNELS[name]
    codes = encode(torch.from_numpy(x))
    same = same_numbers(qcore.quantize(x, name, "nearest"), decode(codes).numpy())
    same_codes = qcore.encode(x, name) == codes.numpy()
    return compare(x, same, {"nan": nan(x)}, name), compare(x, same_codes, {"nan": nan(x)}, f"{name}, codes")


@pytest.mark.parametrize("name", KERNELS)
def test_points(name):
    assert compared(points(numbers_of(name)), name) == ({"nan": 10}, {"nan": 10})


@pytest.mark.parametrize("name", KERNELS)
def test_random(name):
    compared(patterns(), name)
    compared(inside(numbers_of(name)), name)


@pytest.mark.parametrize("name", KERNELS)
def test_all_codes_decoded(name):
    codes = np.arange(2 ** qcore.NAMED[name][0].bits, dtype=np.uint8)
    assert same_numbers(qcore.decode(codes, name), KERNELS[name][1](torch.from_numpy(codes)).numpy()).all()
