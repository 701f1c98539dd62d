"""Softmax and PReLU of quantized arrays beside decimal arithmetic of 40 digits, and number by number."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from qcore.affine import INT8, UINT8, AffineInteger, QArray, QParams
from qcore.affine.functional import prelu, softmax


@pytest.mark.parametrize("form", [UINT8, INT8, AffineInteger.of_width(16, signed=False)], ids=str)
def test_integers_of_exact_quotients(form):
    rng = np.random.default_rng(1)
    scale, levels = np.float32(9 / (form.qmax - form.qmin)), form.qmax - form.qmin + 1
    values = rng.integers(form.qmin, form.qmax + 1, (40, 5)).astype(form.storage)
    result = softmax(QArray(values, QParams.of(scale, form.middle), form), -1)
    assert (result.qparams.scale, result.qparams.zero_point) == (np.float32(1 / levels), form.qmin)
    with localcontext() as context:
        context.prec = 40
        for row, found in zip(values.tolist(), result.values.tolist(), strict=True):
            powers = [(Decimal(float(scale)) * value).exp() for value in row]
            for power, integer in zip(powers, found, strict=True):
                place = power / sum(powers) * levels + form.qmin
                nearest = min(int(place.to_integral_value()), form.qmax)
                assert (
                    integer == nearest or abs(abs(place - nearest) - Decimal("0.5")) < Decimal("1e-2") * levels / 2**16
                )


@pytest.mark.parametrize("axis", [1, -1])
def test_slopes(axis):
    """Each number by itself: the product with its channel's slope in float32, rounded to the result's integers."""
    rng = np.random.default_rng(2)
    values, slopes = rng.integers(0, 256, (3, 4, 4)), rng.integers(-128, 128, 4)
    scales, zeros = rng.uniform(0.01, 0.02, 4).astype(np.float32), rng.integers(-5, 6, 4).astype(np.int32)
    q = QArray(values.astype(np.uint8), QParams.of(np.float32(0.07), 90), UINT8)
    weight = QArray(slopes.astype(np.int8), QParams(scales, zeros, 0), INT8)
    output = QParams.of(np.float32(0.05), 131)
    result = prelu(q, weight, output, axis=axis)
    for place in np.ndindex(values.shape):
        x = np.float32(values[place] - 90) * np.float32(0.07)
        channel = place[axis]
        x = x if x > 0 else x * (np.float32(slopes[channel] - zeros[channel]) * scales[channel])
        assert result.values[place] == np.clip(np.rint(x * (np.float32(1) / np.float32(0.05))) + 131, 0, 255)
    with pytest.raises(ValueError, match=r"weight has shape \(3,\); allowed are \(1,\) and \(4,\), the channels"):
        prelu(q, QArray(weight.values[:3], QParams.of(1.0, 0), INT8), output, axis=axis)
