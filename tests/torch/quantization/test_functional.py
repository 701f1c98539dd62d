"""Linear layers and convolutions by integers: the law on exact sums, and torch's own kernels."""

import warnings

import numpy as np
import pytest
import torch
from quantization_support import torch_engine
from support import assert_same_bits

from qcore import affine as reference
from qcore.affine import INT8, UINT8, QParams
from qtorch.quantization import QTensor, conv2d, linear, quantize_per_channel, quantize_per_tensor


def operands(shape, weight_shape, per_channel, signed, zero=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(size, generator=generator) for size in (shape, weight_shape))
    x = quantize_per_tensor(x, 0.03, -7 if signed else 121, torch.qint8 if signed else torch.quint8)
    if not per_channel:
        return x, quantize_per_tensor(w, 0.02, zero, torch.qint8), None
    bias = torch.randn(weight_shape[0], generator=generator)
    scales = w.abs().flatten(1).amax(1) / 127
    return x, quantize_per_channel(w, scales, torch.arange(len(w)) * zero, 0, torch.qint8), bias


def whole(q):
    """The integers of a tensor without its zero point, exactly, in float64."""
    zero = q.qparams.zero_point.double()
    return q.values.double() - (zero.reshape(-1, *(1,) * (q.ndim - 1)) if zero.ndim else zero)


def by_the_law(sums, x, w, bias, scale, zero_point, form):
    scales = (x.qparams.scale.numpy(), w.qparams.scale.numpy(), None if bias is None else bias.numpy())
    return reference.requantize(sums.numpy().astype(np.int32), *scales, QParams.of(scale, zero_point), form)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("per_channel", "zero"), [(False, 0), (False, 5), (True, 0), (True, 1)])
def test_linear(per_channel, zero, signed):
    x, w, bias = operands((3, 11, 50), (24, 50), per_channel, signed, zero)
    form = INT8 if signed else UINT8
    expected = by_the_law(whole(x) @ whole(w).t(), x, w, bias, 0.05, 10, form)
    q = linear(x, w, bias, 0.05, 10)
    assert q.int_repr().tolist() == expected.tolist()
    assert (q.shape, q.form, q.q_zero_point()) == ((3, 11, 24), form, 10)
    like = linear(x, w, bias)
    assert (like.q_scale(), like.q_zero_point()) == (x.q_scale(), x.q_zero_point())


def test_sums_at_the_ends_of_the_range():
    """255 * -128 and its like, where multipliers of 16 bits would saturate."""
    x = quantize_per_tensor(torch.full((4, 64), 255.0), 1.0, 0, torch.quint8)
    w = quantize_per_tensor(torch.full((8, 64), -128.0), 1.0, 0, torch.qint8)
    assert (linear(x, w, None, 2.0**14, 255).values == 255 - 128).all()
    assert whole(x)[0] @ whole(w)[0] == -(2**14) * 127.5


