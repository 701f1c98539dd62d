"""Affine integers: the law against its definition in float64, formats, parameters, and wrong arguments."""

import copy
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest
from affine_support import FORMS, single, ties
from support import assert_same_bits

from qcore.affine import (
    INT8,
    INT32,
    UINT8,
    AffineInteger,
    Names,
    QArray,
    QParams,
    checkpoint,
    choose_qparams,
    choose_qparams_dynamic,
    dequantize,
    fake_quantize,
    law,
    quantize_affine,
    requantize,
)
from qcore.affine.functional import unit_qparams


def parameters(rng, form):
    return np.float32(2.0 ** rng.uniform(-12, 6)), int(rng.integers(form.qmin, form.qmax + 1))


def by_definition(x, scale, zero_point, form):
    """Integers, numbers and mask, every operation written out."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = single(x.astype(np.float64) * single(1 / np.float64(scale)))
        steps = np.where(np.isnan(product), -np.inf, np.rint(product) + zero_point)
    q = np.clip(steps, form.qmin, form.qmax)
    return q, single((q - zero_point) * np.float64(scale)), (steps == q) & ~np.isnan(product)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_equals_its_definition(form):
    rng = np.random.default_rng(1)
    for _ in range(8):
        scale, zero_point = parameters(rng, form)
        x, qparams = ties(rng, scale, zero_point, form, 4000), QParams.of(scale, zero_point)
        integers, numbers, inside = by_definition(x, scale, zero_point, form)
        q = quantize_affine(x, qparams, form)
        assert q.dtype == form.storage
        np.testing.assert_array_equal(q, integers)
        y, mask = fake_quantize(x, qparams, form)
        assert_same_bits(y, numbers.astype(np.float32))
        np.testing.assert_array_equal(mask, inside)
        assert_same_bits(dequantize(q, qparams, form), y)
        assert not np.signbit(y[y == 0]).any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_numbers_compute_in_float32(dtype):
    codes = np.arange(2**16, dtype=np.uint16).view(dtype)
    qparams = QParams.of(0.3, 77)
    with np.errstate(over="ignore"):
        expected, inside = fake_quantize(codes.astype(np.float32), qparams, UINT8)
        y, mask = fake_quantize(codes, qparams, UINT8)
        assert_same_bits(y, expected.astype(dtype))
    np.testing.assert_array_equal(mask, inside)
    np.testing.assert_array_equal(quantize_affine(codes, qparams, UINT8).dtype, np.uint8)
    assert_same_bits(
        dequantize(np.uint8([3, 200]), qparams, UINT8, np.dtype(dtype).name), np.array([-22.2, 36.9], dtype)
    )


def test_16_bit_results_overflow_as_casts_do():
    y, _ = fake_quantize(np.float16([60000]), QParams.of(40000, 0), INT8)
    assert_same_bits(y, np.float16([np.inf]))


def test_float64_is_not_rounded_before_it_is_multiplied():
    x = np.float64([0.5 - 2.0**-40, 0.5 + 2.0**-40, 1e300])  # both of the first are 0.5 in float32
    y, mask = fake_quantize(x, QParams.of(1.0, 0), INT8)
    assert_same_bits(y, np.float64([0, 1, 127]))
    np.testing.assert_array_equal(mask, [True, True, False])
    y, _ = fake_quantize(np.float64([1.0]), QParams.of(0.1, 0), INT8)
    assert_same_bits(y, np.float64([single(10 * np.float64(np.float32(0.1)))]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_channels_are_quantized_each_for_itself(axis):
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(4, 5, 6)) * 9).astype(np.float32)
    scales, zeros = np.float32(2.0 ** rng.uniform(-3, 0, x.shape[axis])), rng.integers(-128, 128, x.shape[axis])
    qparams = QParams.of(scales, zeros, axis)
    y, mask = fake_quantize(x, qparams, INT8)
    q = quantize_affine(x, qparams, INT8)
    numbers = dequantize(q, qparams, INT8)
    for channel, pair in enumerate(zip(scales, zeros, strict=True)):
        own, at = QParams.of(*pair), (slice(None),) * axis + (channel,)
        expected, inside = fake_quantize(x[at], own, INT8)
        assert_same_bits(y[at], expected)
        assert_same_bits(numbers[at], expected)
        np.testing.assert_array_equal(mask[at], inside)
        np.testing.assert_array_equal(q[at], quantize_affine(x[at], own, INT8))


def test_int32_saturates_at_the_largest_float_inside():
    x = np.float32([2**24 + 2, 2.0**31, -(2.0**31), -np.inf, np.nan])
    qparams = QParams.of(1.0, 0)
    q = quantize_affine(x, qparams, INT32)
    np.testing.assert_array_equal(q, np.int32([2**24 + 2, 2**31 - 128, -(2**31), -(2**31), -(2**31)]))
    _, mask = fake_quantize(x, qparams, INT32)
    np.testing.assert_array_equal(mask, [True, False, True, False, False])


def test_gradients_pass_inside_the_range():
    gradient = np.float32([-1, np.inf, -2, np.nan])
    mask = np.array([True, False, False, True])
    assert_same_bits(law.straight_through(Names, gradient, mask), np.float32([-1, 0, 0, np.nan]))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_requantize_equals_its_definition(axis, channels, biased):
    rng = np.random.default_rng(3)
    accumulator = rng.integers(-(2**27), 2**27, (7, 64, 64) if axis == 1 else (500, 64)).astype(np.int32)
    sx = np.float32(0.0123)
    sw = np.float32(2.0 ** rng.uniform(-9, -7, 64)) if channels else np.array(0.004, np.float32)
    so, zo = np.float32(25.7), 11
    bias = rng.normal(size=64).astype(np.float32) * 1000 if biased else None
    shape = (64, 1) if axis == 1 else (64,)
    product = single(np.float64(sx) * sw)
    total = single(accumulator)
    if biased:
        total = single(total + np.broadcast_to(single(bias / product), 64).reshape(shape))
    ratio = np.broadcast_to(single(product / np.float64(so)), 64).reshape(shape)
    expected = np.clip(np.rint(single(total * ratio)) + zo, 0, 255)
    q = requantize(accumulator, sx, sw, bias, QParams.of(so, zo), UINT8, axis)
    assert q.dtype == np.uint8
    np.testing.assert_array_equal(q, expected)
    assert len(np.unique(q)) > 20


def test_ties_of_sums_go_to_even_whatever_the_zero_point():
    one = np.float32(1)
    q = requantize(np.int32([1, 3, 5, -1, -3]), one, one, None, QParams.of(2.0, 3), UINT8)
    np.testing.assert_array_equal(q, [3, 5, 5, 3, 1])


def test_a_ratio_of_scales_that_is_subnormal_is_zero():
    """XLA makes it one: by the ratio itself the bias, which is in units of the sums, would give 2."""
    tiny = np.float32(2.0**-50)
    q = requantize(np.int32([[0]]), tiny, tiny, np.float32([2.0**27.9]), QParams.of(2.0**27, 3), UINT8)
    np.testing.assert_array_equal(q, [[3]])


def test_means_are_exact_and_rounded_to_even():
    sums = np.int64([5, 7, -5, 2**40 + 1, 2**40 + 3])
    assert_same_bits(law.mean(Names, sums[:3], 2), np.int32([2, 4, -2]))
    assert_same_bits(law.mean(Names, sums[3:], 2**12), np.int32([2**28, 2**28]))
    assert law.mean(Names, np.int64(3 * (2**25 + 1)), 3) == 2**25 + 1


def test_formats():
    assert (UINT8.qmin, UINT8.qmax, UINT8.middle, UINT8.storage, UINT8._levels) == (0, 255, 128, "uint8", 256)
    assert AffineInteger(0, 255).middle == 127  # torch's for a range that the user gives
    assert (INT8.qmin, INT8.qmax, INT8.middle, INT8.storage) == (-128, 127, 0, "int8")
    assert [AffineInteger.of_width(16, signed).storage for signed in (True, False)] == ["int16", "uint16"]
    assert [AffineInteger(0, high, True).storage for high in (127, 128, 2**15)] == ["int8", "int16", "int32"]
    assert AffineInteger(0, 15).reduced() == AffineInteger(0, 7, False, 3)
    assert UINT8.reduced() == AffineInteger(0, 127)
    assert AffineInteger(-5, 8).reduced() == AffineInteger(-3, 4)
    assert (INT32.low, INT32.high, INT32.storage) == (-(2.0**31), 2.0**31 - 128, "int32")
    twin = pickle.loads(pickle.dumps(UINT8))
    assert twin == UINT8 == copy.deepcopy(UINT8)
    assert hash(twin) == hash(UINT8)
    assert (twin.low, twin.high, twin.storage) == (0, 255, "uint8")


CHANNELS = QParams.of([0.1, 0.2], [0, 0], 0)
X = np.ones((2, 3), np.float32)
ONE = np.float32(1)
Q = QArray(np.int8([[1], [2]]), QParams.of(0.5, 0), INT8)


def test_checkpoints_hold_the_text_of_ranges_and_older_ones_fields():
    form, parts = AffineInteger(0, 200, middle=7), {"int_repr": np.uint8([5]), "scale": np.float32(1)}
    quantized = checkpoint.Quantized(**parts, zero_point=np.int32(3), axis=None, form=form)
    arrays, metadata = checkpoint.flatten({"w": quantized})
    assert metadata == {"quantized": '{"w": {"axis": null, "format": "affine(0,200,middle=7)"}}'}
    older = '{"w": {"axis": null, "qmin": 0, "qmax": 200, "signed": false, "middle": 7}}'
    for description in (metadata, {"quantized": older}):
        assert checkpoint.unflatten(arrays, description)["w"].form == form
    with pytest.raises(ValueError, match=r"array 'w' of the checkpoint: format='int8'; allowed is affine\(qmin,qmax\)"):
        checkpoint.unflatten(arrays, {"quantized": '{"w": {"axis": null, "format": "int8"}}'})


def test_checkpoints_say_what_is_missing(monkeypatch, tmp_path):
    for call in (lambda: checkpoint.save_file(tmp_path / "x", {}), lambda: checkpoint.load_file(tmp_path / "x")):
        for module in ("safetensors", "safetensors.numpy"):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match="checkpoints need safetensors: pip install safetensors"):
            call()


BAD = {
    "qmin=1; allowed is an int from -2147483648 to 0": lambda: AffineInteger(1, 5),
    "qmax=1.5 is a float": lambda: AffineInteger(0, 1.5),
    "allowed are 2 to 65536 integers": lambda: AffineInteger(0, 2**16),
    "signed=False with qmin=-1": lambda: AffineInteger(-1, 5, signed=False),
    "signed=1 is a int": lambda: AffineInteger(0, 5, signed=1),
    "middle=9; allowed is an int from 0 to 5": lambda: AffineInteger(0, 5, middle=9),
    "bits=17; allowed is an int from 2 to 16": lambda: AffineInteger.of_width(17),
    "bits=32; allowed is an int from 2 to 16": lambda: AffineInteger.of_width(32, signed=False),
    "x is a list": lambda: fake_quantize([1.0], QParams.of(0.1, 0), INT8),
    "x has dtype int32; allowed are float32": lambda: quantize_affine(np.arange(3, dtype=np.int32), CHANNELS, INT8),
    "qparams is a tuple; allowed is a QParams": lambda: fake_quantize(X, (0.1, 0), INT8),
    "form is a str; allowed is an AffineInteger": lambda: fake_quantize(X, CHANNELS, "int8"),
    "scale is float; allowed is an array of float32": lambda: fake_quantize(X, QParams(0.1, 0), INT8),
    "zero_point is int64; allowed is an array of int32": lambda: fake_quantize(X, QParams(ONE, np.int64(0)), INT8),
    "zero_point=0.5; allowed are integers": lambda: QParams.of(0.1, 0.5),
    "zero_point=8589934592; allowed are integers of 32 bits": lambda: QParams.of(0.1, 2**33),
    "scale=0.0; allowed are finite numbers above 0": lambda: fake_quantize(X, QParams.of(0.0, 0), INT8),
    "scale=-1.0; allowed": lambda: quantize_affine(X, QParams.of([1, -1], [0, 0], 0), INT8),
    "scale=inf; allowed": lambda: fake_quantize(X, QParams.of(np.inf, 0), INT8),
    "scale=nan; allowed": lambda: dequantize(np.int8([1]), QParams.of(np.nan, 0), INT8),
    "zero_point=128; allowed are integers from -128 to 127": lambda: fake_quantize(X, QParams.of(0.1, 128), INT8),
    "zero_point=1; allowed are integers from 0 to 0": lambda: quantize_affine(X, QParams.of(0.1, 1), INT32),
    r"scale has shape \(2,\); allowed is \(3,\) for axis=1": lambda: fake_quantize(
        X, QParams(CHANNELS.scale, CHANNELS.zero_point, 1), INT8
    ),
    r"scale has shape \(2,\); allowed is \(\) for axis=None": lambda: fake_quantize(
        X, QParams(CHANNELS.scale, CHANNELS.zero_point), INT8
    ),
    "axis=2; allowed is an int from 0 to 1": lambda: fake_quantize(X, QParams.of([1, 1], [0, 0], 2), INT8),
    "axis=0 for an array without dimensions": lambda: fake_quantize(np.float32(1), CHANNELS, INT8),
    "q is float32; allowed is an array of int8": lambda: dequantize(X, CHANNELS, INT8),
    "dtype='int8'; allowed are float32": lambda: dequantize(np.int8([1]), QParams.of(0.1, 0), INT8, "int8"),
    "scheme='other'; allowed are affine, symmetric": lambda: choose_qparams(-ONE, ONE, INT8, "other"),
    "scheme='affine' for all of int32": lambda: choose_qparams(-ONE, ONE, INT32),
    "scheme='affine' for all of int32, whose": lambda: choose_qparams_dynamic(-ONE, ONE, INT32),
    "low=1.0 and high=-1.0; allowed is low <= high": lambda: choose_qparams(ONE, -ONE, INT8),
    "low=2.0 and high=1.0; allowed is low": lambda: choose_qparams_dynamic(2 * ONE, ONE, INT8),
    "high is float; allowed is an array of float32": lambda: choose_qparams(-ONE, 1.0, INT8),
    "low is float64; allowed is an array of float32": lambda: choose_qparams_dynamic(np.float64(1), ONE, INT8),
    "accumulator is int8; allowed is an array of int32": lambda: requantize(
        X.astype(np.int8), ONE, ONE, None, CHANNELS, INT8
    ),
    "output.axis=0; allowed is None": lambda: requantize(X.astype(np.int32), ONE, ONE, None, CHANNELS, INT8),
    r"weight_scale has shape \(2,\); allowed is \(\) or \(3,\)": lambda: requantize(
        X.astype(np.int32), ONE, np.ones(2, np.float32), None, QParams.of(0.1, 0), INT8
    ),
    r"bias has shape \(2,\); allowed is \(3,\)": lambda: requantize(
        X.astype(np.int32), ONE, ONE, np.ones(2, np.float32), QParams.of(0.1, 0), INT8
    ),
    "input_scale is float; allowed": lambda: requantize(X.astype(np.int32), 1.0, ONE, None, QParams.of(0.1, 0), INT8),
    "axis=5; allowed is an int from 0 to 1": lambda: requantize(
        X.astype(np.int32), ONE, ONE, None, QParams.of(0.1, 0), INT8, 5
    ),
    "input is a int; allowed is a QTensor": lambda: unit_qparams(3, INT8, False),
    "form is a NoneType; allowed is an AffineInteger": lambda: unit_qparams(Q, None, False),
    "signed=1 is a int; allowed are True and False": lambda: unit_qparams(Q, INT8, 1),
    "input has axis=0; allowed is a QTensor with one scale": lambda: unit_qparams(
        QArray(Q.values, CHANNELS, INT8), INT8, False
    ),
    "path is a int; allowed is a str or os.PathLike": lambda: checkpoint.save_file(3, {}),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()
