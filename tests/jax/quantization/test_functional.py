"""Integer layers in JAX: exact sums by NumPy in 64 bits, and NumPy's requantization."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import some
from jax.sharding import NamedSharding, PartitionSpec
from numpy.lib.stride_tricks import sliding_window_view
from support import assert_same_bits

import qcore.affine as reference
from qcore.affine import INT8, INT32, UINT8, AffineInteger, QParams
from qjax.quantization import QTensor, conv2d, linear

OUTPUT = QParams.of(0.5, 31)


def operand(rng, shape, form, channels=False):
    """Any integers of a form with any zero points, as a QTensor."""
    count = shape[0] if channels else ()
    scale = np.float32(2.0 ** rng.uniform(-7, -5, count))
    zero_point = rng.integers(form.qmin, form.qmax + 1, count).astype(np.int32)
    values = rng.integers(form.qmin, form.qmax + 1, shape).astype(form.storage)
    return QTensor(
        jnp.asarray(values), QParams(jnp.asarray(scale), jnp.asarray(zero_point), 0 if channels else None), form
    )


def steps(q):
    """(q - zero_point) in 64 bits."""
    zero_point = np.asarray(q.qparams.zero_point, np.int64)
    return np.asarray(q.values, np.int64) - (
        zero_point.reshape(-1, *(1,) * (q.ndim - 1)) if zero_point.ndim else zero_point
    )


def rounded(sums, x, w, bias, form, axis, output=OUTPUT):
    assert abs(sums).max() < 2**31
    scales = np.asarray(x.qparams.scale), np.asarray(w.qparams.scale)
    return reference.requantize(sums.astype(np.int32), *scales, bias, output, form, axis)


LAYERS = [
    (UINT8, INT8, True),
    (INT8, UINT8, False),
    (AffineInteger(0, 15), UINT8, True),
    (INT8, AffineInteger.of_width(4), False),
]


@some((0,), **{"inputs, form, channels": LAYERS})
def test_linear(inputs, form, channels):
    rng = np.random.default_rng(1)
    w = operand(rng, (20, 64), form, channels)
    for shape, biased in (((7, 64), True), ((2, 3, 64), False), ((64,), True)):
        x = operand(rng, shape, inputs)
        bias = rng.normal(size=20).astype(np.float32) if biased else None
        output = QParams.of(0.25, inputs.qmax // 3)
        expected = rounded(steps(x) @ steps(w).T, x, w, bias, inputs, -1, output)
        arguments = x, w, None if bias is None else jnp.asarray(bias), 0.25, inputs.qmax // 3
        q = linear(*arguments)
        assert_same_bits(q.int_repr(), expected)
        assert (q.form, q.qscheme()) == (inputs, "per_tensor_affine")
        c = rng.normal(size=expected.shape).astype(np.float32)
        fused = jax.jit(lambda c, *arguments: linear(*arguments).dequantize() + c)(c, *arguments)
        assert_same_bits(fused, reference.dequantize(expected, output, inputs) + c)


def test_linear_has_the_inputs_parameters():
    rng = np.random.default_rng(2)
    x, w = operand(rng, (5, 16), UINT8), operand(rng, (8, 16), INT8)
    q = linear(x, w)
    output = QParams(np.asarray(x.qparams.scale), np.asarray(x.qparams.zero_point))
    assert_same_bits(q.int_repr(), rounded(steps(x) @ steps(w).T, x, w, None, UINT8, -1, output))
    assert_same_bits(q.q_scale(), output.scale)
    assert_same_bits(q.q_zero_point(), output.zero_point)


def convolution(x, w, stride, padding, dilation, groups, mode="constant"):
    """Sums over windows of a padded image, in 64 bits."""
    x = np.pad(steps(x), ((0, 0), (0, 0), *((place, place) for place in padding)), mode)
    w = steps(w)
    reach = tuple((size - 1) * step + 1 for size, step in zip(w.shape[2:], dilation, strict=True))
    windows = sliding_window_view(x, reach, (2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    parts = zip(np.split(windows, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", *part) for part in parts], 1)


SHAPES = [
    ((1, 1), (0, 0), (1, 1), 1),
    ((2, 1), (1, 2), (1, 1), 1),
    ((1, 3), (2, 0), (2, 1), 2),
    ((1, 1), (1, 1), (1, 1), 4),
]


@some(
    *((i % 2, i) for i in range(len(SHAPES))),
    **{"inputs, form, channels": LAYERS[:2], "stride, padding, dilation, groups": SHAPES},
)
def test_conv2d(inputs, form, channels, stride, padding, dilation, groups):
    rng = np.random.default_rng(3)
    x, w = operand(rng, (2, 4, 9, 8), inputs), operand(rng, (8, 4 // groups, 3, 2), form, channels)
    bias = rng.normal(size=8).astype(np.float32)
    expected = rounded(convolution(x, w, stride, padding, dilation, groups), x, w, bias, INT8, 1, QParams.of(0.25, 3))
    q = conv2d(x, w, jnp.asarray(bias), stride, padding, dilation, groups, scale=0.25, zero_point=3, dtype="qint8")
    assert_same_bits(q.int_repr(), expected)
    assert q.form == INT8
    program = jax.jit(lambda x, w, s: conv2d(x, w, None, stride, padding, dilation, groups, scale=s, zero_point=31))
    unbiased = rounded(convolution(x, w, stride, padding, dilation, groups), x, w, None, UINT8, 1)
    assert_same_bits(program(x, w, jnp.float32(0.5)).int_repr(), unbiased)


def test_conv2d_takes_single_numbers():
    rng = np.random.default_rng(4)
    x, w = operand(rng, (1, 2, 6, 6), INT8), operand(rng, (3, 2, 3, 3), INT8)
    q = conv2d(x, w, stride=2, padding=1, dilation=1, scale=0.5, zero_point=31)
    assert_same_bits(q.int_repr(), rounded(convolution(x, w, (2, 2), (1, 1), (1, 1), 1), x, w, None, UINT8, 1))
    assert_same_bits(conv2d(x, w, scale=None, zero_point=9).q_scale(), x.q_scale())


@pytest.mark.parametrize(("mode", "of_numpy"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")])
def test_padding_modes(mode, of_numpy):
    rng = np.random.default_rng(8)
    x, w = operand(rng, (2, 4, 4, 3), UINT8), operand(rng, (8, 2, 3, 3), INT8)
    settings = (2, 1), (3, 2), (1, 1), 2
    expected = rounded(convolution(x, w, *settings, of_numpy), x, w, None, UINT8, 1)
    call = partial(conv2d, stride=(2, 1), padding=(3, 2), groups=2, padding_mode=mode, scale=0.5, zero_point=31)
    assert_same_bits(jax.jit(call)(x, w).int_repr(), expected)
    last = QTensor(jnp.moveaxis(jnp.asarray(x.values), 1, -1), x.qparams, x.form)
    assert_same_bits(jnp.moveaxis(call(last, w, channels_last=True).int_repr(), -1, 1), expected)


def test_vmap_and_shardings():
    rng = np.random.default_rng(5)
    w = operand(rng, (8, 16), INT8, True)
    x = operand(rng, (16, 16), UINT8)
    expected = rounded(steps(x) @ steps(w).T, x, w, None, UINT8, -1)
    rows = jax.vmap(lambda row: linear(QTensor(row, x.qparams, UINT8), w, None, 0.5, 31).values)(x.values)
    assert_same_bits(rows, expected)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x.values, NamedSharding(mesh, PartitionSpec("d")))
    q = linear(QTensor(spread, x.qparams, UINT8), w, None, 0.5, 31)
    assert_same_bits(q.values, expected)
    spread = jax.device_put(x.values, NamedSharding(mesh, PartitionSpec(None, "d")))  # sums over devices
    assert_same_bits(linear(QTensor(spread, x.qparams, UINT8), w, None, 0.5, 31).values, expected)


def test_large_sums_are_exact():
    """Beyond 2^24, where sums in float32 would not be; a bias takes most of each away, and the rest is seen."""
    rng = np.random.default_rng(7)
    x = QTensor(jnp.asarray(rng.integers(200, 256, (1, 4096)).astype(np.uint8)), QParams.of(1.0, 3), UINT8)
    w = QTensor(jnp.asarray(rng.integers(90, 128, (64, 4096)).astype(np.int8)), QParams.of(1.0, -3), INT8)
    sums = steps(x) @ steps(w).T
    assert sums.min() > 2**25
    bias = -sums[0].astype(np.float32)
    q = linear(x, w, jnp.asarray(bias), 1.0, 100)
    np.testing.assert_array_equal(q.values, np.full((1, 64), 100))


def test_strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        linear(X, W, jnp.ones(3), 0.5, 3).dequantize()
        conv2d(IMAGE, KERNEL, padding=1, groups=2).dequantize()


RNG = np.random.default_rng(6)
X, W = operand(RNG, (2, 4), UINT8), operand(RNG, (3, 4), INT8)
IMAGE, KERNEL = operand(RNG, (1, 4, 5, 5), UINT8), operand(RNG, (6, 2, 3, 3), INT8)
WIDE = operand(RNG, (3, 4), INT32)
BAD = {
    "input is a ndarray; allowed is a QTensor": lambda: linear(np.ones((2, 4)), W),
    "weight is a tuple; allowed is a QTensor": lambda: linear(X, (W,)),
    "weight has integers of int32; allowed are int8, uint8, int16, uint16": lambda: linear(X, WIDE),
    "input has axis=0; allowed is None": lambda: linear(operand(RNG, (2, 4), INT8, True), W),
    "weight has axis=1; allowed is None or 0": lambda: linear(
        X, QTensor(W.values, QParams.of([1] * 4, [0] * 4, 1), INT8)
    ),
    r"input has shape \(1, 4, 5, 5\); allowed is \(..., 4\)": lambda: linear(IMAGE, W),
    r"weight has shape \(6, 2, 3, 3\); allowed are 2 dimensions": lambda: linear(X, KERNEL),
    "bias is int32; allowed is an array of float32": lambda: linear(X, W, jnp.arange(3)),
    r"bias has shape \(4,\); allowed is \(3,\)": lambda: linear(X, W, jnp.ones(4)),
    "padding_mode='mirror'; allowed are zeros": lambda: conv2d(IMAGE, KERNEL, groups=2, padding_mode="mirror"),
    "scale=0.0; allowed": lambda: linear(X, W, None, 0.0, 0),
    "zero_point=256; allowed": lambda: linear(X, W, None, 1.0, 256),
    "zero_point=200; allowed are integers from -128 to 127": lambda: linear(
        X, QTensor(W.values, QParams.of(1.0, 200), INT8)
    ),
    r"scale has shape \(2,\); allowed is \(\)": lambda: linear(X, W, None, [1.0, 1.0], 0),
    r"weight has shape \(3, 4\); allowed are 4 dimensions": lambda: conv2d(IMAGE, W),
    "for groups=1; allowed are": lambda: conv2d(IMAGE, KERNEL),
    "for groups=2; allowed are": lambda: conv2d(X, KERNEL, groups=2),
    "outputs a multiple of groups": lambda: conv2d(operand(RNG, (1, 8, 5, 5), UINT8), KERNEL, groups=4),
    "groups=0; allowed is an int >= 1": lambda: conv2d(IMAGE, KERNEL, groups=0),
    "images no smaller than the kernel": lambda: conv2d(IMAGE, KERNEL, groups=2, dilation=(1, 3)),
    "stride=0; allowed is an int >= 1": lambda: conv2d(IMAGE, KERNEL, stride=0, groups=2),
    "padding_mode='reflect'; allowed are paddings of up to 4 of a size of 5": lambda: conv2d(
        IMAGE, KERNEL, padding=5, groups=2, padding_mode="reflect"
    ),
    "padding=-1; allowed is an int >= 0": lambda: conv2d(IMAGE, KERNEL, padding=(0, -1), groups=2),
    r"dilation=\(1, 1, 1\); allowed are one number or two": lambda: conv2d(IMAGE, KERNEL, dilation=(1, 1, 1), groups=2),
    "dtype='int9'; allowed are": lambda: conv2d(IMAGE, KERNEL, groups=2, dtype="int9"),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()
