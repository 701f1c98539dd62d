"""Observers as modules: torch.ao's bits, buffers and state_dicts, over 300 steps of a network that learns digits."""

import copy
import pickle

import pytest
import torch
from covering import usually
from quantization_support import activations, torch_ao
from support import assert_same_bits

import qtorch.quantization as ours
from qcore import affine as reference
from qcore.affine import INT8, INT32, UINT8, AffineInteger
from qtorch._affine import namespace
from qtorch._affine.dtypes import integers


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: other threads are only waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SETTINGS = {
    "MinMaxObserver": [{}, {"dtype": torch.qint8, "qscheme": torch.per_tensor_symmetric}, {"reduce_range": True}],
    "MovingAverageMinMaxObserver": [{}, {"averaging_constant": 0.3, "quant_min": 0, "quant_max": 15}],
    "PerChannelMinMaxObserver": [{"ch_axis": 1}, {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric}],
    "MovingAveragePerChannelMinMaxObserver": [{"ch_axis": 1, "eps": 1e-3}],
    "HistogramObserver": [{}, {"dtype": torch.qint8, "qscheme": torch.per_tensor_symmetric, "bins": 256}],
}
CASES = [(name, settings) for name, choices in SETTINGS.items() for settings in choices]


def pair(name, settings):
    with torch_ao() as peer:
        return getattr(ours, name)(**settings), getattr(peer, name)(**settings)


def same_state(own, peer):
    mine, theirs = own.state_dict(), peer.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.shape == theirs[name].shape
        assert_same_bits(value + 0.0, theirs[name] + 0.0, name)  # zeros have no sign here


def same_parameters(own, peer):
    with torch_ao():
        (scale, zero_point), expected = own.calculate_qparams(), peer.calculate_qparams()
    assert_same_bits(scale, expected[0])
    assert zero_point.dtype is torch.int32
    assert zero_point.tolist() == expected[1].tolist()


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_over_steps(name, settings):
    for steps in activations() if settings == SETTINGS[name][0] else activations()[1:3]:
        own, peer = pair(name, settings)
        for step, x in enumerate(steps[:: 3 if "Histogram" in name else 1]):  # whose search takes torch long
            assert own(x) is x
            with torch_ao():
                peer(x)
            same_state(own, peer)
            if step % (10 if "Histogram" in name else 1) == 0:
                same_parameters(own, peer)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_state_dicts_of_torch_load_and_ours_there(name, settings):
    own, peer = pair(name, settings)
    fresh, theirs = pair(name, settings)
    for x in activations()[1][:5]:
        own(x)
        with torch_ao():
            peer(x)
    fresh.load_state_dict(peer.state_dict())
    same_state(fresh, own)
    same_parameters(fresh, peer)
    theirs.load_state_dict(own.state_dict())
    same_parameters(own, theirs)
    with torch_ao():
        peer(activations()[1][9])
    fresh(activations()[1][9])
    same_state(fresh, peer)
    for twin in (copy.deepcopy(fresh), pickle.loads(pickle.dumps(fresh))):
        same_state(twin, fresh)


