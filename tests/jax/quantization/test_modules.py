"""FakeQuantize and QConfig in JAX: the definition written out, switches inside programs, torch's defaults."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from affine_support import activations
from support import assert_same_bits

import qcore.affine as reference
import qjax.quantization as quantization
from qcore.affine import INT8, UINT8, AffineInteger
from qjax.quantization import (
    FakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    NoopObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigDynamic,
    RecordingObserver,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    get_default_qat_qconfig,
    get_default_qconfig,
)

MODULES = [
    FakeQuantize(),
    FakeQuantize(PerChannelMinMaxObserver, ch_axis=1, dtype="qint8", qscheme="per_channel_symmetric"),
    FakeQuantize(HistogramObserver(bins=64), reduce_range=True),
]
IDS = [type(module.observer).__name__ for module in MODULES]
QUICK = [*MODULES[:-1], pytest.param(MODULES[-1], marks=pytest.mark.heavy)]  # a histogram compiles for seconds


class Definition:
    """FakeQuantize with NumPy and statements."""

    def __init__(self, module, shape):
        self.rule, self.state = module.observer.rule, module.observer.rule.init(shape)
        self.qparams = None

    def __call__(self, x, observing, quantizing):
        if observing:
            self.state = self.rule.update(self.state, x)
            self.qparams = self.rule.qparams(self.state)
        qparams = self.qparams
        if qparams is None:
            channels = self.state.min_val.shape
            axis = getattr(self.rule, "axis", None)
            qparams = reference.QParams(np.ones(channels, np.float32), np.zeros(channels, np.int32), axis)
        y, mask = reference.fake_quantize(x, qparams, self.rule.form)
        return (y, mask, qparams) if quantizing else (x, np.ones_like(mask), qparams)


@pytest.mark.parametrize("module", QUICK, ids=IDS)
def test_switches(module):
    """One program serves all four settings, which it is given as arrays; the gradient passes inside the range."""
    rng = np.random.default_rng(1)
    compilations = []

    @jax.jit
    def step(state, x, observing, quantizing):
        compilations.append(1)
        state = enable_fake_quant(enable_observer(state, observing), quantizing)
        y, back, state = jax.vjp(lambda x: module.apply(state, x), x, has_aux=True)
        return y, back(x)[0], state

    shape = (16, 6, 9)
    state, definition = module.init(shape), Definition(module, shape)
    settings = [(False, True), (True, True), (True, False), (False, False), (False, True), (True, True)]
    for number, (observing, quantizing) in enumerate(settings):
        x = activations(rng, number)[number % 5] * np.float32(1 + number / 4)
        y, gradient, state = step(state, x, observing, quantizing)
        expected, mask, qparams = definition(x, observing, quantizing)
        assert_same_bits(y, expected, str(number))
        assert_same_bits(gradient, np.where(mask, x, np.float32(0)))
        for own, other in zip(state.activation_post_process, definition.state, strict=True):
            assert_same_bits(own, other)
        for own, other in zip((state.scale, state.zero_point), (qparams.scale, qparams.zero_point), strict=True):
            assert_same_bits(own, other)
        assert module.qparams(state).axis == module.observer.axis
        assert (bool(state.observer_enabled), bool(state.fake_quant_enabled)) == (observing, quantizing)
    assert len(compilations) == 1


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_scan_and_eager(module):
    arrays = np.stack([activations(np.random.default_rng(2), step)[0] for step in range(4)])
    definition = Definition(module, arrays.shape[1:])
    expected = np.stack([definition(x, True, True)[0] for x in arrays])
    start = module.init(arrays.shape[1:])
    state, scanned = jax.lax.scan(lambda state, x: module.apply(state, x)[::-1], start, arrays)
    assert_same_bits(scanned, expected)
    eager = start
    for x, y in zip(arrays, expected, strict=True):
        own, eager = module.apply(eager, jnp.asarray(x))
        assert_same_bits(own, y)
    jax.tree.map(assert_same_bits, eager, state)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), start) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )


@pytest.mark.parametrize("module", [FakeQuantize(dtype="qint8"), QUICK[2]], ids=[IDS[0], IDS[2]])
def test_parameters_stay_until_a_number_was_seen(module):
    state = module.init()
    _, state = module.apply(state, jnp.zeros((0, 3)))
    assert (state.scale, state.zero_point) == (1, 0)
    if module is MODULES[2]:
        _, state = module.apply(state, jnp.full((5,), jnp.nan))
        assert (state.scale, state.zero_point) == (1, 0)
    y, state = module.apply(state, jnp.float32([-1, 3]))
    assert state.scale < 1
    assert y.shape == (2,)


def test_vmap():
    """Many modules at once, each with switches of its own."""
    module, arrays = FakeQuantize(), np.stack([activations(np.random.default_rng(4), step)[0] for step in range(3)])
    states = jax.vmap(lambda _: module.init())(jnp.arange(3))
    states = enable_observer(states, jnp.array([True, False, True]))
    y, states = jax.vmap(module.apply)(states, arrays)
    for row, observing in enumerate((True, False, True)):
        assert_same_bits(y[row], Definition(module, ())(arrays[row], observing, True)[0])
    assert states.scale[1] == 1


def test_half_precision_keeps_its_dtype():
    x = activations(np.random.default_rng(3), 0)[0].astype(np.float16)
    y, state = FakeQuantize().apply(FakeQuantize().init(), jnp.asarray(x))
    assert_same_bits(y, Definition(FakeQuantize(), ())(x, True, True)[0])
    assert state.scale.dtype == jnp.float32


def test_switches_of_trees():
    tree = {"a": FakeQuantize().init(), "b": [MODULES[1].init((2, 3)), jnp.ones(3)]}
    off = disable_observer(disable_fake_quant(tree))
    for state in (off["a"], off["b"][0]):
        assert not state.observer_enabled
        assert not state.fake_quant_enabled
    assert_same_bits(off["b"][1], np.ones(3, np.float32))
    on = enable_fake_quant(off)
    assert on["a"].fake_quant_enabled
    assert not on["a"].observer_enabled
    assert enable_observer(on)["b"][0].observer_enabled
    stacked = jax.vmap(lambda _: FakeQuantize().init())(jnp.arange(4))
    assert disable_observer(stacked).observer_enabled.shape == (4,)


def test_dictionary_of_observers():
    """By the paths of a tree, and as a checkpoint takes it."""
    fake, observed = MODULES[1].init((2, 3)), MinMaxObserver().init()
    found = quantization.get_observer_dict({"a": [fake, jnp.ones(3)], "b": {"c": observed}}, "net")
    assert list(found) == ["net.a.0.activation_post_process", "net.b.c"]
    assert found["net.a.0.activation_post_process"] is fake.activation_post_process
    assert found["net.b.c"] is observed
    assert quantization.get_observer_dict(observed, "net") == {"net": observed}


def test_arguments():
    """torch's spelling, and ours."""
    spelled = FakeQuantize(
        observer=MovingAverageMinMaxObserver,
        quant_min=-128,
        quant_max=127,
        dtype="qint8",
        qscheme="per_tensor_symmetric",
    )
    assert spelled.observer.form == INT8
    observer = MovingAverageMinMaxObserver(dtype="qint8", qscheme="per_tensor_symmetric")
    assert FakeQuantize(observer) == quantization.default_weight_fake_quant
    assert FakeQuantize.with_args(observer=MinMaxObserver) == FakeQuantize(MinMaxObserver())
    assert FakeQuantize().with_args(dtype=AffineInteger(0, 15)).observer.form.qmax == 15
    assert FakeQuantize().observer.form == UINT8
    twin = pickle.loads(pickle.dumps(spelled))
    assert twin == spelled
    assert hash(twin) == hash(spelled)


