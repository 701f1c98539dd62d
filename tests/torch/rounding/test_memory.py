"""What kernels may read: tensors on one device, of known dtypes, at aligned addresses. Others ended the process."""

import warnings

import numpy as np
import pytest
import torch
from covering import usually
from support import assert_same_bits

import qcore
import qtorch
from qcore.affine import UINT8, QParams
from qtorch import insight, linalg, quantization, reproducible

X, SCALE, ZERO = torch.arange(12.0).reshape(3, 4), torch.tensor(0.5), torch.tensor(0, dtype=torch.int32)
SCALES, ZEROS = torch.full((4,), 0.5), torch.zeros(4, dtype=torch.int32)
CODES, BLOCK_SCALES = qtorch.encode(torch.ones(2, 32), "mxfp4")
NV_CODES, (NV_SCALES, NV_SCALE) = qtorch.encode(torch.ones(2, 32), "nvfp4")


def elsewhere(x):
    return x.to("meta")


def fake(scale, zero_point):
    return quantization.fake_quantize_per_tensor_affine(X, scale, zero_point, -128, 127)


def fake_channels(scale, zero_point):
    return quantization.fake_quantize_per_channel_affine(X, scale, zero_point, 1, -128, 127)


def fake_module(name):
    module = quantization.FakeQuantize()
    module(X)
    setattr(module, name, elsewhere(getattr(module, name)))
    return module(X)


ON_ANOTHER_DEVICE = {
    "scale": [
        lambda: fake(elsewhere(SCALE), ZERO),
        lambda: fake_channels(elsewhere(SCALES), ZEROS),
        lambda: fake_module("scale"),
        lambda: quantization.quantize_per_tensor(X, elsewhere(SCALE), ZERO, torch.quint8),
        lambda: quantization.quantize_per_channel(X, elsewhere(SCALES), ZEROS, 1, torch.quint8),
        lambda: quantization.QTensor(CODES, QParams(elsewhere(SCALE), ZERO), UINT8),
    ],
    "zero_point": [
        lambda: fake(SCALE, elsewhere(ZERO)),
        lambda: fake(0.5, elsewhere(ZERO.long())),
        lambda: fake_channels(SCALES, elsewhere(ZEROS)),
        lambda: fake_module("zero_point"),
        lambda: quantization.quantize_per_tensor(X, SCALE, elsewhere(ZERO), torch.quint8),
        lambda: quantization.QTensor(CODES, QParams(SCALE, elsewhere(ZERO)), UINT8),
    ],
    "scales": [
        lambda: qtorch.decode(CODES, "mxfp4", scales=elsewhere(BLOCK_SCALES)),
        lambda: qtorch.decode(NV_CODES, "nvfp4", scales=(elsewhere(NV_SCALES), NV_SCALE)),
    ],
    r"scales\[1\]": [lambda: qtorch.decode(NV_CODES, "nvfp4", scales=(NV_SCALES, elsewhere(NV_SCALE)))],
    "b": [lambda: linalg.matmul(X, elsewhere(X.T))],
    "bias": [lambda: linalg.linear(X, X, elsewhere(torch.ones(3)))],
    "y": [lambda: insight.statistics_between(X, elsewhere(X), "e5m2")],
}


@pytest.mark.parametrize("name", ON_ANOTHER_DEVICE)
def test_arguments_on_another_device(name):
    for call in ON_ANOTHER_DEVICE[name]:
        with pytest.raises(ValueError, match=f"^{name} is on meta; allowed is the device of"):
            call()


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch will remove its quantized tensors
        return torch.quantize_per_tensor(torch.ones(2, 1), 0.5, 0, torch.quint8)


BYTES = torch.ones(2, 1, dtype=torch.uint8)
NO_CODES = [
    quantized(),
    BYTES.bool(),
    BYTES.view(torch.bits8),
    BYTES.view(torch.uint4),
    BYTES.to_sparse(),
    BYTES.float(),
]


@pytest.mark.parametrize("codes", NO_CODES, ids=lambda codes: f"{codes.dtype} {codes.layout}")
def test_tensors_that_hold_no_codes(codes):
    for name, call in (
        ("codes", lambda: qtorch.pack(codes, 8)),
        ("packed", lambda: qtorch.unpack(codes, 8, 1)),
        ("codes", lambda: qtorch.decode(codes, "e5m2")),
        ("scales", lambda: qtorch.decode(CODES, "mxfp4", scales=codes)),
    ):
        with pytest.raises(TypeError, match=f"^{name} is a .*allowed"):
            call()


def misaligned(x):
    """The same numbers at an odd address."""
    content = bytearray(1) + x.contiguous().view(torch.uint8).numpy().tobytes()
    result = torch.frombuffer(content, dtype=x.dtype, offset=1).reshape(x.shape)
    assert result.data_ptr() % x.element_size()
    return result


ACCUMULATORS = [
    None,
    qcore.Accumulator(qcore.FloatingPoint(5, 10), chunk=4),
    qcore.Accumulator(qcore.FloatingPoint(8, 7), chunk=1),
]


@pytest.mark.parametrize("dtype", usually(("float32",), ("float32", "float64", "float16", "bfloat16")))
def test_misaligned_tensors_have_the_same_bits(dtype):
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    y = misaligned(x)
    for number, settings in {"e5m2": {}, "posit8": {"key": 3, "rounding": "stochastic"}, "nvfp4": {}}.items():
        assert_same_bits(qtorch.quantize(y, number, **settings), qtorch.quantize(x, number, **settings))
    one, another = (quantization.fake_quantize_per_tensor_affine(z, 0.1, 3, 0, 255) for z in (x, y))
    assert_same_bits(one, another)
    scale, zero_point = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
    parameters = misaligned(scale), misaligned(zero_point)
    assert_same_bits(quantization.fake_quantize_per_tensor_affine(x, *parameters, 0, 255), one)
    key = torch.tensor([1, 2], dtype=torch.int32)
    one, another = (qtorch.quantize(x, "e5m2", "stochastic", key=k) for k in (key, misaligned(key)))
    assert_same_bits(one, another)
    if dtype == "float32":
        for accumulator in ACCUMULATORS:
            first, second = (linalg.matmul(z, z.T, accumulator=accumulator) for z in (x, y))
            assert_same_bits(first, second)
        assert_same_bits(linalg.matmul(y.expand(2, 3, 8), x.T), linalg.matmul(x.expand(2, 3, 8), x.T))
        assert_same_bits(reproducible.sum(y, 0), reproducible.sum(x, 0))
        assert_same_bits(reproducible.exp(y), reproducible.exp(x))
        found, expected = (insight.statistics_of(z, "e4m3fn") for z in (y, x))
        assert np.array_equal(found.lanes, expected.lanes)


def test_codes_and_scales_at_odd_addresses():
    codes, scales = qtorch.encode(torch.randn(2, 32), "mxfp4")
    wide = codes.to(torch.int32)
    assert_same_bits(
        qtorch.decode(misaligned(wide), "mxfp4", scales=misaligned(scales.int())),
        qtorch.decode(wide, "mxfp4", scales=scales),
    )
