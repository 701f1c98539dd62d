"""qjax's observers: NumPy's bits over 300 steps of a network's training, inside programs, and their arguments."""

import pickle

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from affine_support import activations
from covering import some
from jax.sharding import NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from support import assert_same_bits

import qcore.affine as reference
from qcore.affine import INT8, INT32, UINT8, AffineInteger
from qjax._namespace import Names
from qjax.quantization import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAverageObserver,
    MovingAveragePerChannelMinMaxObserver,
    NoopObserver,
    PerChannelMinMaxObserver,
    RecordingObserver,
)

PAIRS = [
    (MinMaxObserver(), reference.MinMax()),
    (MinMaxObserver("qint8", "per_tensor_symmetric"), reference.MinMax(INT8, "symmetric")),
    (MovingAverageMinMaxObserver(0.1), reference.MovingAverageMinMax(averaging_constant=0.1)),
    (PerChannelMinMaxObserver(1, reduce_range=True), reference.PerChannelMinMax(UINT8.reduced(), axis=1)),
    (
        MovingAveragePerChannelMinMaxObserver(0.01, 1, "qint8", "per_channel_symmetric"),
        reference.MovingAveragePerChannelMinMax(INT8, "symmetric", axis=1),
    ),
    (HistogramObserver(), reference.Histogram()),
]
IDS = [type(own).__name__ for own, _ in PAIRS]
# XLA compiles a histogram's program for seconds: an ordinary run takes it in `test_300_steps`.
QUICK = [*PAIRS[:-1], pytest.param(*PAIRS[-1], marks=pytest.mark.heavy)]
OBSERVERS = [own for own, _ in PAIRS]


@pytest.fixture(scope="module")
def digits():
    """Activations (16, 24) of a network with two layers that learns handwritten digits, at each of 300 steps."""
    pixels, labels = load_digits(return_X_y=True)
    pixels, rng = (pixels / 16).astype(np.float32), np.random.default_rng(1)
    first = rng.normal(size=(64, 24)).astype(np.float32) / 8
    second = rng.normal(size=(24, 10)).astype(np.float32) / 5
    steps = []
    for step in range(300):
        batch = rng.integers(0, len(pixels), 16)
        x, before = pixels[batch], pixels[batch] @ first
        hidden = np.maximum(before, 0)
        outputs = hidden @ second
        steps.append(before if step % 2 else hidden)
        odds = np.exp(outputs - outputs.max(1, keepdims=True))
        error = odds / odds.sum(1, keepdims=True) - np.eye(10, dtype=np.float32)[labels[batch]]
        back = (error @ second.T) * (before > 0)
        second -= 0.02 * hidden.T @ error
        first -= 0.02 * x.T @ back
    return steps


def assert_same_state(actual, expected):
    for own, other in zip(actual, expected, strict=True):
        assert_same_bits(own, other)


def assert_same_parameters(actual, expected):
    assert_same_bits(actual.scale, expected.scale)
    assert_same_bits(actual.zero_point, expected.zero_point)
    assert actual.axis == expected.axis


@pytest.mark.parametrize(("observer", "rule"), PAIRS, ids=IDS)
def test_300_steps(observer, rule, digits):
    own, state = observer.init((16, 24)), rule.init((16, 24))
    for step, x in enumerate(digits):
        own, state = observer.update(own, jnp.asarray(x)), rule.update(state, x)
        assert_same_state(own, state)
        if step % 5 == 0:
            assert_same_parameters(observer.qparams(own), rule.qparams(state))