def test_eps_is_loaded():
    with torch_ao() as peer:
        source = peer.MinMaxObserver(eps=0.5)
    own = ours.MinMaxObserver()
    own.load_state_dict(source.state_dict())
    own(torch.tensor([0.0, 1e-3]))
    assert own.calculate_qparams()[0].tolist() == [0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", SETTINGS)
def test_other_dtypes(name, dtype):
    own, narrow = getattr(ours, name)(), getattr(ours, name)()
    for x in activations()[1][:3]:
        own(x.to(dtype).float())
        narrow(x.to(dtype))
    same_state(narrow, own)


def test_extremes_by_a_kernel(monkeypatch):
    """torch's bits on all patterns, sizes around vectors, and any strides; NaN of either sign, wherever they are."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 15, 17, 1000, 1 << 15, (1 << 15) + 17):
        patterns = torch.randint(-(2**31), 2**31, (size,), generator=generator).to(torch.int32).view(torch.float32)
        x = torch.where(patterns.isnan(), 1.0, patterns)
        single = (torch.full((size,), number) for number in (torch.inf, -torch.inf, 1e-40, -1e-40, -2.0))
        for numbers in (x, x.abs(), -x.abs(), x.clamp(-1e-39, 1e-39), *single):
            monkeypatch.setattr(namespace, "_LARGE", 0)
            found = namespace.whole_extremes(numbers)
            monkeypatch.setattr(namespace, "_LARGE", 1 << 20)
            for own, expected in zip(found, namespace.whole_extremes(numbers), strict=True):
                assert_same_bits(own, expected)
        monkeypatch.setattr(namespace, "_LARGE", 0)
        for pattern in (0x7F800001, 0x7FC00000, -0x7FFFFF, -0x400000):
            for place in {0, size // 2, size - 1}:
                wrong = x.clone()
                wrong.view(torch.int32)[place] = pattern
                assert all(map(torch.isnan, namespace.whole_extremes(wrong)))
    x = torch.randn(6, 5, generator=generator)
    for view in (x.t(), x[:, ::2], x[1:, 1:], x[:1, :1], x.expand(2, 6, 5)):
        assert namespace.whole_extremes(view) == (view.amin(), view.amax())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_extremes_whatever_the_default_dtype(dtype):
    x, usual = torch.randn(1 << 16), torch.get_default_dtype()
    observer = ours.MinMaxObserver()
    try:
        torch.set_default_dtype(dtype)
        observer(x)
    finally:
        torch.set_default_dtype(usual)
    assert (observer.min_val.item(), observer.max_val.item()) == (x.min().item(), x.max().item())


def test_later_tensors_do_not_change_what_was_found():
    """A kernel writes them where it is told to, and nowhere twice."""
    first = namespace.whole_extremes(torch.full((1 << 15,), 1.0))
    namespace.whole_extremes(torch.full((1 << 15,), 2.0))
    assert first == (1, 1)


def test_large_tensors():
    for x in (torch.randn(1 << 15), torch.full((1 << 15,), torch.nan)):
        own, peer = pair("MinMaxObserver", {})
        own(x)
        peer(x)
        same_state(own, peer)


def test_what_is_not_finite():
    """Extremes keep infinities and NaN; histograms leave them out."""
    wrong = torch.tensor([torch.inf, -torch.inf, torch.nan])
    x = activations()[1][0]
    minmax, histogram, clean = ours.MinMaxObserver(), ours.HistogramObserver(), ours.HistogramObserver()
    minmax(wrong[:2])
    assert (minmax.min_val, minmax.max_val) == (-torch.inf, torch.inf)
    clean(x)
    for values in (wrong, torch.cat([x.flatten(), wrong])):
        histogram(values)
    same_state(histogram, clean)


def test_zeros_have_no_sign():
    for name in SETTINGS:
        own = getattr(ours, name)()
        own(torch.tensor([[-0.0, 0.0], [-0.0, -0.0]]))
        assert not torch.signbit(torch.stack([own.min_val, own.max_val])).any()


def test_histograms_are_those_of_the_law():
    """In pieces, in a range that grows, and with another rate."""
    rule, own = reference.Histogram(upsample_rate=128), ours.HistogramObserver(upsample_rate=128)
    state = rule.init()
    generator = torch.Generator().manual_seed(0)
    for x in (
        torch.zeros(3),
        torch.full((2,), -0.0),
        torch.randn(200_000, generator=generator),
        activations()[0][0] * 9,
    ):
        own(x)
        state = rule.update(state, x.numpy())
        assert_same_bits(own.histogram, state.histogram)
    assert_same_bits(own.calculate_qparams()[0], rule.qparams(state).scale.reshape(1))


@pytest.mark.parametrize("name", usually(("MinMaxObserver", "HistogramObserver"), SETTINGS))
def test_compiled(name):
    torch._dynamo.reset()
    own, traced = getattr(ours, name)(), getattr(ours, name)()
    program = lambda x: (traced(x) + 1, *traced.calculate_qparams())  # noqa: E731
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    for x in activations()[1][:3]:
        own(x)
        _, scale, zero_point = compiled(x)
        same_state(traced, own)
        assert_same_bits(scale, own.calculate_qparams()[0])
        assert zero_point.tolist() == own.calculate_qparams()[1].tolist()


def test_forgetting():
    for name in SETTINGS:
        own = getattr(ours, name)()
        own(torch.randn(3, 4))
        own.reset_min_max_vals()
        same_state(own, getattr(ours, name)())


def test_recording_and_noop():
    recording, noop = ours.RecordingObserver(), ours.NoopObserver()
    x = torch.ones(2)
    for observer in (recording, noop):
        assert observer(x) is x
        with pytest.raises(TypeError, match="chooses no parameters"):
            observer.calculate_qparams()
    x.fill_(7)
    assert [tensor.tolist() for tensor in recording.get_tensor_value()] == [[1, 1]]
    q = ours.quantize_per_tensor(x, 0.5, 0, torch.quint8)
    assert recording(q) is q
    assert recording.get_tensor_value()[1].equal(q)
    assert noop.dtype is torch.float16
    assert not recording.state_dict()


def test_names_of_integers():
    assert integers(torch.quint8) == integers(torch.uint8) == UINT8
    assert integers(torch.qint8) == integers(torch.int8) == INT8
    assert integers(torch.qint32) == integers(torch.int32) == INT32
    assert integers(torch.qint8, 0, 15).middle == 0  # whose type is signed, whatever the range
    assert integers(AffineInteger(0, 15), 0, 7) == AffineInteger(0, 7)
    assert integers(torch.quint8, 0, 255).middle == 127  # as torch does, where 128 stands for the whole type
    for scheme in (torch.per_tensor_symmetric, "symmetric"):
        assert ours.MinMaxObserver(qscheme=scheme).rule.scheme == "symmetric"
    assert issubclass(ours.MinMaxObserver, ours.Observer)
    assert ours.MovingAverageObserver is ours.MovingAverageMinMaxObserver


X = torch.ones(2, 3)
WRONG = [
    (lambda: ours.MinMaxObserver(dtype=torch.float32), TypeError, r"dtype=torch\.float32; allowed are torch\.quint8"),
    (lambda: ours.MinMaxObserver(qscheme=torch.per_channel_affine), ValueError, r"qscheme=torch\.per_channel_affine"),
    (lambda: ours.PerChannelMinMaxObserver(qscheme=torch.per_tensor_affine), ValueError, "qscheme=torch.per_tensor"),
    (lambda: ours.MinMaxObserver(qscheme="none"), ValueError, "qscheme='none'; allowed are"),
    (lambda: ours.MinMaxObserver(quant_min=0), ValueError, "quant_min=0 and quant_max=None; allowed are both"),
    (
        lambda: ours.MinMaxObserver(quant_min=0, quant_max=256),
        ValueError,
        "quant_max=256; allowed is an int from 0 to 255",
    ),
    (lambda: ours.MinMaxObserver(quant_min=-1, quant_max=9), ValueError, "quant_min=-1; allowed is an int from 0 to 0"),
    (lambda: ours.MinMaxObserver(reduce_range=1), TypeError, "reduce_range=1 is a int"),
    (lambda: ours.MinMaxObserver(eps=0), ValueError, "eps=0; allowed is a float above 0"),
    (lambda: ours.MinMaxObserver(dtype=torch.qint32), ValueError, "allowed is 'symmetric'"),
    (lambda: ours.MovingAverageMinMaxObserver(averaging_constant=2), ValueError, "averaging_constant=2"),
    (lambda: ours.PerChannelMinMaxObserver(ch_axis=-1), ValueError, "ch_axis=-1"),
    (lambda: ours.HistogramObserver(bins=0), ValueError, "bins=0"),
    (lambda: ours.MinMaxObserver()([1.0]), TypeError, "x is a list"),
    (lambda: ours.MinMaxObserver()(X.int()), TypeError, "x has dtype int32"),
    (lambda: ours.MinMaxObserver().calculate_qparams(), ValueError, "observe something before asking for parameters"),
    (lambda: ours.HistogramObserver().calculate_qparams(), ValueError, "observe something before asking"),
    (lambda: ours.PerChannelMinMaxObserver().calculate_qparams(), ValueError, "observe something before asking"),
    (lambda: ours.PerChannelMinMaxObserver(ch_axis=2)(X), ValueError, "axis=2; allowed is an int from 0 to 1"),
    (lambda: ours.RuleObserver(3), TypeError, "rule is a int; allowed is an observer of extremes of qcore.affine"),
    (lambda: ours.RecordingObserver()(3), TypeError, "x is a int; allowed is a torch.Tensor"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_other_channels_than_before():
    own = ours.PerChannelMinMaxObserver()
    own(X[:0])
    own(X)
    with pytest.raises(ValueError, match=r"x has channels of shape \(3,\) for axis=0; allowed is \(2,\)"):
        own(X.t())
    assert own.min_val.tolist() == [1, 1]
