"""Affine quantization in PyTorch and JAX: the same bits, the same errors, and checkpoints that the other one reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
from affine_support import activations, ties
from covering import some, usually
from quantization_support import activations as digits
from support import DTYPES, assert_same_bits, to_torch

import qjax.quantization as jaxq
import qtorch.quantization as torchq
from qcore.affine import INT8, UINT8, AffineInteger
from qjax.quantization import FakeQuantizeState

FORMS = [AffineInteger.of_width(bits, signed) for bits in (2, 4, 8, 11, 16) for signed in (True, False)]
TOKENS = {"quint8": torch.quint8, "qint8": torch.qint8}
SCHEMES = {
    f"per_{granularity}_{kind}": getattr(torch, f"per_{granularity}_{kind}")
    for granularity in ("tensor", "channel")
    for kind in ("affine", "symmetric")
}


def pulled_by_torch(x, gradient, function, *arguments):
    x = to_torch(x).requires_grad_()
    y = function(x, *arguments)
    y.backward(to_torch(gradient))
    return y, x.grad


def pulled_by_jax(x, gradient, function, *arguments):
    y, back = jax.vjp(lambda x: function(x, *arguments), jnp.asarray(x))
    return y, back(jnp.asarray(gradient))[0]


@pytest.mark.parametrize(
    ("dtype", "forms"),
    [("float32", FORMS[::3]), ("bfloat16", [UINT8, INT8]), pytest.param("float32", FORMS, marks=pytest.mark.heavy)],
    ids=["float32", "bfloat16", "all"],
)
def test_per_tensor(dtype, forms):
    """Each width, and signed ones and others, of which JAX compiles a program for each."""
    rng = np.random.default_rng(1)
    for form in forms:
        for zero_point in (form.qmax // 2, form.qmax // 2 + 1):
            scale = float(np.float32(2.0 ** rng.uniform(-10, 4)))
            with np.errstate(over="ignore"):
                x = ties(rng, scale, zero_point, form, 2000).astype(DTYPES[dtype])
            gradient = rng.normal(size=x.shape).astype(x.dtype)
            arguments = scale, zero_point, form.qmin, form.qmax
            expected = pulled_by_torch(x, gradient, torchq.fake_quantize_per_tensor_affine, *arguments)
            actual = pulled_by_jax(x, gradient, jaxq.fake_quantize_per_tensor_affine, *arguments)
            for own, other in zip(actual, expected, strict=True):
                assert_same_bits(own, other, f"{form} {zero_point}")


@pytest.mark.parametrize("axis", usually([1], [0, 1, 2]))
def test_per_channel(axis):
    rng = np.random.default_rng(2)
    for form in FORMS[4:8]:
        count = 6
        scales, zeros = np.float32(2.0 ** rng.uniform(-8, 2, count)), rng.integers(form.qmin, form.qmax + 1, count)
        zeros = zeros.astype(np.int32)
        channels = [ties(rng, *pair, form, 110) for pair in zip(scales, zeros, strict=True)]
        x = np.moveaxis(np.stack(channels).reshape(count, 12, 10), 0, axis)
        gradient = rng.normal(size=x.shape).astype(np.float32)
        ends = form.qmin, form.qmax
        parameters = torch.from_numpy(scales), torch.from_numpy(zeros), axis, *ends
        expected = pulled_by_torch(x, gradient, torchq.fake_quantize_per_channel_affine, *parameters)
        parameters = jnp.asarray(scales), jnp.asarray(zeros), axis, *ends
        actual = pulled_by_jax(x, gradient, jaxq.fake_quantize_per_channel_affine, *parameters)
        for own, other in zip(actual, expected, strict=True):
            assert_same_bits(own, other, f"{form}")


OBSERVERS = [
    ("MinMaxObserver", {"dtype": "quint8", "qscheme": "per_tensor_affine"}),
    ("MovingAverageMinMaxObserver", {"dtype": "qint8", "qscheme": "per_tensor_symmetric", "averaging_constant": 0.1}),
    ("PerChannelMinMaxObserver", {"dtype": "qint8", "qscheme": "per_channel_symmetric", "ch_axis": 1}),
    ("MovingAveragePerChannelMinMaxObserver", {"ch_axis": 1, "reduce_range": True}),
    ("HistogramObserver", {"reduce_range": True}),
]


def pair(name, options):
    """The same observer, or what makes it, in both packages."""
    tokens = {option: (TOKENS | SCHEMES).get(value, value) for option, value in options.items()}
    return getattr(jaxq, name)(**options), getattr(torchq, name)(**tokens)


def assert_same_parameters(qparams, scale, zero_point):
    assert_same_bits(qparams.scale.reshape(-1), scale)
    assert_same_bits(qparams.zero_point.reshape(-1), zero_point)


def assert_same_state(state, module):
    for name, value in state._asdict().items():
        assert_same_bits(value, getattr(module, name), name)


# Each granularity and scheme; tests/jax/quantization and tests/peers have the others, of one package each.
USUAL = "MovingAverageMinMaxObserver", "MovingAveragePerChannelMinMaxObserver"
some_observers = pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*one, id=one[0], marks=[pytest.mark.heavy] * (one[0] not in USUAL)) for one in OBSERVERS],
)


@some_observers
def test_observers(name, options):
    """Over 300 steps of a network that learns digits."""
    own, other = pair(name, options)
    steps = digits()[1][:: 5 if name == "HistogramObserver" else 1]  # whose steps and search take long
    state = own.init(tuple(steps[0].shape))
    for number, x in enumerate(steps):
        other(x)
        state = own.update(state, jnp.asarray(x.numpy()))
        assert_same_state(state, other)
        if number % 20 == 0:
            assert_same_parameters(own.qparams(state), *other.calculate_qparams())


def test_averages_that_cross():
    """The range of the first array is so large that the averages of the second cancel."""
    own = jaxq.FakeQuantize(jaxq.MovingAverageMinMaxObserver, averaging_constant=1.0)
    other = torchq.FakeQuantize(torchq.MovingAverageMinMaxObserver, averaging_constant=1.0)
    state = own.init(())
    for x in np.float32([[0.25, 1e8], [0.3, 0.3], [0.3, 0.7]]):
        y, state = own.apply(state, jnp.asarray(x))
        assert_same_bits(y, other(torch.from_numpy(x)))
        assert_same_state(state.activation_post_process, other.activation_post_process)
    assert (state.scale > 0.001).all()


@some_observers
def test_fake_quantize(name, options, tmp_path):
    """Training, with switches; then the state goes to the other package and back, which go on alike."""
    rng = np.random.default_rng(4)
    tokens = {option: (TOKENS | SCHEMES).get(value, value) for option, value in options.items()}
    own, other = jaxq.FakeQuantize(getattr(jaxq, name), **options), torchq.FakeQuantize(getattr(torchq, name), **tokens)
    state = own.init((16, 6, 9))

    def step(state, other, x):
        y, state = own.apply(state, jnp.asarray(x))
        assert_same_bits(y, other(torch.from_numpy(x)))
        assert_same_parameters(own.qparams(state), other.scale, other.zero_point)
        assert_same_state(state.activation_post_process, other.activation_post_process)
        return state

    for number in range(4):
        state = step(state, other, activations(rng, 70 * number)[number])
    state = jaxq.disable_observer(state)
    other.disable_observer()
    state = step(state, other, activations(rng, 300)[0] * np.float32(3))

    safetensors.torch.save_file(other.state_dict(prefix="fc.output."), tmp_path / "torch")
    restored = jaxq.restore(own.init((16, 6, 9)), jaxq.load(tmp_path / "torch"), "fc.output")
    assert isinstance(restored, FakeQuantizeState)
    jax.tree.map(assert_same_bits, restored, state)

    jaxq.save(tmp_path / "jax", {"fc.output": jaxq.enable_observer(state)})
    fresh = torchq.FakeQuantize(getattr(torchq, name), **tokens)
    arrays = {key.removeprefix("fc.output."): x for key, x in safetensors.torch.load_file(tmp_path / "jax").items()}
    fresh.load_state_dict(arrays)
    step(jaxq.enable_observer(state), fresh, activations(rng, 100)[1])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_data_raise_nothing(value):
    """A range that has no scale makes everything NaN."""
    x, own, other = np.float32([1, 2, value, -value]), jaxq.FakeQuantize(), torchq.FakeQuantize()
    y, state = own.apply(own.init(), jnp.asarray(x))
    np.testing.assert_array_equal(y, other(torch.from_numpy(x)))
    np.testing.assert_array_equal(state.scale, other.scale[0])
    assert np.isnan(y).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_channels_without_a_scale_are_nan(dtype):
    """Whatever the NaN's bits are: 0x7fffffff, rounded to bfloat16 as a number would be, is a zero."""
    x = torch.tensor([0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, 0x7FFF0000], dtype=torch.int32).view(torch.float32)
    module = torchq.FakeQuantize(torchq.PerChannelMinMaxObserver, qscheme=torch.per_channel_symmetric)
    module(torch.ones(5, 1))
    module.disable_observer()
    module.scale.copy_(x)
    assert module(torch.ones(5, 3, dtype=dtype)).isnan().all()