@pytest.mark.parametrize(
    ("observer", "rule", "x64"),
    [
        *((*pair, False) for pair in PAIRS[:-1]),
        pytest.param(*PAIRS[-1], False, marks=pytest.mark.heavy),
        (*PAIRS[2], True),
    ],
)
def test_programs(observer, rule, x64, digits):
    """A scan, whose carry keeps its type, and vmap, under strict promotion."""
    arrays = np.stack(digits[:12])

    def run(arrays):
        start = observer.init(arrays.shape[1:])
        state, _ = jax.lax.scan(lambda state, x: (observer.update(state, x), None), start, arrays)
        return state, observer.qparams(state)

    def expected(arrays):
        state = rule.init(arrays.shape[1:])
        for x in arrays:
            state = rule.update(state, x)
        return state, rule.qparams(state)

    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"):
        own, parameters = jax.jit(run)(arrays)
        many = jax.jit(jax.vmap(run))(np.stack([arrays, arrays[::-1] * 2]))
    assert_same_state(own, expected(arrays)[0])
    assert_same_parameters(parameters, expected(arrays)[1])
    for row, part in enumerate((arrays, arrays[::-1] * 2)):
        state, parameters = jax.tree.map(lambda leaf, row=row: leaf[row], many)
        assert_same_state(state, expected(part)[0])
        assert_same_parameters(parameters, expected(part)[1])


@pytest.mark.parametrize(("observer", "rule"), QUICK, ids=IDS)
def test_strange_data(observer, rule):
    rng = np.random.default_rng(2)
    states = observer.init((16, 6, 9)), rule.init((16, 6, 9))
    strange = np.float32([[np.nan, 1, -0.0], [np.inf, 2, 1e-40]] * 3).reshape(1, 6, 3)
    arrays = [*(activations(rng, step)[step % 6] for step in range(6)), np.empty((0, 6, 9), np.float32), strange]
    for x in arrays:
        own, state = states = observer.update(states[0], jnp.asarray(x)), rule.update(states[1], x)
        if isinstance(observer, HistogramObserver) or x is not strange:
            assert_same_state(own, state)
        else:  # XLA takes 1e-40 for 0, and NaN have other bits
            for ends in zip(own, state, strict=True):
                np.testing.assert_allclose(*ends, atol=1e-38)


@some(*((i, i % 3) for i in range(len(PAIRS))), observer=OBSERVERS, dtype=[np.float16, ml_dtypes.bfloat16, np.float64])
def test_dtypes(observer, dtype):
    x = activations(np.random.default_rng(3), 0)[0].astype(dtype)
    with jax.enable_x64(dtype == np.float64):
        own = observer.update(observer.init(x.shape), jnp.asarray(x))
    assert_same_state(own, observer.rule.update(observer.rule.init(x.shape), x))
    assert {leaf.dtype.name for leaf in own} == {"float32"}


@pytest.mark.parametrize(("observer", "rule"), QUICK, ids=IDS)
def test_shardings(observer, rule, digits):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    states = observer.init((16, 24)), rule.init((16, 24))
    for x in digits[:3]:
        spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("d")))
        states = observer.update(states[0], spread), rule.update(states[1], x)
        assert_same_state(*states)
    assert_same_parameters(observer.qparams(states[0]), rule.qparams(states[1]))


@pytest.mark.parametrize("observer", OBSERVERS, ids=IDS)
def test_parameters_have_no_gradient(observer):
    def scale(x):
        return observer.qparams(observer.update(observer.init(x.shape), x)).scale.sum()

    assert_same_bits(jax.jit(jax.grad(scale))(jnp.arange(6.0).reshape(2, 3)), np.zeros((2, 3), np.float32))


def test_recording_and_noop():
    observer = RecordingObserver()
    state = observer.update(observer.update(observer.init(), jnp.arange(2.0)), jnp.ones((3, 1)))
    assert [record.shape for record in state] == [(2,), (3, 1)]
    assert_same_bits(state[0], np.float32([0, 1]))
    assert NoopObserver().update(NoopObserver().init(), jnp.ones(2)) == ()
    for observer in (RecordingObserver(), NoopObserver()):
        with pytest.raises(TypeError, match="chooses no parameters; allowed are observers of ranges"):
            observer.qparams(observer.init())


