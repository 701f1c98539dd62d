"""Fake quantization of tensors: the bits of qcore.affine and of torch, forward and backward, on every path."""

from functools import partial

import numpy as np
import pytest
import torch
from affine_support import SPECIAL, ties
from covering import usually
from kernels_support import libraries
from support import DTYPES, assert_same_bits, bits, to_torch

from qcore import affine as reference
from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qtorch._affine import affine
from qtorch.quantization import FakeQuantize
from qtorch.quantization import fake_quantize_per_channel_affine as per_channel
from qtorch.quantization import fake_quantize_per_tensor_affine as per_tensor

FORMS = [AffineInteger.of_width(width, signed) for width in range(2, 17) for signed in (True, False)]
FORMS += [INT8.reduced(), UINT8.reduced(), AffineInteger(-5, 100)]


@pytest.fixture(params=["kernel", "ops"])
def path(request, monkeypatch):
    """With and without kernels; a kernel that cannot be made is an error, as its warning is one."""
    if request.param == "ops":
        for name in ("fake_quantize_on_cpu", "straight_through_on_cpu"):
            monkeypatch.setattr(affine, name, lambda *_: None)
    return request.param


def gradient_like(x):
    return np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype)


def check(run, x, qparams, form, message=""):
    """Forward and backward against NumPy's law; -0.0 and 0.0 differ."""
    with np.errstate(over="ignore"):
        expected, mask = reference.fake_quantize(x, qparams, form)
    tensor = to_torch(x).requires_grad_()
    y = run(tensor)
    assert_same_bits(y, expected, f"{message} forward")
    g = gradient_like(x)
    y.backward(to_torch(g))
    assert_same_bits(tensor.grad, np.where(mask, g, np.zeros((), g.dtype)), f"{message} backward")
    with torch.no_grad():
        assert_same_bits(run(to_torch(x)), expected, f"{message} without gradients")
    return y, expected


