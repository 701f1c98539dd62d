"""The softmax of quantized arrays beside decimal arithmetic of 40 digits."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from qcore.affine import INT8, UINT8, AffineInteger, QArray, QParams
from qcore.affine.arithmetic import softmax


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