def test_arguments():
    """torch's names and order, and what they become."""
    assert MovingAverageObserver is MovingAverageMinMaxObserver
    assert MinMaxObserver("quint8", "per_tensor_affine", True).form == UINT8.reduced()
    assert MinMaxObserver(quant_min=0, quant_max=127).form == AffineInteger(0, 127, False, 63)
    assert MinMaxObserver("qint8", quant_min=-8, quant_max=7, reduce_range=True).form == AffineInteger(-4, 3)
    assert MinMaxObserver("qint8", quant_min=0, quant_max=100).form == AffineInteger(0, 100, signed=True)
    assert MinMaxObserver(AffineInteger(-5, 9)).form == AffineInteger(-5, 9)
    assert MinMaxObserver("int16", "symmetric").rule == reference.MinMax(AffineInteger.of_width(16), "symmetric")
    assert HistogramObserver(64, 8, "uint8").rule == reference.Histogram(UINT8, bins=64, upsample_rate=8)
    assert (MinMaxObserver().axis, PerChannelMinMaxObserver(2).axis, HistogramObserver().axis) == (None, 2, None)
    observer = MovingAverageMinMaxObserver.with_args(averaging_constant=0.5, dtype="qint8")
    assert observer.with_args(eps=0.25) == MovingAverageMinMaxObserver(0.5, "qint8", eps=0.25)


@pytest.mark.parametrize("observer", [*OBSERVERS, RecordingObserver(), NoopObserver("bfloat16")], ids=str)
def test_observers_are_values(observer):
    twin = pickle.loads(pickle.dumps(observer))
    assert twin == observer
    assert hash(twin) == hash(observer)
    assert twin.with_args() == observer


BAD = {
    "dtype='float8'; allowed are quint8": lambda: MinMaxObserver("float8"),
    r"dtype=\['qint8'\]; allowed are quint8": lambda: MinMaxObserver(["qint8"]),
    "qscheme='per_channel_affine'; allowed are per_tensor_affine, per_tensor_symmetric, affine, symmetric": lambda: (
        MinMaxObserver(qscheme="per_channel_affine")
    ),
    "qscheme='per_tensor_affine'; allowed are per_channel_affine": lambda: PerChannelMinMaxObserver(
        qscheme="per_tensor_affine"
    ),
    "qscheme=None is a NoneType": lambda: HistogramObserver(qscheme=None),
    "quant_min=-1; allowed is an int from 0 to 0": lambda: MinMaxObserver(quant_min=-1, quant_max=5),
    "quant_min=0 and quant_max=None; allowed are both or neither": lambda: MinMaxObserver(quant_min=0),
    "reduce_range=1 is a int": lambda: MinMaxObserver(reduce_range=1),
    "quant_max=128; allowed is an int from 0 to 127": lambda: MinMaxObserver("qint8", quant_min=0, quant_max=128),
    "scheme='affine' for all of int32": lambda: MinMaxObserver("qint32"),
    "averaging_constant=2": lambda: MovingAverageMinMaxObserver(2),
    "axis=-1; allowed is an int from 0 to 63": lambda: PerChannelMinMaxObserver(-1),
    "bins=0": lambda: HistogramObserver(0),
    "eps=0": lambda: MinMaxObserver(eps=0),
    "dtype='int8'; allowed are float32": lambda: NoopObserver("int8"),
    "observe something before asking": lambda: MinMaxObserver().qparams(MinMaxObserver().init()),
    "low=inf and high=-inf": lambda: HistogramObserver().qparams(HistogramObserver().init()),
    "x is a list": lambda: MinMaxObserver().update(MinMaxObserver().init(), [1.0]),
    "x has dtype float64; allowed only after": lambda: MinMaxObserver().update(MinMaxObserver().init(), np.ones(3)),
    "x has dtype int32": lambda: HistogramObserver().update(HistogramObserver().init(), jnp.arange(3)),
    r"x has channels of shape \(4,\) for axis=0; allowed is \(3,\)": lambda: PerChannelMinMaxObserver().update(
        PerChannelMinMaxObserver().init((3,)), jnp.ones((4, 2))
    ),
    "axis=1; allowed is an int from 0 to 0": lambda: PerChannelMinMaxObserver(1).init((3,)),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()


def test_int32_is_for_symmetric_schemes():
    assert MinMaxObserver("qint32", "per_tensor_symmetric").form == INT32


def test_searches_on_ties():
    edges, x = np.float32([-1, 0, 0, 2, 2, 2, 5]), np.float32([-2, -1, 0, 1, 2, 5, 6])
    for right in (False, True):
        found = Names.searchsorted(jnp.asarray(edges), jnp.asarray(x), right)
        assert_same_bits(found, reference.Names.searchsorted(edges, x, right))
