"""States of optimizers as codes, beside the search of torchao and the rounding of FP8, written here again in NumPy."""

import pickle
import re

import numpy as np
import pytest
from support import assert_same_bits

from qcore import reproducible
from qcore.reproducible import StateCodes
from qcore.reproducible.state_codes import ADAM_KINDS, adam_codes, join_weight, split_weight

RNG = np.random.default_rng(62)
F = np.float32


def dynamic_map(signed, exponents, bits):
    """The rule of the dynamic map: middles of equal parts of 0.1 to 1, twice as many for each power of ten."""
    found = [0.0, 1.0]
    for i in range(exponents):
        count = 2 ** (i + bits - 1 - exponents + (not signed))
        step = (F(1) - F(0.1)) / F(count)
        # Linspace counts from both ends, with a product and a sum that are rounded once.
        k, step = np.arange(count + 1), np.float64(step)
        ends = F(np.where(2 * k < count + 1, F(0.1) + step * k, 1 - step * (count - k)))
        middles = ((ends[:-1] + ends[1:]) / F(2)) * F(10.0 ** (i - exponents + 1))
        found += [*middles, *(-middles if signed else ())]
    return np.sort(F(found))


MAPS = {
    "dynamic": dynamic_map(True, 7, 8),
    "udynamic": dynamic_map(False, 7, 8),
    "dynamic4": dynamic_map(True, 3, 4),
    "linear4": F(np.arange(1, 17) / 16),
}


def test_maps_are_the_published_ones():
    assert F([-0.992968738079071, 0.992968738079071, 1]).tolist() == MAPS["dynamic"][[0, -2, -1]].tolist()
    np.testing.assert_allclose(MAPS["udynamic"][[0, 1, 2, -2]], [0, 3.25e-7, 7.75e-7, 0.9964843988418579], 1e-6)


def searched(z, numbers):
    """torchao's codes: the last number that is not above z, one more from half of the gap on; all in float32."""
    low = np.maximum(np.searchsorted(numbers, z, "right") - 1, 0)
    high = np.minimum(low + 1, len(numbers) - 1)
    up = z - numbers[low] >= (numbers[high] - numbers[low]) * F(0.5)
    return np.where(np.isnan(z), 0, np.where(up, high, low))


