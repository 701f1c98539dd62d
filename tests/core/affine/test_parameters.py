"""Scales and zero points from ranges, by their definition."""

import numpy as np
import pytest
from affine_support import FORMS, single
from support import assert_same_bits

from qcore.affine import (
    INT8,
    UINT8,
    QParams,
    choose_qparams,
    choose_qparams_dynamic,
    fake_quantize,
)

X = np.ones((2, 3), np.float32)


def test_the_smallest_and_the_largest_scale():
    for exponent, factor in ((-125, 0.5), (125, 2)):
        fake_quantize(X, QParams.of(2.0**exponent, 0), INT8)
        with pytest.raises(ValueError, match="from 2\\^-125 to 2\\^125"):
            fake_quantize(X, QParams.of(2.0**exponent * factor, 0), INT8)


def test_parameters_by_definition():
    rng = np.random.default_rng(4)
    ends = np.sort(rng.normal(size=(2, 3000)) * 2.0 ** rng.integers(-30, 30, 3000), axis=0).astype(np.float32)
    ends[:, :100] = ends[0, :100]
    low, high = np.minimum(ends[0].astype(np.float64), 0), np.maximum(ends[1].astype(np.float64), 0)
    eps = 2.0**-23
    for form in FORMS:
        steps = form.qmax - form.qmin
        scale = np.maximum(single(single(high - low) / steps), eps)
        zero_point = np.clip(form.qmin - np.rint(single(low / scale)), form.qmin, form.qmax)
        actual = choose_qparams(*ends, form, axis=0)
        assert_same_bits(actual.scale, scale.astype(np.float32))
        assert_same_bits(actual.zero_point, zero_point.astype(np.int32))
        assert actual.axis == 0
        actual = choose_qparams(*ends, form, "symmetric", axis=0)
        scale = np.maximum(single(np.maximum(-low, high) / (steps / 2)), eps)
        assert_same_bits(actual.scale, scale.astype(np.float32))
        assert_same_bits(actual.zero_point, np.full(3000, form.middle, np.int32))
    assert choose_qparams(np.float32(0), np.float32(0), INT8, eps=0.5).scale == 0.5


def dynamic_by_definition(low, high, form):
    """fbgemm's rule in Python's floats, which are float64."""
    low, high, cutoff = min(float(low), 0.0), max(float(high), 0.0), float(np.float32(6.1e-5))
    scale = (high - low) / (form.qmax - form.qmin)
    if scale < cutoff:
        factor = float(np.float32(cutoff) / np.float32(scale))
        low, high, scale = float(np.float32(low * factor)), float(np.float32(high * factor)), cutoff
    below, above = low / scale, high / scale
    nearer = abs(form.qmin) - abs(below) < abs(form.qmax) - abs(above)
    offset = form.qmin - below if nearer else form.qmax - above
    return np.float32(scale), min(max(round(offset), form.qmin), form.qmax)


def test_dynamic_parameters_by_definition():
    rng = np.random.default_rng(5)
    ends = np.sort(rng.normal(size=(2, 2000)) * 2.0 ** rng.integers(-30, 30, 2000), axis=0).astype(np.float32)
    for form in FORMS:
        steps, unit = form.qmax - form.qmin, rng.integers(1, 64, 500) * 2.0**-36
        odd = rng.integers(0, steps, 500) * 2 + 1  # the zero point is a tie, which rounded factors decide
        pairs = np.concatenate([ends, np.float32([-odd * unit, (2 * steps - odd) * unit])], axis=1)
        actual = choose_qparams_dynamic(*pairs, form)
        expected = [dynamic_by_definition(*pair, form) for pair in pairs.T]
        assert_same_bits(actual.scale, np.array([scale for scale, _ in expected]))
        np.testing.assert_array_equal(actual.zero_point, [zero_point for _, zero_point in expected])


def test_dynamic_parameters_of_small_ranges():
    cutoff = np.float32(6.1e-5)
    for low, high, scale, zero_point in (
        (0, 0, np.float32(0.1), 0),
        (0, 1e-37, np.float32(0.1), 0),  # the scale would be subnormal
        (0, 1e-4, cutoff, 0),
        (-1e-4, 0, cutoff, 255),
        (-1e-4, 1e-4, cutoff, 128),
        (-1, 2, np.float32(3 / 255), 85),
        (5, 7, np.float32(7 / 255), 0),
    ):
        actual = choose_qparams_dynamic(np.float32(low), np.float32(high), UINT8)
        assert (actual.scale, actual.zero_point) == (scale, zero_point), (low, high)
        assert actual.scale.dtype == np.float32
        assert actual.zero_point.dtype == np.int32


def test_data_that_is_not_finite_raises_nothing():
    for low, high in ((-np.inf, np.inf), (np.nan, np.nan), (-3e38, 3e38)):
        for choose in (choose_qparams, choose_qparams_dynamic):
            choose(np.float32(low), np.float32(high), INT8)
    assert choose_qparams(np.float32(np.nan), np.float32(np.nan), INT8).zero_point == -128