def described(description):
    observer = getattr(description, "observer", description)
    return type(observer).__name__, observer.form.qmin, observer.form.qmax, observer.rule.scheme


def test_defaults():
    minmax, average, histogram = "MinMaxObserver", "MovingAverageMinMaxObserver", "HistogramObserver"
    channels, averages = "PerChannelMinMaxObserver", "MovingAveragePerChannelMinMaxObserver"
    low, weights = (0, 127, "affine"), (-128, 127, "symmetric")
    for name, activation, weight in (
        ("default_qconfig", (minmax, *low), (minmax, *weights)),
        ("default_per_channel_qconfig", (minmax, *low), (channels, *weights)),
        ("default_qat_qconfig", (average, *low), (average, *weights)),
    ):
        config = getattr(quantization, name)
        assert (described(config.activation), described(config.weight)) == (activation, weight)
    for backend, config, qat in (
        ("fbgemm", ((histogram, *low), (channels, *weights)), ((average, *low), (averages, *weights))),
        (
            "qnnpack",
            ((histogram, 0, 255, "affine"), (minmax, *weights)),
            ((average, 0, 255, "affine"), (average, *weights)),
        ),
    ):
        for expected, actual in ((config, get_default_qconfig(backend)), (qat, get_default_qat_qconfig(backend))):
            assert (described(actual.activation), described(actual.weight)) == expected
    assert get_default_qconfig() == get_default_qconfig("fbgemm")
    assert get_default_qat_qconfig("onednn").weight == quantization.default_per_channel_weight_fake_quant
    assert quantization.default_debug_qconfig.activation == RecordingObserver()
    assert quantization.float16_dynamic_qconfig.weight == NoopObserver("float16")
    assert quantization.default_dynamic_qconfig == QConfigDynamic(quantization.default_weight_observer)
    assert QConfig(MinMaxObserver, FakeQuantize) == QConfig(MinMaxObserver(), FakeQuantize())


def test_names():
    assert quantization.__all__ == sorted(quantization.__all__)
    for name in quantization.__all__:
        assert callable(getattr(quantization, name)) or name.startswith(("default_", "float16_", "per_channel_"))


BAD = {
    "observer=RecordingObserver.*allowed are observers of ranges": lambda: FakeQuantize(RecordingObserver()),
    "observer='minmax'": lambda: FakeQuantize("minmax"),
    "quant_min=-1; allowed is an int from 0": lambda: FakeQuantize(quant_min=-1, quant_max=5),
    "activation='minmax': allowed here are float": lambda: QConfig("minmax", MinMaxObserver),
    "weight=<class 'dict'>; allowed": lambda: QConfigDynamic(dict),
    "backend='gpu'; allowed are x86, fbgemm, qnnpack, onednn": lambda: get_default_qconfig("gpu"),
    "backend=1 is a int": lambda: get_default_qat_qconfig(1),
    "x is a list": lambda: FakeQuantize().apply(FakeQuantize().init(), [1.0]),
    "x has dtype float64; allowed only after": lambda: FakeQuantize().apply(FakeQuantize().init(), np.ones(3)),
    "x has dtype int32": lambda: FakeQuantize().apply(FakeQuantize().init(), jnp.arange(3)),
    r"x has channels of shape \(4,\) for axis=1; allowed is \(3,\)": lambda: MODULES[1].apply(
        MODULES[1].init((2, 3)), jnp.ones((2, 4))
    ),
    "axis=1; allowed is an int from 0 to 0": lambda: MODULES[1].init((3,)),
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()