def described(maker):
    """What a setting comes to: the kind, its integers, scheme and channels."""
    made = maker() if callable(maker) else maker
    if isinstance(made, torch.nn.Identity) or getattr(made, "number", "") is None:
        return None  # nothing is rounded
    observer = getattr(made, "activation_post_process", getattr(made, "observer", made))
    rule = getattr(observer, "rule", None)
    if not hasattr(rule, "form"):
        return type(made).__name__
    middle = rule.form.middle if rule.scheme == "symmetric" else None
    integers = rule.form.qmin, rule.form.qmax, rule.form.storage, middle, rule.scheme
    return type(made).__name__, type(observer).__name__, *integers, getattr(rule, "axis", None), rule.eps


def test_settings():
    names = {name for name in torchq.__all__ if name.startswith(("default_", "per_channel_", "float16_"))}
    names -= {"default_eval_fn"}  # which is no setting
    assert names == {name for name in jaxq.__all__ if name.startswith(("default_", "per_channel_", "float16_"))}
    pairs = [(getattr(jaxq, name), getattr(torchq, name)) for name in names]
    for backend in ("x86", "fbgemm", "qnnpack", "onednn"):
        pairs.append((jaxq.get_default_qconfig(backend), torchq.get_default_qconfig(backend)))
        pairs.append((jaxq.get_default_qat_qconfig(backend), torchq.get_default_qat_qconfig(backend)))
    for own, other in pairs:
        if not hasattr(other, "weight"):
            assert described(own) == described(other)
            continue
        assert described(own.weight) == described(other.weight)
        if hasattr(own, "activation"):
            assert described(own.activation) == described(other.activation)


