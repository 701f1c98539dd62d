"""Sums of products of 8-bit integers by the kernel in C, and without it: both exact."""

import numpy as np
import pytest
import torch
from support import assert_same_bits

from qcore.affine import INT8, UINT8, AffineInteger, QParams, requantize
from qtorch._affine import products
from qtorch._affine.functional import linear_to
from qtorch._affine.products import sums_of_products, sums_of_windows
from qtorch.quantization import QTensor, conv2d, linear


@pytest.fixture(params=["kernel", "floats", "int8"], autouse=True)
def path(request, monkeypatch):
    """Whatever this processor has; "int8" is torch's products."""
    monkeypatch.setattr(products, "multiplies_int8", lambda device: request.param == "int8")
    if request.param != "kernel":
        monkeypatch.setattr(products, "is_there", lambda: False)
    elif not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("the kernel is for AVX")


def operand(rng, shape, form, zeros=()):
    values = rng.integers(form.qmin, form.qmax + 1, shape).astype(form.storage)
    zero_point = rng.integers(form.qmin, form.qmax + 1, zeros).astype(np.int32)
    scale = torch.full(zeros, 0.5)
    return QTensor(torch.from_numpy(values), QParams(scale, torch.tensor(zero_point), 0 if zeros else None), form)


def differences(q):
    zero = q.qparams.zero_point.numpy().astype(np.int64)
    return q.values.numpy() - zero.reshape(-1, *(1,) * (q.ndim - 1) if zero.ndim else ())


@pytest.mark.parametrize(("rows", "outputs", "terms"), [(1, 1, 1), (5, 17, 2), (49, 16, 33), (97, 130, 515), (3, 0, 4)])
@pytest.mark.parametrize("form", [UINT8, INT8])
def test_products(rows, outputs, terms, form):
    rng = np.random.default_rng(rows)
    for weight_form, zeros in ((INT8, ()), (UINT8, (outputs,))):
        x, w = operand(rng, (rows, terms), form), operand(rng, (outputs, terms), weight_form, zeros)
        sums = sums_of_products(x, w)
        np.testing.assert_array_equal(sums.numpy().astype(np.int64), differences(x) @ differences(w).T)
        strided = sums_of_products(x._with(x.values.t().contiguous().t()), w)
        np.testing.assert_array_equal(strided.numpy(), sums.numpy())


def test_the_largest_sums_of_int32():
    """33,025 products of 255 * 255."""
    ones = torch.ones(16, 33025, dtype=torch.int8)
    x = QTensor(ones.byte() * 255, QParams(torch.tensor(1.0), torch.tensor(0).int()), UINT8)
    for value, zero in ((127, -128), (-128, 127)):
        w = QTensor(ones[:3] * value, QParams(torch.tensor(1.0), torch.tensor(zero).int()), INT8)
        assert products.fits_int32(x, w, 33025)
        sums = sums_of_products(x, w).double().numpy()
        np.testing.assert_array_equal(sums, np.full((16, 3), 33025.0 * 255 * (value - zero)))


GEOMETRIES = [((1, 1), (0, 0), (1, 1)), ((2, 1), (1, 2), (1, 1)), ((1, 3), (2, 0), (2, 1)), ((1, 1), (0, 3), (1, 3))]


@pytest.mark.parametrize(("stride", "padding", "dilation"), GEOMETRIES)
@pytest.mark.parametrize("last", [False, True])
def test_windows(stride, padding, dilation, last):
    rng = np.random.default_rng(1)
    for kernel_size in ((3, 2), (1, 1)):
        x, w = operand(rng, (3, 5, 9, 8), UINT8), operand(rng, (7, 5, *kernel_size), INT8, (7,))
        wide = [torch.from_numpy(differences(q)).double() for q in (x, w)]
        expected = torch.nn.functional.conv2d(*wide, None, stride, padding, dilation).movedim(1, -1)
        x = x._with(x.values.contiguous(memory_format=torch.channels_last)) if last else x
        assert_same_bits(sums_of_windows(x, w, stride, padding, dilation, 1).double(), expected.contiguous())