CONVOLUTIONS = {
    "plain": {},
    "uneven": {"stride": (2, 1), "padding": (1, 2)},
    "dilated": {"padding": 2, "dilation": (2, 1)},
    "groups": {"groups": 2, "padding": 1},
    "each channel": {"groups": 8, "stride": 2},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(("per_channel", "zero"), [(False, 5), (True, 0)])
def test_conv2d(name, per_channel, zero):
    settings = CONVOLUTIONS[name]
    x, w, bias = operands((2, 8, 9, 11), (16, 8 // settings.get("groups", 1), 3, 2), per_channel, False, zero)
    sums = torch.nn.functional.conv2d(whole(x), whole(w), **settings).permute(0, 2, 3, 1)
    expected = by_the_law(sums, x, w, bias, 0.2, 50, UINT8)
    q = conv2d(x, w, bias, **settings, scale=0.2, zero_point=50)
    assert q.int_repr().permute(0, 2, 3, 1).tolist() == expected.tolist()


@pytest.mark.parametrize(("mode", "of_numpy"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")])
def test_padding_modes(mode, of_numpy):
    """As if the images had been larger; what lies in memory with channels last as well."""
    x, w, bias = operands((2, 8, 4, 3), (6, 8, 3, 2), True, False)
    larger = np.pad(x.values.numpy(), ((0, 0), (0, 0), (3, 3), (2, 2)), of_numpy)
    expected = conv2d(QTensor(torch.from_numpy(larger), x.qparams, x.form), w, bias, scale=0.2, zero_point=50)
    moved = QTensor(x.values.contiguous(memory_format=torch.channels_last), x.qparams, x.form)
    for images in (x, moved):
        q = conv2d(images, w, bias, padding=(3, 2), padding_mode=mode, scale=0.2, zero_point=50)
        assert q.int_repr().tolist() == expected.int_repr().tolist()


def peers(x, w):
    """The same as tensors of torch's own quantized types, which warn that they are deprecated."""
    values = x.dequantize(), w.dequantize()
    if w.qparams.axis is None:
        weight = torch.quantize_per_tensor(values[1], w.q_scale(), w.q_zero_point(), torch.qint8)
    else:
        scales, zeros = w.q_per_channel_scales().double(), w.q_per_channel_zero_points().long()
        weight = torch.quantize_per_channel(values[1], scales, zeros, 0, torch.qint8)
    return torch.quantize_per_tensor(values[0], x.q_scale(), x.q_zero_point(), torch.quint8), weight


def in_seven_bits(x):
    """So that torch's engine adds no two products up that are more than 16 bits, where a processor has no VNNI."""
    return QTensor(x.values // 2, x.qparams, x.form)


@pytest.mark.parametrize("per_channel", [False, True])
def test_within_a_step_of_torch(per_channel):
    with warnings.catch_warnings(), torch_engine("qnnpack"):
        warnings.simplefilter("ignore")
        x, w, bias = operands((300, 64), (48, 64), per_channel, False)
        x = in_seven_bits(x)
        peer, weight = peers(x, w)
        packed = torch.ops.quantized.linear_prepack(weight, bias)
        expected = torch.ops.quantized.linear(peer, packed, 0.05, 10).int_repr()
        assert (linear(x, w, bias, 0.05, 10).values.int() - expected.int()).abs().max() <= 1
        x, w, bias = operands((4, 8, 12, 12), (16, 4, 3, 3), per_channel, False)
        x = in_seven_bits(x)
        peer, weight = peers(x, w)
        packed = torch.ops.quantized.conv2d_prepack(weight, bias, [2, 1], [1, 2], [1, 1], 2)
        expected = torch.ops.quantized.conv2d(peer, packed, 0.2, 50).int_repr()
        own = conv2d(x, w, bias, (2, 1), (1, 2), 1, 2, scale=0.2, zero_point=50)
        assert (own.values.int() - expected.int()).abs().max() <= 1


X, W, BIAS = operands((2, 4), (3, 4), True, False)
IMAGES, FILTERS, _ = operands((1, 4, 5, 5), (6, 2, 3, 3), False, False)
WRONG = [
    (lambda: linear(X.dequantize(), W), TypeError, "input is a Tensor; allowed is a QTensor"),
    (
        lambda: linear(X, quantize_per_tensor(torch.ones(3, 4), 1.0, 0, torch.qint32)),
        TypeError,
        r"weight has .*int32",
    ),
    (
        lambda: linear(X, FILTERS),
        ValueError,
        "weight has shape .* allowed are 2 dim",
    ),
    (lambda: linear(X.view(4, 2), W), ValueError, r"input has shape \(4, 2\); allowed is \(\.\.\., 4\)"),
    (lambda: linear(W, W), ValueError, "input has axis=0; allowed is None"),
    (lambda: linear(X, W, BIAS[:2]), ValueError, r"bias has shape \(2,\); allowed is \(3,\)"),
    (lambda: linear(X, W, BIAS.double()), TypeError, "bias is float64"),
    (lambda: linear(X, W, [1.0]), TypeError, "bias is a list; allowed is a float32 tensor or None"),
    (
        lambda: conv2d(IMAGES, FILTERS, 3, groups=2),
        TypeError,
        "bias is a int; allowed is a float32 tensor or None",
    ),
    (lambda: linear(X, W, BIAS, -1.0, 0), ValueError, "scale=-1"),
    (lambda: linear(X, W, BIAS, 1.0, 300), ValueError, "zero_point=300"),
    (lambda: conv2d(IMAGES, FILTERS), ValueError, "groups=1; allowed are"),
    (lambda: conv2d(IMAGES, FILTERS, groups=0), ValueError, "groups=0"),
    (lambda: conv2d(IMAGES, FILTERS, groups=2, stride=0), ValueError, "stride=0"),
    (
        lambda: conv2d(IMAGES, FILTERS, groups=2, stride=(1, 1, 1)),
        ValueError,
        r"stride=\(1, 1, 1\); allowed are one number or two",
    ),
    (lambda: conv2d(IMAGES, FILTERS, groups=2, padding=-1), ValueError, "padding=-1"),
    (
        lambda: conv2d(IMAGES, FILTERS, groups=2, dilation=3),
        ValueError,
        r"allowed are images no smaller .* dilation=\(3, 3\)",
    ),
    (
        lambda: conv2d(IMAGES, FILTERS, groups=2, padding=(0, 6), padding_mode="circular"),
        ValueError,
        "padding_mode='circular'; allowed are paddings of up to 5 of a size of 5",
    ),
    (
        lambda: conv2d(IMAGES, FILTERS, groups=2, padding_mode="mirror"),
        ValueError,
        "padding_mode='mirror'; allowed are zeros, reflect, replicate, circular",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_dequantized_results_are_those_of_floats():
    """Within the steps of input, weight and result."""
    x, w, bias = operands((20, 30), (5, 30), True, False)
    floats = torch.nn.functional.linear(x.dequantize(), w.dequantize(), bias)
    assert (linear(x, w, bias, 0.2, 128).dequantize() - floats).abs().max() <= 0.1001
    assert_same_bits(linear(x[:0], w, bias).dequantize(), np.zeros((0, 5), np.float32))
