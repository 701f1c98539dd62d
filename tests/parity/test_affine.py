"""Affine quantization in PyTorch and JAX: the same bits, the same errors, and checkpoints that the other one reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
from affine_support import activations, ties
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_per_tensor(dtype):
    rng = np.random.default_rng(1)
    for form in FORMS if dtype == "float32" else [UINT8, INT8]:
        for zero_point in (form.qmax // 2, form.qmax // 2 + 1):
            scale = float(np.float32(2.0 ** rng.uniform(-10, 4)))
            with np.errstate(over="ignore"):
                x = ties(rng, scale, zero_point, form, 2000).astype(DTYPES[dtype])
            gradient = rng.normal(size=x.shape).astype(x.dtype)
            arguments = scale, zero_point, form.qmin, form.qmax
            expected = pulled_by_torch(x, gradient, torchq.fake_quantize_per_tensor_affine, *arguments)
            with jax.enable_x64(dtype == "float64"):
                actual = pulled_by_jax(x, gradient, jaxq.fake_quantize_per_tensor_affine, *arguments)
            for own, other in zip(actual, expected, strict=True):
                assert_same_bits(own, other, f"{form} {zero_point}")


@pytest.mark.parametrize("axis", [0, 1, 2])
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
    ("MovingAveragePerChannelMinMaxObserver", {"ch_axis": 2, "reduce_range": True}),
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


@pytest.mark.parametrize(("name", "options"), OBSERVERS, ids=[name for name, _ in OBSERVERS])
def test_observers(name, options):
    rng = np.random.default_rng(3)
    own, other = pair(name, options)
    state = own.init((16, 6, 9))
    for step in range(40):
        x = activations(rng, step)[step % 6]
        other(torch.from_numpy(x))
        state = own.update(state, jnp.asarray(x))
        assert_same_state(state, other)
        if step % 4 == 0:
            assert_same_parameters(own.qparams(state), *other.calculate_qparams())


@pytest.mark.parametrize(("name", "options"), OBSERVERS, ids=[name for name, _ in OBSERVERS])
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
    missing, unexpected = fresh.load_state_dict(arrays, strict=False)
    assert (missing, unexpected) == (["activation_post_process.eps"], [])
    step(jaxq.enable_observer(state), fresh, activations(rng, 100)[1])


def described(maker):
    """What a setting comes to: the kind, its integers, scheme and channels."""
    made = maker() if callable(maker) else maker
    observer = getattr(made, "activation_post_process", getattr(made, "observer", made))
    rule = getattr(observer, "rule", None)
    ranged = () if not hasattr(rule, "form") else (rule.form, rule.scheme, getattr(rule, "axis", None), rule.eps)
    return type(made).__name__, type(observer).__name__, ranged


def test_settings():
    names = {name for name in torchq.__all__ if name.startswith(("default_", "per_channel_", "float16_"))}
    names -= {"default_weight_only_qconfig", "default_activation_only_qconfig"}  # torch's Identity, which JAX has not
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