def test_millions_of_ties(path):
    """Every width and scheme, zero points even and odd: 4 million elements; torch's own op has the same bits."""
    rng = np.random.default_rng(1)
    count = 45_000 if path == "kernel" else 3000
    checked = 0
    for form in FORMS:
        even = int(rng.integers(form.qmin, form.qmax)) // 2 * 2
        for zero_point in (even, even + 1, form.middle):
            scale = np.float32(2.0 ** rng.uniform(-10, 4))
            x = ties(rng, scale, zero_point, form, count)
            settings = {"scale": float(scale), "zero_point": zero_point, "quant_min": form.qmin, "quant_max": form.qmax}
            run, peer = (partial(f, **settings) for f in (per_tensor, torch.fake_quantize_per_tensor_affine))
            _, expected = check(run, x, QParams.of(scale, zero_point), form, f"{form} {scale} {zero_point}")
            assert_same_bits(peer(torch.from_numpy(x)), expected)
            checked += x.size
    assert checked >= (4 * 10**6 if path == "kernel" else 10**5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_channels(path, axis):
    """Each layout of a kernel, on ties of each channel's own scale; torch's op where it does not overflow."""
    rng = np.random.default_rng(2)
    for form in FORMS[::4]:
        channels = 7
        scales = np.float32(2.0 ** rng.uniform(-10, 4, channels))
        zeros = rng.integers(form.qmin, form.qmax + 1, channels)
        columns = [ties(rng, *pair, form, 40 * 30 - 10) for pair in zip(scales, zeros, strict=True)]
        x = np.moveaxis(np.stack(columns).reshape(channels, 40, 30), 0, axis)
        tensors = torch.from_numpy(scales), torch.from_numpy(zeros)
        ends = {"quant_min": form.qmin, "quant_max": form.qmax}
        run = partial(per_channel, scale=tensors[0], zero_point=tensors[1], axis=axis, **ends)
        _, expected = check(run, x, QParams.of(scales, zeros, axis), form)
        peer = torch.fake_quantize_per_channel_affine(to_torch(x), tensors[0], tensors[1].int(), axis, *ends.values())
        with np.errstate(over="ignore"):
            fine = np.abs(np.moveaxis(x, axis, -1) * (1 / scales)) < 2.0**63
        assert (bits(peer) == bits(expected))[np.moveaxis(fine, -1, axis)].all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(path, dtype):
    rng = np.random.default_rng(3)
    for form, zero_point, scale in ((UINT8, 3, 0.37), (INT8, 0, 2.0**-9), (AffineInteger.of_width(12), 1001, 0.01)):
        with np.errstate(over="ignore"):
            x = ties(rng, np.float32(scale), zero_point, form, 5000).astype(DTYPES[dtype])
        run = partial(per_tensor, scale=scale, zero_point=zero_point, quant_min=form.qmin, quant_max=form.qmax)
        y, _ = check(run, x, QParams.of(scale, zero_point), form)
        assert str(y.dtype) == f"torch.{dtype}"


def test_special_numbers(path):
    """NaN gives qmin, without a gradient; infinities the ends; there is no negative zero."""
    x = torch.from_numpy(SPECIAL).requires_grad_()
    y = per_tensor(x, 0.5, 7, 0, 255)
    y.sum().backward()
    expected = np.float32([0, 0, 124, -3.5, -3.5, 124, -3.5, 0, 0, 124])
    assert_same_bits(y, expected)
    assert x.grad.tolist() == [1, 1, 0, 0, 0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_module_of_another_dtype(dtype):
    """The scale goes along, and is float32 again when it is used."""
    module = FakeQuantize()
    module(torch.linspace(-1, 1, 64))
    scale = module.to(dtype).scale.to(torch.float32)
    module.disable_observer()
    for x in (torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64, dtype=dtype)):
        assert_same_bits(module(x), per_tensor(x, scale, module.zero_point, 0, 255))


def test_masked_gradients(path):
    """What was clipped has the gradient 0.0 whatever comes; torch multiplies, which gives -0.0 and NaN."""
    x = torch.tensor([300.0, 300, 300, 1], requires_grad=True)
    per_tensor(x, 1, 0, 0, 255).backward(torch.tensor([-1.0, torch.inf, torch.nan, -2]))
    assert_same_bits(x.grad, np.float32([0, 0, 0, -2]))


STRIDED = {
    "scalar": lambda x: x[0, 0, 0, 0],
    "one": lambda x: x[:1, :1, :1, :1],
    "every other": lambda x: x[:, :, ::2],
    "columns": lambda x: x[..., 1],
    "transposed": lambda x: x.transpose(1, 3),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x[:1].expand(4, -1, -1, -1),
    "permuted gaps": lambda x: x.permute(3, 0, 2, 1)[:, :, 1:3],
    "empty": lambda x: x[:0],
}


def strides(x):
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


@pytest.mark.parametrize("name", STRIDED)
def test_strides(path, name):
    """Shapes and memory formats are those of torch's own op; gradients come in other formats than x."""
    base = torch.randn(4, 6, 5, 3, generator=torch.Generator().manual_seed(0)) * 9
    x = STRIDED[name](base).detach().requires_grad_()
    y = per_tensor(x, 0.3, 5, 0, 63)
    y.backward(torch.full(y.shape[::-1], 2.0).permute(tuple(reversed(range(y.ndim)))))
    expected, mask = reference.fake_quantize(x.detach().numpy(), QParams.of(0.3, 5), AffineInteger(0, 63))
    assert_same_bits(y, expected)
    assert_same_bits(x.grad, mask * np.float32(2))
    peer = torch.fake_quantize_per_tensor_affine(x.detach(), 0.3, 5, 0, 63)
    assert y.shape == peer.shape
    assert strides(y) == strides(peer)
    for axis in range(x.ndim):
        scales, zeros = torch.rand(x.shape[axis]) + 0.1, torch.arange(x.shape[axis]) % 8
        y = per_channel(x, scales, zeros, axis, 0, 63)
        qparams = QParams.of(scales.numpy(), zeros.numpy(), axis)
        assert_same_bits(y, reference.fake_quantize(x.detach().numpy(), qparams, AffineInteger(0, 63))[0])
        assert strides(y) == strides(peer)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, (1 << 15) - 1, (1 << 15) + 17])
def test_sizes_around_vectors_and_the_parallel_threshold(size):
    x = ties(np.random.default_rng(4), np.float32(0.1), 3, UINT8, size)[:size]
    check(lambda x: per_tensor(x, 0.1, 3, 0, 255), x, QParams.of(0.1, 3), UINT8)


