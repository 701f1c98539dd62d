"""torch's own fake quantization, observers and rules of parameters, which the affine law equals bit for bit."""

import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from affine_support import activations, ties
from peer_support import compare
from support import DTYPES, assert_same_bits, bits, to_torch

from qcore.affine import (
    INT8,
    UINT8,
    AffineInteger,
    Histogram,
    MinMax,
    MovingAverageMinMax,
    MovingAveragePerChannelMinMax,
    Names,
    PerChannelMinMax,
    QParams,
    choose_qparams,
    choose_qparams_dynamic,
    fake_quantize,
)
from qcore.affine.histogram import error_of_part

FORMS = [AffineInteger.of_width(bits, signed) for bits in range(2, 17) for signed in (True, False)]
FORMS += [INT8.reduced(), UINT8.reduced()]
TYPES = {torch.qint8: INT8, torch.quint8: UINT8}


@contextmanager
def torch_ao():
    """torch.ao.quantization warns that it is deprecated, and of reduce_range, infinities and much else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import observer

        yield observer


def zero_points(rng, form, scheme):
    """An even and an odd one, or the one of the symmetric scheme."""
    if scheme == "symmetric":
        return [form.middle]
    even, odd = (int(rng.integers(form.qmin, form.qmax)) // 2 * 2 + parity for parity in (0, 1))
    return [even, odd]


def compare_per_tensor(rng, form, count, dtype="float32"):
    checked = 0
    for zero_point in zero_points(rng, form, "affine") + zero_points(rng, form, "symmetric"):
        scale = np.float32(2.0 ** rng.uniform(-10, 4))
        with np.errstate(over="ignore"):
            x = ties(rng, scale, zero_point, form, count).astype(DTYPES[dtype])
        with np.errstate(over="ignore"):
            y, mask = fake_quantize(x, QParams.of(scale, zero_point), form)
        peer = to_torch(x).requires_grad_()
        result = torch.fake_quantize_per_tensor_affine(peer, float(scale), zero_point, form.qmin, form.qmax)
        assert_same_bits(result, y, f"{form} {scale} {zero_point}")
        result.sum().backward()
        np.testing.assert_array_equal(peer.grad.float().numpy(), mask.astype(np.float32))
        checked += x.size
    return checked


@pytest.mark.parametrize("dtype", DTYPES)
def test_per_tensor(dtype):
    rng = np.random.default_rng(5)
    for form in FORMS:
        compare_per_tensor(rng, form, 3000, dtype)


@pytest.mark.heavy
def test_per_tensor_on_millions():
    rng = np.random.default_rng(6)
    assert sum(compare_per_tensor(rng, form, 10**5) for form in FORMS) >= 4 * 10**6


def compare_per_channel(rng, form, count):
    channels = 6
    scales = np.float32(2.0 ** rng.uniform(-10, 4, channels))
    zeros = [zero for _ in range(2) for zero in zero_points(rng, form, "affine") + zero_points(rng, form, "symmetric")]
    x = np.stack([ties(rng, *pair, form, count) for pair in zip(scales, zeros, strict=True)], axis=1)
    y, mask = fake_quantize(x, QParams.of(scales, zeros, 1), form)
    peer = torch.from_numpy(x).requires_grad_()
    peers = torch.from_numpy(scales), torch.tensor(zeros, dtype=torch.int32)
    result = torch.fake_quantize_per_channel_affine(peer, *peers, 1, form.qmin, form.qmax)
    result.sum().backward()
    with np.errstate(over="ignore"):
        overflow = x * (1 / scales) >= 2.0**63  # torch's int64 overflow there, to qmin; here such numbers saturate
    counts = compare(x.ravel(), (bits(result) == bits(y)).ravel(), {"overflow": overflow.ravel()}, str(form))
    assert counts == {"overflow": overflow.sum()}
    np.testing.assert_array_equal(peer.grad.numpy(), mask)
    return x.size


def test_per_channel():
    rng = np.random.default_rng(7)
    for form in FORMS:
        compare_per_channel(rng, form, 1000)


@pytest.mark.heavy
def test_per_channel_on_millions():
    rng = np.random.default_rng(8)
    assert sum(compare_per_channel(rng, form, 25_000) for form in FORMS) >= 4 * 10**6


def test_masked_gradients_are_zero_without_sign():
    """torch multiplies the gradient with the mask, which gives -0.0 for negative ones and NaN for infinities."""
    x = torch.tensor([300.0, 300.0], requires_grad=True)
    torch.fake_quantize_per_tensor_affine(x, 1.0, 0, 0, 255).backward(torch.tensor([-1.0, torch.inf]))
    assert_same_bits(x.grad[:1], np.float32([-0.0]))
    assert x.grad[1].isnan()


def ranges(count=20_000):
    rng = np.random.default_rng(9)
    ends = np.sort(rng.normal(size=(2, count)) * 2.0 ** rng.integers(-30, 30, count), axis=0).astype(np.float32)
    ends[:, :500] = ends[0, :500]
    ends[0, 500:600] = 0
    ends[1, 600:700] = ends[0, 600:700] + 1e-9
    return np.sort(ends, axis=0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
@pytest.mark.parametrize("ends", [None, (0, 15), (-5, 100)], ids=str)
@pytest.mark.parametrize("reduced", [False, True])
def test_parameters_of_ranges(dtype, scheme, ends, reduced):
    if dtype is torch.quint8 and reduced and scheme == "symmetric":
        pytest.skip("torch refuses it")
    if dtype is torch.quint8 and ends == (-5, 100):
        pytest.skip("unsigned integers have no negative range here")
    form = TYPES[dtype] if ends is None else AffineInteger(*ends, signed=dtype is torch.qint8)
    options = {} if ends is None else {"quant_min": ends[0], "quant_max": ends[1]}
    low, high = ranges()
    with torch_ao() as observer:
        kind = getattr(torch, f"per_channel_{scheme}")
        peer = observer.PerChannelMinMaxObserver(dtype=dtype, qscheme=kind, reduce_range=reduced, **options)
        scale, zero_point = peer._calculate_qparams(torch.from_numpy(low), torch.from_numpy(high))
    actual = choose_qparams(low, high, form.reduced() if reduced else form, scheme, axis=0)
    assert_same_bits(actual.scale, scale)
    np.testing.assert_array_equal(actual.zero_point, zero_point)


@pytest.mark.parametrize("reduced", [False, True])
def test_dynamic_parameters_of_ranges(reduced):
    form = UINT8.reduced() if reduced else UINT8
    low, high = ranges()
    actual = choose_qparams_dynamic(low, high, form)
    pairs = torch.from_numpy(np.stack([low, high], axis=1))
    expected = [torch._choose_qparams_per_tensor(pair, reduced) for pair in pairs]
    assert_same_bits(actual.scale, np.array([scale for scale, _ in expected]).astype(np.float32))
    np.testing.assert_array_equal(actual.zero_point, [zero_point for _, zero_point in expected])


def test_dynamic_parameters_where_the_scale_would_be_subnormal():
    """torch keeps 6.1e-5 down to 1 / scale = inf, 2^-128; here 0.1 stands in from 2^-126, where XLA begins to flush."""
    high = np.float32(255 * 2.0**-127)
    assert torch._choose_qparams_per_tensor(torch.tensor([0, high]), False)[0] == np.float32(6.1e-5)
    assert choose_qparams_dynamic(np.float32(0), high, UINT8).scale == np.float32(0.1)


def same_state(state, peer):
    for name, value in state._asdict().items():
        expected = getattr(peer, name).numpy()
        where = value != 0  # zeros have no sign here
        assert_same_bits(np.where(where, value, np.float32(0)), np.where(expected != 0, expected, np.float32(0)), name)


def same_parameters(qparams, peer):
    scale, zero_point = peer.calculate_qparams()
    assert_same_bits(qparams.scale, scale.reshape(qparams.scale.shape))
    np.testing.assert_array_equal(qparams.zero_point, zero_point.reshape(qparams.zero_point.shape))


OBSERVERS = {
    "MinMaxObserver": MinMax,
    "MovingAverageMinMaxObserver": MovingAverageMinMax,
    "PerChannelMinMaxObserver": PerChannelMinMax,
    "MovingAveragePerChannelMinMaxObserver": MovingAveragePerChannelMinMax,
    "HistogramObserver": Histogram,
}


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("name", OBSERVERS)
def test_observers_over_steps(name, kind):
    rng = np.random.default_rng([10, kind])
    channels = "Channel" in name
    dtype, scheme = (torch.qint8, "symmetric") if kind % 2 else (torch.quint8, "affine")
    with torch_ao() as observer:
        options = {"ch_axis": 1} if channels else {}
        kind_of = getattr(torch, f"per_{'channel' if channels else 'tensor'}_{scheme}")
        peer = getattr(observer, name)(dtype=dtype, qscheme=kind_of, **options)
        own = OBSERVERS[name](TYPES[dtype], scheme, **({"axis": 1} if channels else {}))
        state = own.init((16, 6, 9))
        for step in range(100 if name != "HistogramObserver" else 40):
            x = activations(rng, step)[kind]
            peer(torch.from_numpy(x))
            state = own.update(state, x)
            same_state(state, peer)
            if step % 5 == 0:
                same_parameters(own.qparams(state), peer)


@pytest.mark.parametrize("kind", range(6))
def test_errors_of_parts_of_histograms(kind):
    rng = np.random.default_rng([13, kind])
    with torch_ao() as observer:
        peer = observer.HistogramObserver(dtype=torch.qint8)
    peer(torch.from_numpy(activations(rng, 0)[kind]))
    histogram, low, high = (value.numpy() for value in (peer.histogram, peer.min_val, peer.max_val))
    width = (np.float64(high) - np.float64(low)) / 2048
    for first, last in np.sort(rng.integers(0, 2048, (200, 2))):
        expected = np.float32(peer._compute_quantization_error(int(first), int(last)))
        with Names.arithmetic():
            actual = error_of_part(Names, histogram, width, np.int32(first), np.int32(last), 256)
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("kind", range(6))
def test_quantiles_of_whole_counts(kind):
    """100,000 elements: 1e-5 of them is one, and the quantiles are equal to sums of counts."""
    rng = np.random.default_rng([14, kind])
    for form, dtype in ((UINT8, torch.quint8), (INT8, torch.qint8)):
        x = np.concatenate([activations(rng, 0)[kind].ravel() for _ in range(116)])[: 10**5]
        with torch_ao() as observer:
            peer, own = observer.HistogramObserver(dtype=dtype), Histogram(form)
            peer(torch.from_numpy(x))
            same_parameters(own.qparams(own.update(own.init(), x)), peer)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", range(6))
def test_histograms_over_many_steps(kind):
    rng = np.random.default_rng([11, kind])
    with torch_ao() as observer:
        peer, own = observer.HistogramObserver(), Histogram()
        state = own.init()
        for step in range(300):
            x = activations(rng, step)[kind]
            peer(torch.from_numpy(x))
            state = own.update(state, x)
            same_state(state, peer)
            same_parameters(own.qparams(state), peer)


def test_histograms_cut_into_other_parts():
    rng = np.random.default_rng(12)
    with torch_ao() as observer:
        peer, own = observer.HistogramObserver(), Histogram(upsample_rate=128)
        peer.upsample_rate = 128
        state = own.init()
        for step in range(10):
            x = activations(rng, step)[0] * np.float32(step + 1)
            peer(torch.from_numpy(x))
            state = own.update(state, x)
        same_state(state, peer)
        same_parameters(own.qparams(state), peer)


def test_histograms_without_infinities():
    x = np.float32([1, -2, np.inf, 3, -np.inf, 0.5])
    with torch_ao() as observer:
        peer, own = observer.HistogramObserver(), Histogram()
        peer(torch.from_numpy(x))
    same_state(own.update(own.init(), x), peer)