def hard(numbers, block):
    """Numbers around all middles of a map and the map's own, under scales of 1; blocks of all magnitudes; specials."""
    middles = (numbers[1:] + numbers[:-1]) / F(2)
    near = np.concatenate([np.nextafter(middles, F(-9)), middles, np.nextafter(middles, F(9)), numbers])
    near = np.resize(near, (len(near) // (block - 1) + 1, block - 1))
    near = np.concatenate([np.full((len(near), 1), numbers[-1]), near], 1)
    scaled = RNG.standard_normal((40, block)) * 10.0 ** RNG.uniform(-38, 38, (40, 1))
    special = np.zeros((5, block))
    special[1, 0], special[2, 3], special[3, :2], special[4] = 1e-20, np.nan, (np.inf, -1), -0.0
    return np.concatenate([near, scaled, special]).astype(F)


@pytest.mark.parametrize("kind", MAPS)
def test_maps(kind):
    numbers, block = MAPS[kind], 256 if len(MAPS[kind]) == 256 else 128
    x = hard(numbers, block)
    x = x if numbers[0] < 0 else abs(x)
    with np.errstate(all="ignore"):
        scale = np.maximum(np.amax(abs(x), 1), F(1e-12))
        codes = searched(x / scale[:, None], numbers)
        decoded = numbers[codes] * scale[:, None]
    if len(numbers) == 16:
        codes = (codes.reshape(-1, 2) * [16, 1]).sum(1)
    given, found = reproducible.encode_state(x, StateCodes(kind, block))
    np.testing.assert_array_equal(given.reshape(-1), codes.reshape(-1))
    np.testing.assert_array_equal(found, scale)
    back = reproducible.decode_state(given, found, StateCodes(kind, block), x.shape)
    np.testing.assert_array_equal(back, decoded)
    numbers = ~np.isnan(back)
    np.testing.assert_array_equal(np.signbit(back)[numbers], np.signbit(decoded)[numbers])


def test_fp8():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = hard(np.arange(256).astype(np.uint8)[:127].view(ml_dtypes.float8_e4m3fn).astype(F), 256)
    with np.errstate(all="ignore"):
        scale = np.maximum(np.amax(abs(x), 1), F(1e-12)) / F(448)
        codes = (x / scale[:, None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    given, found = reproducible.encode_state(x, StateCodes("e4m3fn"))
    # A quotient of infinities is a NaN whose sign is the processor's; here it has the code 0x7f.
    np.testing.assert_array_equal(given, np.where(codes == 0xFF, 0x7F, codes))
    np.testing.assert_array_equal(found, scale)


def test_beginnings():
    """Codes and scales of 0 stand for -0.0 where the map begins below 0, and for 0.0."""
    for kind, sign in (("dynamic", True), ("udynamic", False), ("dynamic4", True), ("linear4", False)):
        codes = StateCodes(kind, 2)
        zeros = np.zeros(codes.counts(2)[0], np.uint8), np.zeros(1, F)
        found = reproducible.decode_state(*zeros, codes, (2,))
        assert_same_bits(found, F([-0.0, -0.0] if sign else [0.0, 0.0]))


def test_which_states_are_coded():
    assert [one.kind for one in adam_codes("Flash", 32, 1, False)] == ["softsign", "root"]
    for storage, kinds in list(ADAM_KINDS.items())[:3]:
        assert [one.kind for one in adam_codes(storage, 128, 4096, False)] == [*kinds]
        assert [one.kind for one in adam_codes(storage, 128, 4096 + 128, True)] == [*kinds, kinds[1]]
        assert adam_codes(storage, 128, 4095, False) == adam_codes(storage, 128, 4097, False) == (None, None)
        assert adam_codes(storage, 128, 4096 - 128, True) == (None,) * 3


def test_remainders():
    """All bits come back; the weight is the nearest bfloat16 number, ties away from zero."""
    bits = np.concatenate([RNG.integers(-(2**31), 2**31, 50_000), [0, -(2**31), 2**31 - 1, -1, 0x7F7FFFFF, 0x7F800001]])
    bits = np.concatenate([bits, (bits & ~0xFFFF) | 0x8000, bits | 0xFFFF]).astype(np.int32)
    weight, remainder = split_weight(reproducible.Names, bits)
    assert weight.dtype == remainder.dtype == np.int16
    np.testing.assert_array_equal(join_weight(reproducible.Names, weight, remainder), bits)
    away = (bits.view(np.uint32).astype(np.int64) + 0x8000) >> 16
    np.testing.assert_array_equal(weight.view(np.uint16), away & 0xFFFF)


def test_pickles():
    codes = StateCodes("dynamic", 64)
    assert pickle.loads(pickle.dumps(codes)) == codes
    assert len(pickle.dumps(codes)) < 200


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("kind='e5m2'; allowed are", lambda: StateCodes("e5m2")),
        ("block=0; allowed is", lambda: StateCodes("dynamic", 0)),
        ("block=3; allowed for codes of 4 bits is an even number", lambda: StateCodes("linear4", 3)),
        (
            "x has 3 numbers; allowed is a multiple of block=2, at least one block",
            lambda: reproducible.encode_state(np.zeros(3, F), StateCodes("dynamic", 2)),
        ),
        (
            "given has codes of shape (4,); allowed is (2,)",
            lambda: reproducible.decode_state(np.zeros(4, np.uint8), np.zeros(2, F), StateCodes("linear4", 2), (4,)),
        ),
        (
            "scale has shape (1,); allowed is (2,)",
            lambda: reproducible.decode_state(np.zeros(4, np.uint8), np.zeros(1, F), StateCodes("dynamic", 2), (4,)),
        ),
    ],
)
def test_wrong(message, call):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