def test_scales_and_zero_points_of_all_kinds():
    x = torch.randn(100) * 9
    expected = per_tensor(x, 0.1, 3, 0, 255)
    for scale in (0.1, torch.tensor(0.1), torch.tensor([0.1])):
        for zero_point in (3, torch.tensor(3), torch.tensor([3], dtype=torch.int32)):
            assert_same_bits(per_tensor(x, scale, zero_point, 0, 255), expected)
    scales = torch.stack([torch.tensor([0.1, 5.0]), torch.tensor([0.1, 7.0])])[:, 0]  # with a stride
    rows = per_channel(x.view(2, 50), scales, torch.tensor([3, 9, 3, 9])[::2], 0, 0, 255)
    assert_same_bits(rows.flatten(), expected)


def test_memory_that_changes_after_the_forward_pass():
    """Gradients belong to the numbers that were quantized, not to those that lie there later."""
    x, scale = torch.tensor([1.0, 300], requires_grad=True), torch.tensor([1.0])
    y = per_tensor(x, scale, 0, 0, 255)
    with torch.no_grad():
        x.fill_(1e9)
        scale.fill_(7)
    y.sum().backward()
    assert x.grad.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", usually(("float32",), ("float32", "bfloat16")))
def test_compiled(dtype):
    """Traced into a program, whose neighbours must not change a bit: a sum of products, and a rounding to 16 bits."""
    rng = np.random.default_rng(5)
    torch._dynamo.reset()
    with np.errstate(over="ignore"):
        x, c = (
            ties(rng, np.float32(0.37), 3, UINT8, 5000).astype(DTYPES[dtype]),
            rng.normal(size=5010).astype(DTYPES[dtype]),
        )

    def program(x, c, scale, zero_point):
        y = per_tensor(x * 1, scale, zero_point, 0, 255)
        return y + c, y

    compiled = torch.compile(program, fullgraph=True)
    numbers, tensors = ((0.37, 3), (0.21, 0)), ((torch.tensor([0.37]), torch.tensor(3)),)
    for scale, zero_point in numbers if dtype == "float32" else tensors:
        tensor = to_torch(x).requires_grad_()
        both, y = compiled(tensor, to_torch(c), scale, zero_point)
        qparams = QParams.of(float(scale), int(zero_point))
        expected, mask = reference.fake_quantize(x, qparams, UINT8)
        assert_same_bits(y, expected)
        assert_same_bits(both, expected + c)
        both.backward(to_torch(gradient_like(x)))
        assert_same_bits(tensor.grad, np.where(mask, gradient_like(x), np.zeros((), x.dtype)))


def test_compiled_channels():
    x = torch.randn(6, 5, 4) * 9
    scales, zeros = torch.rand(5) + 0.1, torch.arange(5)

    def program(x, s, z):
        return per_channel(x, s, z, 1, -8, 7) * 3, per_channel(x, s, z * 0, 1, -8, 7)

    compiled = torch.compile(program, backend="aot_eager")
    both, symmetric = compiled(x, scales, zeros)
    assert_same_bits(both, per_channel(x, scales, zeros, 1, -8, 7) * 3)
    assert_same_bits(symmetric, per_channel(x, scales, zeros * 0, 1, -8, 7))


def test_transforms():
    x = torch.randn(5, 4) * 20
    scales, zeros = torch.rand(4) + 0.1, torch.arange(4)
    rows = torch.func.vmap(lambda x: per_channel(x, scales, zeros, 0, 0, 31))(x)
    assert_same_bits(rows, per_channel(x, scales, zeros, 1, 0, 31))
    gradient = torch.func.grad(lambda x: per_tensor(x, 0.1, 3, 0, 31).sum())(x)
    _, mask = reference.fake_quantize(x.numpy(), QParams.of(0.1, 3), AffineInteger(0, 31))
    assert_same_bits(gradient, mask.astype(np.float32))
    each = torch.func.vmap(lambda x: per_tensor(x, 0.1, 3, 0, 31))
    assert_same_bits(torch.func.grad(lambda x: each(x).sum())(x), mask.astype(np.float32))
    with torch._subclasses.FakeTensorMode() as mode:
        assert per_tensor(mode.from_tensor(x), 0.1, 3, 0, 31).shape == x.shape


X = torch.ones(2, 3)
ONES, ZEROS = torch.ones(3), torch.zeros(3, dtype=torch.int32)


def test_one_kernel_for_all_parameters(fresh, tmp_path):
    for form in FORMS:
        for shape in ((3,), (2, 5), (50_000,)):
            per_tensor(torch.randn(shape), 0.1, form.middle, form.qmin, form.qmax)
    assert len(libraries(tmp_path)) == 1
