"""Weights of quantized layers in GGUF's types: the bytes of a file in memory, not floats, in torch and JAX."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import layer_of
from support import assert_same_bits
from torch import nn

import qcore
import qjax
from qcore.exchange.formats.gguf_law import LAYOUTS
from qjax.quantization.rounding import CodedArray
from qtorch.nn.rounded import CodedWeight
from qtorch.quantization import QConfig, load_converted, quantize_model, report

WRITTEN = [kind for kind, layout in LAYOUTS.items() if layout.encode]
COLUMNS = 600  # no multiple of a block: the last one is filled up with zeros


def weight():
    return np.random.default_rng(0).normal(size=(8, COLUMNS)).astype(np.float32)


@pytest.mark.parametrize("kind", WRITTEN)
def test_bytes_are_kept(kind):
    layout, number, x = LAYOUTS[kind], f"gguf({kind})", weight()
    made = CodedWeight(torch.from_numpy(x), qcore.parse(number))
    padded = np.pad(x, [(0, 0), (0, -COLUMNS % layout.size)])
    assert_same_bits(made.codes, qcore.encode(padded, number))
    assert made.codes.numel() == 8 * -(-COLUMNS // layout.size) * layout.width
    assert_same_bits(made(), qcore.quantize(x, number))


@pytest.mark.parametrize("kind", ["q4_0", *(pytest.param(kind, marks=pytest.mark.heavy) for kind in WRITTEN[1:])])
def test_bytes_are_kept_in_jax(kind):
    number, x = qcore.parse(f"gguf({kind})"), weight()
    made = CodedArray.of(jnp.asarray(x), number)
    assert_same_bits(made.codes, CodedWeight(torch.from_numpy(x), number).codes.numpy())
    assert_same_bits(made.numbers(), qcore.quantize(x, number))


def test_short_rows_stay_floats():
    """A row of three numbers would take a block of 34 bytes."""
    x, number = np.float32(np.arange(12).reshape(4, 3)), qcore.parse("gguf(q8_0)")
    for codes in (CodedWeight(torch.from_numpy(x), number).codes.numpy(), CodedArray.of(jnp.asarray(x), number).codes):
        assert_same_bits(codes, qcore.quantize(x, number))


def test_models_in_both_packages():
    """Sizes, reports, and a state_dict that loads into another model, and into JAX's."""
    settings, x = QConfig(None, "gguf(q4_0)"), torch.randn(3, 64)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    small = quantize_model(model, settings)
    held = sum(one.numel() * one.element_size() for one in small.state_dict().values())
    assert held == 72 * 2 * 18 + 4 * 72
    assert [(row.weight, row.bits) for row in report(small) if row.weight] == [("gguf(q4_0)", 4)] * 2
    again = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    again.qconfig = settings
    assert_same_bits(load_converted(again, small.state_dict())(x), small(x))
    twin = nnx.Sequential(layer_of(nnx.Linear, 64, 64), qjax.nnx.ReLU(), layer_of(nnx.Linear, 64, 8))
    arrays = {name: value.numpy() for name, value in small.state_dict().items()}
    loaded = qjax.nnx.from_torch(twin, arrays, qjax.quantization.QConfig(None, "gguf(q4_0)"))
    for torchs, jaxs in ((small[0], loaded.layers[0]), (small[2], loaded.layers[2])):
        assert_same_bits(jaxs.weight(), torchs.weight())
