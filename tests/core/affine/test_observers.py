"""Observers against their definitions, and what they do with strange data and wrong arguments."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from affine_support import activations
from support import DTYPES, assert_same_bits

from qcore.affine import (
    INT8,
    INT32,
    UINT8,
    Counts,
    Histogram,
    MinMax,
    MovingAverageMinMax,
    MovingAveragePerChannelMinMax,
    Names,
    Noop,
    PerChannelMinMax,
    Recording,
    choose_qparams,
)
from qcore.affine.histogram import saved_by_cutting, total

RANGES = [MinMax(), MovingAverageMinMax(), PerChannelMinMax(axis=1), MovingAveragePerChannelMinMax(axis=1), Histogram()]


def after(observer, arrays):
    state = observer.init(arrays[0].shape)
    for x in arrays:
        state = observer.update(state, x)
    return state


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_extremes(axis):
    rng = np.random.default_rng(1)
    arrays = [activations(rng, step)[step % 4] for step in range(9)]
    state = after(MinMax() if axis is None else PerChannelMinMax(axis=axis), arrays)
    everything = np.stack(arrays) if axis is None else np.moveaxis(np.stack(arrays), axis + 1, 0)
    everything = everything.reshape(1 if axis is None else everything.shape[0], -1)
    shape = () if axis is None else (-1,)
    assert_same_bits(state.min_val, everything.min(1).reshape(shape))
    assert_same_bits(state.max_val, everything.max(1).reshape(shape))


@pytest.mark.parametrize("constant", [0.01, 0.3, 1.0])
def test_moving_averages(constant):
    rng = np.random.default_rng(2)
    arrays = [activations(rng, step)[0] for step in range(50)]
    observers = (
        MovingAverageMinMax(averaging_constant=constant),
        MovingAveragePerChannelMinMax(averaging_constant=constant),
    )
    for observer in observers:
        axes = (1, 2) if observer.axis == 0 else None
        c, average = np.float64(np.float32(constant)), None
        for x in arrays:
            extreme = x.min(axes).astype(np.float64)
            if average is None:
                average = extreme
            else:
                step = (c * (extreme - average).astype(np.float32)).astype(np.float32)
                average = (average + step).astype(np.float32).astype(np.float64)
        assert_same_bits(after(observer, arrays).min_val, np.float32(average))


def test_averages_that_cross_change_places():
    """A large old end cancels; torch.ao's observer then raises. Ends that do not cross stay, NaN too."""
    observer = MovingAveragePerChannelMinMax(averaging_constant=1.0)
    arrays = np.float32(
        [[[0.25, 1e8], [-1e8, -0.25], [0.25, 0.5], [0, np.nan]], [[0.3, 0.3], [-0.3, -0.3], [1, 2], [1, 2]]]
    )
    state = after(observer, arrays)
    assert_same_bits(state.min_val, np.float32([0, -0.3, 1, np.nan]))
    assert_same_bits(state.max_val, np.float32([0.3, 0, 2, np.nan]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("observer", RANGES, ids=lambda observer: type(observer).__name__)
def test_dtypes(observer, dtype):
    rng = np.random.default_rng(3)
    arrays = [activations(rng, step)[0].astype(DTYPES[dtype]) for step in range(3)]
    state = after(observer, arrays)
    expected = after(observer, [x.astype(np.float32) for x in arrays])
    for own, other in zip(state, expected, strict=True):
        assert_same_bits(own, other)
        assert own.dtype == np.float32


@pytest.mark.parametrize("observer", RANGES, ids=lambda observer: type(observer).__name__)
def test_strange_data(observer):
    first = observer.init((2, 3))
    assert observer.update(first, np.empty((0, 3), np.float32)) is first
    state = after(observer, [np.float32([[-0.0, 0, -0.0]] * 2)] * 2)
    assert not np.signbit([np.max(state.min_val), np.max(state.max_val)]).any()
    state = after(observer, [np.float32([[np.nan, 1, np.inf], [2, 3, -np.inf]])] * 2)  # raises nothing
    if isinstance(observer, Histogram):
        assert (state.min_val, state.max_val, state.histogram.sum()) == (1, 3, 6)
        only = observer.update(state, np.full((2, 3), np.nan, np.float32))
        for own, other in zip(only, state, strict=True):
            assert_same_bits(own, other)
    else:
        assert np.isnan(state.min_val).any()


@pytest.mark.parametrize("observer", RANGES, ids=lambda observer: type(observer).__name__)
def test_parameters_need_an_observation(observer):
    with pytest.raises(ValueError, match="low=inf and high=-inf; allowed is low <= high: observe something"):
        observer.qparams(observer.init((2, 3)))


def test_parameters_of_extremes():
    rng = np.random.default_rng(4)
    x = activations(rng, 0)[0]
    for observer in (MinMax(INT8, "symmetric", eps=0.5), MovingAveragePerChannelMinMax(INT8, axis=2)):
        state = after(observer, [x])
        actual = observer.qparams(state)
        expected = choose_qparams(*state, INT8, observer.scheme, eps=observer.eps, axis=observer.axis)
        assert_same_bits(actual.scale, expected.scale)
        assert_same_bits(actual.zero_point, expected.zero_point)
        assert actual.axis == observer.axis
    assert MinMax(INT8, "symmetric", eps=0.5).qparams(after(MinMax(), [x])).scale == 0.5


def test_recording_and_noop():
    x = np.float32([1, 2])
    state = after(Recording(), [x, x])
    x[0] = 5
    assert [record.tolist() for record in state] == [[1, 2], [1, 2]]
    assert after(Noop(), [x]) == ()
    for observer in (Recording(), Noop()):
        with pytest.raises(TypeError, match="chooses no parameters; allowed are observers of ranges"):
            observer.qparams(observer.init())


def direct_counts(x, low, high, bins):
    """How many elements lie in each bin, by quotients and products rounded to float32."""
    counts = [0] * bins
    low, high = (low - np.float32(1), high + np.float32(1)) if low == high else (low, high)
    for element in x:
        counts[min(int((element - low) / (high - low) * np.float32(bins)), bins - 1)] += 1
    return np.float32(counts)


def test_histograms_count():
    rng = np.random.default_rng(5)
    for bins in (1, 7, 2048):
        for x in activations(rng, 0):
            state = after(Histogram(bins=bins), [x])
            assert_same_bits(state.histogram, direct_counts(x.ravel(), x.min(), x.max(), bins))


def fraction_edges(low, high, parts):
    """Ends of parts, exactly from a step in float32, and then rounded; Fractions round to float64, far from a tie."""
    step = Fraction(float((high - low) / np.float32(parts)))
    half = (parts + 1) // 2
    ends = [
        Fraction(float(low)) + step * i if i < half else Fraction(float(high)) - step * (parts - i)
        for i in range(parts + 1)
    ]
    return np.float32([float(end) for end in ends])


@pytest.mark.parametrize("rate", [1, 16, 5])
def test_histograms_move(rate):
    rng = np.random.default_rng(6)
    bins = 64
    x, y = activations(rng, 0)[0].ravel(), activations(rng, 0)[0].ravel() * np.float32(1.7)
    observer = Histogram(bins=bins, upsample_rate=rate)
    old = after(observer, [x])
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    width = (old.max_val - old.min_val) / np.float32(bins * rate)
    middles = fraction_edges(old.min_val, old.max_val, bins * rate)[:-1] + width * np.float32(0.5)
    ends = fraction_edges(low, high, bins)
    moved = np.zeros(bins, np.float32)
    for part, middle in enumerate(middles):
        moved[np.clip((ends <= middle).sum() - 1, 0, bins - 1)] += old.histogram[part // rate] / np.float32(rate)
    state = observer.update(old, y)
    assert_same_bits(state.histogram, moved + direct_counts(y, low, high, bins))
    assert (state.min_val, state.max_val) == (low, high)


def test_histograms_of_nothing_finite_stay_empty():
    observer = Histogram()
    state = after(observer, [np.float32([np.nan, np.inf])])
    for own, first in zip(state, observer.init(), strict=True):
        assert_same_bits(own, first)
    assert observer.update(state, np.float32([1, 2])).histogram.sum() == 2


def test_histograms_of_one_number_move_whole():
    observer = Histogram(bins=8)
    state = after(observer, [np.float32([3, 3, 3]), np.float32([0, 8])])
    assert_same_bits(state.histogram, np.float32([1, 0, 0, 3, 0, 0, 0, 1]))
    single = after(observer, [np.float32([3, 3, 3])])
    assert (single.histogram[4], single.histogram.sum()) == (3, 3)
    assert observer.qparams(single).scale == np.float32(3 / 255)


@pytest.mark.parametrize("size", [1, 7, 512, 2048, 2500])
def test_the_order_of_sums(size):
    x = np.random.default_rng(8).normal(size=size).astype(np.float32)
    padded = np.concatenate([x, np.zeros(-size % 512, np.float32)])
    sums = np.zeros(32, np.float32)
    for block in range(0, len(padded), 512):
        part = np.zeros(32, np.float32)
        for row in range(block, block + 512, 32):
            part = part + padded[row : row + 32]
        sums = sums + part
    vector = ((sums[:8] + sums[8:16]) + sums[16:24]) + sums[24:]
    expected = np.float32(0)
    for lane in vector:
        expected = expected + lane
    assert_same_bits(total(Names, x), expected)


def test_the_search_cuts_outliers_off():
    rng = np.random.default_rng(7)
    x = rng.normal(size=10**6).astype(np.float32)
    x[0] = 12
    scale = Histogram().qparams(after(Histogram(), [x])).scale
    assert scale < MinMax().qparams(after(MinMax(), [x])).scale * 0.8


def test_the_search_ends_for_numbers_whose_errors_are_0_in_float32():
    """torch's search ends at one bin, too."""
    x = np.random.default_rng(7).normal(size=1000).astype(np.float32) * np.float32(1e-18)
    observer = Histogram(eps=1e-30)
    state = after(observer, [x])
    assert observer.qparams(state).scale < MinMax(eps=1e-30).qparams(after(MinMax(), [x])).scale
    assert saved_by_cutting(state, 256) == 0


BAD = {
    "form is a str": lambda: MinMax("int8"),
    "scheme='both'; allowed are affine, symmetric": lambda: PerChannelMinMax(scheme="both"),
    "scheme='affine' for all of int32": lambda: Histogram(INT32),
    "eps=0; allowed is a float above 0": lambda: MinMax(eps=0),
    "eps='a' is a str": lambda: Histogram(eps="a"),
    "averaging_constant=1.5; allowed": lambda: MovingAverageMinMax(averaging_constant=1.5),
    "averaging_constant=None is a NoneType": lambda: MovingAveragePerChannelMinMax(averaging_constant=None),
    "axis=-1; allowed is an int from 0 to 63": lambda: PerChannelMinMax(axis=-1),
    "bins=0; allowed is an int from 1": lambda: Histogram(bins=0),
    "upsample_rate=1.5 is a float": lambda: Histogram(upsample_rate=1.5),
    "axis=1; allowed is an int from 0 to 0": lambda: PerChannelMinMax(axis=1).init((3,)),
    r"x has channels of shape \(4,\) for axis=0; allowed is \(3,\)": lambda: PerChannelMinMax().update(
        PerChannelMinMax().init((3,)), np.ones((4, 2), np.float32)
    ),
    r"x has channels of shape \(\) for axis=None; allowed is \(3,\)": lambda: MinMax().update(
        PerChannelMinMax().init((3,)), np.ones((4, 2), np.float32)
    ),
    r"state has bins of shape \(2048,\); allowed is \(16,\)": lambda: Histogram(bins=16).update(
        Histogram().init(), np.ones(2, np.float32)
    ),
    "x has dtype int64; allowed are float32": lambda: MinMax().update(MinMax().init(), np.arange(3)),
    "x is a list": lambda: Histogram().update(Histogram().init(), [1.0]),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()


def test_observers_are_values():
    for observer in (*RANGES, Recording(), Noop()):
        twin = pickle.loads(pickle.dumps(observer))
        assert twin == observer
        assert hash(twin) == hash(observer)
    assert MinMax(UINT8) != MinMax(INT8)
    assert Counts._fields == ("histogram", "min_val", "max_val")  # names in torch's checkpoints