@pytest.mark.parametrize(("stride", "padding", "dilation"), GEOMETRIES)
@pytest.mark.parametrize("channels", [16, 21, 3])
def test_single_channels(stride, padding, dilation, channels):
    rng = np.random.default_rng(1)
    for form, kernel_size in ((UINT8, (3, 2)), (INT8, (1, 1)), (INT8, (3, 3))):
        x, w = operand(rng, (3, channels, 9, 8), form), operand(rng, (channels, 1, *kernel_size), INT8, (channels,))
        wide = [torch.from_numpy(differences(q)).double() for q in (x, w)]
        expected = torch.nn.functional.conv2d(*wide, None, stride, padding, dilation, channels).movedim(1, -1)
        sums = sums_of_windows(x, w, stride, padding, dilation, channels)
        assert_same_bits(sums.double(), expected.contiguous())


@pytest.mark.parametrize("form", [UINT8, INT8, AffineInteger(-5, 9), AffineInteger.of_width(16)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_rounded_sums(form, biased):
    """Linear layers and convolutions beside the law in NumPy, with ties and beyond both ends of the range."""
    rng = np.random.default_rng(3)
    for outputs, groups in ((21, 1), (16, 1), (5, 1), (32, 32)):
        x = operand(rng, (17, outputs if groups > 1 else 7, 3, 3), UINT8)
        w = operand(rng, (outputs, x.shape[1] // groups, 2, 2), INT8, (outputs,))
        scales = 2.0 ** rng.integers(-3, 1, outputs)
        w = QTensor(w.values, QParams(torch.tensor(scales, dtype=torch.float32), w.qparams.zero_point, 0), INT8)
        bias = torch.tensor(rng.integers(-999, 999, outputs) / 8, dtype=torch.float32) if biased else None
        output = QParams(torch.tensor(64.0), torch.tensor(3, dtype=torch.int32))
        images = conv2d(x, w, bias, groups=groups, scale=64.0, zero_point=3, dtype=form)
        wide = [torch.from_numpy(differences(q)).double() for q in (x, w)]
        sums = torch.nn.functional.conv2d(*wide, groups=groups).movedim(1, -1).numpy().astype(np.int32)
        given = np.float32(0.5), w.qparams.scale.numpy(), None if bias is None else bias.numpy()
        expected = requantize(sums, *given, QParams(*(one.numpy() for one in (output.scale, output.zero_point))), form)
        assert_same_bits(images.values.movedim(1, -1).contiguous(), expected)
        if groups == 1 and form != INT8:
            rows = QTensor(x.values.flatten(1), x.qparams, UINT8)
            flat = QTensor(w.values.repeat(1, 1, 2, 2)[:, :, :3, :3].flatten(1), w.qparams, INT8)
            sums = (differences(rows) @ differences(flat).T).astype(np.int32)
            expected = requantize(sums, *given, QParams(np.float32(64.0), np.int32(3)), form)
            assert_same_bits(linear_to(rows, flat, bias, output, form).values, expected)


def test_errors_of_rounding():
    rng = np.random.default_rng(4)
    x, w = operand(rng, (17, 7), UINT8), operand(rng, (5, 7), INT8)
    with pytest.raises(ValueError, match=r"bias has shape \(4,\); allowed is \(5,\)"):
        linear(x, w, torch.zeros(4))
    with pytest.raises(TypeError, match="bias is float64"):
        linear(x, w, torch.zeros(5, dtype=torch.float64))


def test_no_images():
    rng = np.random.default_rng(2)
    x, w = operand(rng, (0, 5, 9, 8), UINT8), operand(rng, (7, 5, 3, 3), INT8)
    assert conv2d(x, w).shape == (0, 7, 7, 6)
