"""HiF8 of en-dtypes, the package with Ascend's dtypes for NumPy."""

import numpy as np
import pytest

import qcore

en_dtypes = pytest.importorskip("en_dtypes")
HIF8 = en_dtypes.hifloat8
CODES = np.arange(256, dtype=np.uint8)


def inputs(dtype):
    """All numbers, all midpoints and their neighbours, what is beyond the ends, and random bits."""
    numbers = CODES.view(HIF8).astype(np.float64)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(dtype)
    ends = np.array([40960, -40960, 1e9, -np.inf, np.inf, np.nan, 0.0, -0.0, 1e-30, -1e-30, 2.0**-23, 2.0**-24])
    bits = np.random.default_rng(0).integers(0, 2**32, 2**18, dtype=np.uint32).view(np.float32)
    beside = [np.nextafter(middles, dtype(end)) for end in (-np.inf, np.inf)]
    with np.errstate(all="ignore"):
        return np.concatenate([numbers.astype(dtype), middles, *beside, ends.astype(dtype), bits.astype(dtype)])


def test_all_codes_are_decoded():
    np.testing.assert_array_equal(qcore.decode(CODES, "hif8"), CODES.view(HIF8).astype(np.float32))
    finite = np.isfinite(qcore.decode(CODES, "hif8"))
    assert CODES[~finite].tolist() == [0x6F, 0x80, 0xEF]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_and_codes(dtype):
    x = inputs(dtype)
    with np.errstate(all="ignore"):
        theirs = x.astype(HIF8)
    np.testing.assert_array_equal(qcore.encode(x, "hif8"), theirs.view(np.uint8))
    ours, numbers = qcore.quantize(x, "hif8"), theirs.astype(dtype)
    np.testing.assert_array_equal(ours, numbers)
    np.testing.assert_array_equal(np.signbit(ours)[ours == 0], np.signbit(numbers)[ours == 0])
