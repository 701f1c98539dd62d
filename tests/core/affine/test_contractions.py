"""Contractions of quantized arrays beside sums of Python's integers."""

import numpy as np
import pytest

from qcore.affine import INT8, UINT8, AffineInteger, QArray, QParams
from qcore.affine.functional import einsum, matmul

WIDE = AffineInteger.of_width(16)


@pytest.mark.parametrize("form", [UINT8, INT8, WIDE], ids=str)
def test_products_of_matrices(form):
    """Each sum by itself, rounded to float32, times the ratio of scales."""
    rng = np.random.default_rng(1)
    arrays, scales, zeros = [], (np.float32(0.013), np.float32(0.037)), (form.middle, form.qmin + 5)
    for shape, scale, zero in zip(((2, 1, 3, 7), (4, 7, 5)), scales, zeros, strict=True):
        values = rng.integers(form.qmin, form.qmax + 1, shape).astype(form.storage)
        arrays.append(QArray(values, QParams.of(scale, zero), form))
    output = QParams.of(np.float32(0.02) * (form.qmax - form.qmin), 120)
    a, b = arrays
    result = matmul(a, b, output, UINT8)
    assert result.values.shape == (2, 4, 3, 5)
    ratio = (scales[0] * scales[1]) * (np.float32(1) / output.scale)
    for n, m, i, k in np.ndindex(result.values.shape):
        pairs = zip(a.values[n, 0, i].tolist(), b.values[m, :, k].tolist(), strict=True)
        total = sum((x - zeros[0]) * (y - zeros[1]) for x, y in pairs)
        assert result.values[n, m, i, k] == np.clip(np.rint(np.float32(total) * ratio) + 120, 0, 255)
    turned = einsum("nzij,mjk->kinm", a, b, output, UINT8)
    assert (turned.values == result.values.transpose(3, 2, 0, 1)).all()


def test_wrong_calls():
    q = QArray(np.int8([[1, 2]]), QParams.of(1.0, 0), INT8)
    for equation in ("ij->ji", "ij,ij", "i,j,k->ijk"):
        with pytest.raises(ValueError, match="allowed are equations of two operands, with '->'"):
            einsum(equation, q, q, q.qparams)
    with pytest.raises(TypeError, match="equation is a int"):
        einsum(3, q, q, q.qparams)
    with pytest.raises(ValueError, match=r"b has shape \(2,\); allowed are two dimensions or more"):
        matmul(q, q.reshape(2), q.qparams)
    wide = QArray(np.zeros((1, 2**22), np.int16), QParams.of(1.0, 0), WIDE)
    with pytest.raises(ValueError, match=r"whose sums may pass 2\^53"):
        einsum("ij,ij->i", wide, wide, q.qparams)