def tensors(x, scale, zero_point, axis, dtype):
    """The same quantized tensor in both packages."""
    if axis is None:
        arguments = float(scale), int(zero_point)
        own = jaxq.quantize_per_tensor(jnp.asarray(x), *arguments, dtype)
        return own, torchq.quantize_per_tensor(to_torch(x), *arguments, TOKENS[dtype])
    own = jaxq.quantize_per_channel(jnp.asarray(x), jnp.asarray(scale), jnp.asarray(zero_point), axis, dtype)
    parameters = torch.from_numpy(scale), torch.from_numpy(zero_point), axis, TOKENS[dtype]
    return own, torchq.quantize_per_channel(to_torch(x), *parameters)


def assert_same_tensor(own, other):
    assert_same_bits(own.int_repr(), other.int_repr())
    assert_same_bits(own.dequantize(), other.dequantize())
    assert (own.form, own.qparams.axis) == (other.form, other.qparams.axis)
    assert_same_bits(own.qparams.scale, other.qparams.scale)
    assert_same_bits(own.qparams.zero_point, other.qparams.zero_point)


def some_tensors(rng, shape, axis, dtype):
    form = {"quint8": UINT8, "qint8": INT8}[dtype]
    count = () if axis is None else shape[axis]
    scale = np.asarray(2.0 ** rng.uniform(-6, -4, count), np.float32)
    zero_point = np.asarray(rng.integers(form.qmin // 2, form.qmax // 2, count), np.int32)
    return tensors(rng.normal(size=shape).astype(np.float32), scale, zero_point, axis, dtype)


@some((0, 0), (1, 1), (2, 0), axis=[None, 0, 2], dtype=[*TOKENS])
def test_quantized_tensors(axis, dtype):
    rng = np.random.default_rng(5)
    assert_same_tensor(*some_tensors(rng, (5, 6, 7), axis, dtype))
    form = {"quint8": UINT8, "qint8": INT8}[dtype]
    assert_same_tensor(*tensors(ties(rng, 0.0371, 13, form, 3000), 0.0371, 13, None, dtype))


@pytest.mark.heavy
def test_methods_of_quantized_tensors():
    """By the names that both have; channels are kept apart by both."""
    rng = np.random.default_rng(8)
    for token in TOKENS:
        own, other = some_tensors(rng, (6, 5), None, token)
        for call in (
            lambda q: q.relu(),
            lambda q: q.mean(),
            lambda q: q.mean(1),
            lambda q: q.min(),
            lambda q: q.max(),
            lambda q: q.topk(3)[0],
            lambda q: q.reshape(3, 10)[1:, ::2].flatten(),
        ):
            assert_same_tensor(call(own), call(other))
        assert_same_tensor(own.sort(0, descending=True), other.sort(0, descending=True)[0])
        own, other = some_tensors(rng, (6, 5), 0, token)
        assert_same_tensor(own.relu(), other.relu())
        for q in (own, other):
            with pytest.raises(ValueError, match="max of a QTensor with axis=0; allowed is one without channels"):
                q.max()


@pytest.mark.heavy
@pytest.mark.parametrize("axis", [None, 0])
def test_layers(axis):
    rng = np.random.default_rng(6)
    bias = rng.normal(size=8).astype(np.float32)
    for inputs, weights, output in (("quint8", "qint8", "qint8"), ("qint8", "quint8", "quint8")):
        options = {"scale": 0.125, "zero_point": 31}
        x, w = some_tensors(rng, (3, 5, 24), None, inputs), some_tensors(rng, (8, 24), axis, weights)
        own = jaxq.linear(x[0], w[0], jnp.asarray(bias), **options)
        assert_same_tensor(own, torchq.linear(x[1], w[1], torch.from_numpy(bias), **options))
        assert_same_tensor(jaxq.linear(x[0], w[0]), torchq.linear(x[1], w[1]))
        x, w = some_tensors(rng, (2, 4, 9, 7), None, inputs), some_tensors(rng, (8, 2, 3, 3), axis, weights)
        geometry = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
        own = jaxq.conv2d(x[0], w[0], jnp.asarray(bias), **geometry, **options, dtype=output)
        other = torchq.conv2d(x[1], w[1], torch.from_numpy(bias), **geometry, **options, dtype=TOKENS[output])
        assert_same_tensor(own, other)
        assert len(np.unique(own.values)) > 20


def test_checkpoints_of_quantized_weights(tmp_path):
    rng = np.random.default_rng(7)
    pairs = {
        "fc.weight": some_tensors(rng, (6, 5), 0, "qint8"),
        "fc.input": some_tensors(rng, (4, 5), None, "quint8"),
        "fc.bias": (jnp.arange(3.0), torch.arange(3.0)),
        "fc.half": (jnp.ones(2, jnp.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    }
    jaxq.save(tmp_path / "jax", {name: own for name, (own, _) in pairs.items()})
    torchq.save(tmp_path / "torch", {name: other for name, (_, other) in pairs.items()})
    from_jax, from_torch = torchq.load(tmp_path / "jax"), jaxq.load(tmp_path / "torch")
    assert set(from_jax) == set(from_torch) == set(pairs)
    for name, (own, other) in pairs.items():
        if name in ("fc.bias", "fc.half"):
            assert_same_bits(from_jax[name], own)
            assert_same_bits(from_torch[name], other)
        else:
            assert_same_tensor(own, from_jax[name])
            assert_same_tensor(from_torch[name], other)
