"""MX blocks of gfloat (floor) and of torchao (all four rules), and its NVFP4: values and scales."""

import gfloat.formats
import numpy as np
import pytest
import torch
from covering import usually
from gfloat import quantize_block
from gfloat.block import compute_scale_amax
from peer_support import compare, same_numbers
from support import to_torch

import qcore
from benchmarks.support.inputs import hard_inputs
from qcore import NAMED, BlockScaled

mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
nvfp4_tensor = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
Rules = pytest.importorskip("torchao.prototype.mx_formats.config").ScaleCalculationMode

GFLOAT = {
    "mxfp8_e4m3": gfloat.formats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": gfloat.formats.format_info_mxfp8_e5m2,
    "mxfp6_e2m3": gfloat.formats.format_info_mxfp6_e2m3,
    "mxfp6_e3m2": gfloat.formats.format_info_mxfp6_e3m2,
    "mxfp4": gfloat.formats.format_info_mxfp4_e2m1,
    "mxint8": gfloat.formats.format_info_mxint8,
}
TORCHAO = {
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}


def blocks(name, count=120_000):
    """Hard inputs for a format, in blocks of 32."""
    (x,) = hard_inputs(NAMED[name][0], count)
    x = x.reshape(-1, x.shape[-1])
    return np.ascontiguousarray(x[:, : x.shape[1] // 32 * 32]).reshape(-1, 32)


@pytest.mark.parametrize("name", usually([*GFLOAT][::2], GFLOAT))
def test_gfloat(name):
    x = blocks(name, 30_000)
    x = x[np.isfinite(x).all(1)].astype(np.float64)
    expected = np.stack([quantize_block(GFLOAT[name], block, compute_scale_amax) for block in x])
    actual = qcore.quantize(x, name, "nearest")
    if name == "mxint8":  # whose zeros have no sign in gfloat
        actual, expected = actual + 0.0, expected + 0.0
    assert len(x) > 500
    assert same_numbers(actual, expected).all()


def by_torchao(x, name, rule):
    """Values, and E8M0 codes of scales."""
    tensor = mx_tensor.MXTensor.to_mx(to_torch(x), TORCHAO[name], 32, getattr(Rules, rule.upper()))
    return tensor.dequantize(torch.float32).numpy(), tensor.scale.view(torch.uint8).numpy().reshape(-1)


def infinity(number, x, scales):
    """OCP leaves a block with an infinity to the implementation's NaN; torchao makes numbers of some elements."""
    return np.isinf(x).any(1) & ~np.isnan(x).any(1)


def logarithm(number, x, scales):
    """rceil: torchao takes the ceiling of a float32 logarithm, which of a quotient just above a power of two is whole,
    and its scale is too small by half."""
    largest = qcore.decode(np.uint8([number.element.magnitudes.largest_code]), number.element)
    above = np.abs(x).max(1) / largest
    log2 = torch.log2(torch.from_numpy(above)).numpy()
    exact = np.abs(x).max(1).astype(np.float64) / largest
    return (number.rule == "rceil") & (log2 == np.floor(log2)) & (np.frexp(exact)[0] != 0.5) & (scales > 0)


def subnormal(number, x, scales):
    """The scale 2^-127 is a subnormal float32 number: torchao divides by 2^-126 in its place, or makes all zero."""
    wide = x.astype(np.float64)
    theirs = qcore.quantize(wide / 2 if number.rule != "rceil" else wide * 0, number, "nearest")
    return (scales == 0) & (theirs != qcore.quantize(wide, number, "nearest")).any(1)


def beyond(number, x, scales):
    """A product beyond float32's range is infinity there, here the largest number of the element's precision."""
    wide = qcore.quantize(x.astype(np.float64), number, "nearest")
    return (np.abs(wide) > np.finfo(np.float32).max).any(1)


# How many there are of 3423 blocks.
COUNTS = {
    ("mxfp8_e4m3", "floor"): {"infinity": 129, "subnormal": 240},
    ("mxfp8_e4m3", "ceil"): {"infinity": 129, "subnormal": 194, "beyond": 4},
    ("mxfp8_e4m3", "even"): {"infinity": 129, "subnormal": 235, "beyond": 4},
    ("mxfp8_e4m3", "rceil"): {"infinity": 129, "logarithm": 156, "subnormal": 217, "beyond": 4},
    ("mxfp8_e5m2", "floor"): {"infinity": 129, "subnormal": 397},
    ("mxfp8_e5m2", "ceil"): {"infinity": 129, "subnormal": 367, "beyond": 8},
    ("mxfp8_e5m2", "even"): {"infinity": 129, "subnormal": 391, "beyond": 8},
    ("mxfp8_e5m2", "rceil"): {"infinity": 129, "logarithm": 278, "subnormal": 391, "beyond": 8},
    ("mxfp6_e2m3", "floor"): {"infinity": 129, "subnormal": 82},
    ("mxfp6_e2m3", "ceil"): {"infinity": 129, "subnormal": 82, "beyond": 15},
    ("mxfp6_e2m3", "even"): {"infinity": 129, "subnormal": 82, "beyond": 15},
    ("mxfp6_e2m3", "rceil"): {"infinity": 129, "logarithm": 272, "subnormal": 82, "beyond": 15},
    ("mxfp6_e3m2", "floor"): {"infinity": 129, "subnormal": 82},
    ("mxfp6_e3m2", "ceil"): {"infinity": 129, "subnormal": 82, "beyond": 19},
    ("mxfp6_e3m2", "even"): {"infinity": 129, "subnormal": 82, "beyond": 19},
    ("mxfp6_e3m2", "rceil"): {"infinity": 129, "logarithm": 291, "subnormal": 82, "beyond": 19},
    ("mxfp4", "floor"): {"infinity": 129, "subnormal": 82},
    ("mxfp4", "ceil"): {"infinity": 129, "subnormal": 82, "beyond": 22},
    ("mxfp4", "even"): {"infinity": 129, "subnormal": 82, "beyond": 22},
    ("mxfp4", "rceil"): {"infinity": 129, "logarithm": 344, "subnormal": 82, "beyond": 22},
}


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", TORCHAO)
def test_torchao(name, rule):
    x = blocks(name)
    theirs, their_scales = by_torchao(x, name, rule)
    number = BlockScaled(NAMED[name][0].element, {-1: 32}, rule)
    ours, (_, scales) = qcore.quantize(x, number, "nearest"), qcore.encode(x, number)
    scales = scales.ravel()
    with np.errstate(all="ignore"):
        known = {why.__name__: why(number, x, scales) for why in (infinity, logarithm, subnormal, beyond)}
    first = {why: known[why] for why in ("infinity", "logarithm")}
    counts = compare(np.arange(len(x)), scales == their_scales, first, f"{name} {rule}, scales")
    rest = ~first["logarithm"]
    second = {why: where[rest] for why, where in known.items() if why != "logarithm"}
    same = same_numbers(ours, theirs).all(1)[rest]
    values = compare(np.flatnonzero(rest), same, second, f"{name} {rule}, values")
    assert counts | values == COUNTS[name, rule]


def nvfp4_inputs(exponent):
    """Normal numbers, of rows of mixed size; numbers and midpoints of e2m1 in blocks of mixed size; eighths."""
    rng = np.random.default_rng(exponent + 60)
    normal = rng.standard_normal((1024, 64))
    ties = rng.choice([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6], (1024, 64))
    ties *= rng.choice([-1, 1], ties.shape) * np.repeat(np.exp2(rng.integers(-12, 7, (1024, 4))), 16, 1)
    rows = normal * np.exp2(rng.uniform(-24, 0, (1024, 1)))
    rows[:8, ::2] = 0
    eighths = rng.integers(-64, 65, (1024, 64)) / 8
    return [np.float32(np.ldexp(x, exponent)) for x in (normal, rows, ties, eighths)]


@pytest.mark.parametrize("exponent", [-60, 0, 60])
def test_torchao_nvfp4(exponent):
    """Of finite numbers; from blocks whose scales are the array's largest down to such as are below the smallest."""
    seen = set()
    for x in nvfp4_inputs(exponent):
        whole = nvfp4_tensor.per_tensor_amax_to_scale(torch.tensor(np.abs(x).max()))
        theirs = nvfp4_tensor.NVFP4Tensor.to_nvfp4(to_torch(x), per_tensor_scale=whole)
        codes, (scales, scale) = qcore.encode(x, "nvfp4(law=torchao_0_18)")
        numbers = qcore.quantize(x, "nvfp4(law=torchao_0_18)", "nearest")
        assert same_numbers(numbers, theirs.dequantize(torch.float32).numpy()).all()
        np.testing.assert_array_equal(theirs.scale.view(torch.uint8).numpy().reshape(scales.shape), scales)
        np.testing.assert_array_equal(theirs.qdata.numpy(), qcore.pack(codes, 4))
        assert whole.item() == scale
        seen |= {*scales.ravel().tolist()}
    assert {8, 0x7E} <= seen  # 2^-6 and 448


def test_torchao_scales_of_one_level():
    number = BlockScaled("e2m1fn", {-1: 16}, "torchao_0_18", "e4m3fn")
    for x in nvfp4_inputs(0):
        theirs, packed = nvfp4_tensor.nvfp4_quantize(to_torch(x))
        codes, scales = qcore.encode(x, number)
        np.testing.assert_array_equal(theirs.view(torch.uint8).numpy().reshape(scales.shape), scales)
        np.testing.assert_array_equal(packed.view(torch.uint8).numpy(), qcore.pack(codes, 4))
