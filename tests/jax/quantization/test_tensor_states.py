"""Quantized arrays in checkpoints: ours, and those that qtorch wrote."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from support import assert_same_bits

from qcore.affine import INT32, AffineInteger, checkpoint
from qjax.quantization import (
    FakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    load,
    quantize_per_channel,
    quantize_per_tensor,
    restore,
    save,
)

FORMS = [AffineInteger.of_width(bits, signed) for bits in (2, 4, 8, 13, 16) for signed in (True, False)] + [INT32]


RNG = np.random.default_rng(1)


X = (RNG.normal(size=(4, 5, 6)) * 9).astype(np.float32)


SCALES, ZEROS = np.float32(2.0 ** RNG.uniform(-3, 0, 5)), RNG.integers(-128, 128, 5).astype(np.int32)


def entries():
    rng = np.random.default_rng(3)
    x = jnp.asarray((rng.normal(size=(6, 8)) * 3).astype(np.float32))
    module = FakeQuantize(PerChannelMinMaxObserver, dtype="qint8", qscheme="per_channel_symmetric")
    histogram = HistogramObserver()
    return {
        "fc.weight": quantize_per_channel(x, SCALES[[0, 1, 2, 3, 4, 0]], ZEROS[[0, 1, 2, 3, 4, 0]], 0, "qint8"),
        "fc.four_bits": quantize_per_tensor(x, 0.5, 3, AffineInteger(0, 15)),
        "fc.bytes": quantize_per_tensor(x, 0.5, 3, "quint8"),
        "fc.bias": jnp.arange(8.0),
        "fc.half": x.astype(jnp.bfloat16),
        "fc.input": histogram.update(histogram.init(), x),
        "fc.fake": module.apply(module.init((6,)), x)[1]._replace(observer_enabled=jnp.bool_(False)),
    }


def test_checkpoints(tmp_path):
    saved = entries()
    save(tmp_path / "model.safetensors", saved)
    loaded = load(tmp_path / "model.safetensors")
    for name in ("fc.weight", "fc.four_bits", "fc.bytes"):
        assert loaded[name].form == saved[name].form
        assert loaded[name].qparams.axis == saved[name].qparams.axis
        jax.tree.map(assert_same_bits, loaded[name], saved[name])
    assert_same_bits(loaded["fc.bias"], saved["fc.bias"])
    assert loaded["fc.half"].dtype == jnp.bfloat16
    assert_same_bits(loaded["fc.half"], saved["fc.half"])
    module = FakeQuantize(PerChannelMinMaxObserver, dtype="qint8", qscheme="per_channel_symmetric")
    for name, template in (("fc.input", HistogramObserver().init()), ("fc.fake", module.init((6,)))):
        state = restore(template, loaded, name)
        jax.tree.map(assert_same_bits, state, saved[name])
        assert type(state) is type(saved[name])
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert set(file.keys()) == {
            *(
                f"fc.{q}.{part}"
                for q in ("weight", "four_bits", "bytes")
                for part in ("int_repr", "scale", "zero_point")
            ),
            "fc.bias",
            "fc.half",
            "fc.input.histogram",
            "fc.input.min_val",
            "fc.input.max_val",
            *(f"fc.fake.{part}" for part in ("scale", "zero_point", "fake_quant_enabled", "observer_enabled")),
            "fc.fake.activation_post_process.min_val",
            "fc.fake.activation_post_process.max_val",
        }
        assert_same_bits(file.get_tensor("fc.weight.int_repr"), saved["fc.weight"].values)
        switches = [file.get_tensor(f"fc.fake.{name}") for name in ("observer_enabled", "fake_quant_enabled")]
        assert [(switch.tolist(), switch.dtype) for switch in switches] == [([0], np.uint8), ([1], np.uint8)]
    save(tmp_path / "whole.safetensors", {"x": FakeQuantize().init()})
    shapes = {name: leaf.shape for name, leaf in load(tmp_path / "whole.safetensors").items()}
    assert shapes["x.scale"] == shapes["x.zero_point"] == shapes["x.observer_enabled"] == (1,)
    assert shapes["x.activation_post_process.min_val"] == ()


def test_states_that_torch_wrote(tmp_path):
    """A state_dict's shapes and dtypes, and a buffer that is no field."""
    arrays = {
        "q.scale": np.float32([0.5]),
        "q.zero_point": np.int32([7]),
        "q.fake_quant_enabled": np.uint8([1]),
        "q.observer_enabled": np.uint8([0]),
        "q.activation_post_process.min_val": np.array(-1, np.float32),
        "q.activation_post_process.max_val": np.array(3, np.float32),
        "q.activation_post_process.eps": np.float32([2.0**-23]),
    }
    save_file(arrays, tmp_path / "torch.safetensors")
    state = restore(FakeQuantize().init(), load(tmp_path / "torch.safetensors"), "q")
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), FakeQuantize().init()
    )
    y, after = FakeQuantize().apply(state, jnp.float32([0.8, 1000]))
    assert_same_bits(y, np.float32([1, 124]))
    assert after.activation_post_process.max_val == 3
    with pytest.raises(ValueError, match=r"no array named 'q.min_val'; there are q\."):
        restore(MinMaxObserver().init(), arrays, "q")
    with pytest.raises(ValueError, match=r"array 'q.scale' has shape \(1,\); allowed is \(3,\)"):
        restore(FakeQuantize(PerChannelMinMaxObserver, qscheme="per_channel_affine").init((3,)), arrays, "q")


@pytest.mark.parametrize(
    ("path", "entries", "name"), [("x", 3, "entries"), (3, {}, "path"), ("x", {3: 1}, "the name 3")]
)
def test_what_is_no_checkpoint_is_refused(tmp_path, path, entries, name):
    with pytest.raises(TypeError, match=f"^{name} .*is a int; allowed is a"):
        save(tmp_path / path if isinstance(path, str) else path, entries)


def test_arrays_that_are_not_in_order(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    checkpoint.save_file(tmp_path / "x", {"x": x, "scalar": np.float32(2)})
    loaded = checkpoint.load_file(tmp_path / "x")
    assert_same_bits(loaded["x"], x)
    assert loaded["scalar"].shape == ()
