"""gguf-py, the package of llama.cpp: the same numbers of all bytes, and the same bytes where it writes them."""

import gguf
import numpy as np
import pytest
from support import assert_same_bits, bits

import qcore
from qcore.exchange.formats.gguf_law import LAYOUTS

READ = [kind for kind in LAYOUTS if kind not in ("q1_0", "q2_0")]
WRITTEN = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"]
SCALES = {"q2_k": 80, "q3_k": 108, "q6_k": 208, "tq1_0": 52, "tq2_0": 64, "mxfp4": 0, "nvfp4": 0}  # others: 0


def kind_of(kind):
    return gguf.GGMLQuantizationType[kind.upper()]


def check_numbers(kind, rows):
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(rows, kind_of(kind))
    found = qcore.decode(rows, f"gguf({kind})")
    nan = np.isnan(expected)  # whose bits are the processor's
    assert (bits(found)[nan] == 0x7FC00000).all()
    assert_same_bits(found[~nan], expected[~nan])


@pytest.mark.parametrize("kind", READ)
def test_layouts(kind):
    layout = LAYOUTS[kind]
    assert gguf.GGML_QUANT_SIZES[kind_of(kind)] == (layout.size, layout.width)
    assert kind_of(kind) == layout.code
    check_numbers(kind, np.random.default_rng(1).integers(0, 256, (10, 4 * layout.width), np.uint8))


@pytest.mark.heavy
@pytest.mark.parametrize("kind", READ)
def test_millions_of_numbers(kind):
    """Random bytes; each of the 65,536 patterns of d, NaN, infinities and subnormal numbers among them."""
    layout = LAYOUTS[kind]
    rows = np.random.default_rng(2).integers(0, 256, (1 << 16, layout.width), np.uint8)
    place = SCALES.get(kind, 0)
    rows[:, place : place + 2] = np.arange(1 << 16, dtype="<u2")[:, None].view(np.uint8)
    assert rows.shape[0] * layout.size > 10**6
    check_numbers(kind, rows)


def numbers(kind, rows, seed):
    rng, size = np.random.default_rng(seed), LAYOUTS[kind].size
    x = rng.standard_normal((rows, size)) * np.exp2(rng.integers(-30, 14, (rows, 1)))
    x[::4] = rng.integers(-16, 17, (len(x[::4]), size)) * np.exp2(rng.integers(-6, 6, (len(x[::4]), 1)))
    return x.astype(np.float32)


def check_bytes(kind, x):
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(x, kind_of(kind))
    assert_same_bits(qcore.encode(x, f"gguf({kind})"), expected)


@pytest.mark.parametrize("kind", WRITTEN)
def test_bytes(kind):
    check_bytes(kind, numbers(kind, 200, 3))


@pytest.mark.heavy
@pytest.mark.parametrize("kind", WRITTEN)
def test_millions_of_bytes(kind):
    check_bytes(kind, numbers(kind, (1 << 21) // LAYOUTS[kind].size, 4))


def test_scales_of_nvfp4():
    """gguf-py has the scales' codes, but not the elements'."""
    x = np.repeat(np.float32([*np.linspace(0, 2900, 2000), *np.exp2(np.linspace(-40, 20, 2000))]), 64).reshape(-1, 64)
    expected = gguf.quants.NVFP4.fp32_to_ue4m3(x[:, :4] / np.float32(6))
    assert_same_bits(qcore.encode(x, "gguf(nvfp4)")[:, :4], expected.astype(np.uint8))


def test_exponents_of_mxfp4():
    """Numbers just below powers of two, whose float32 logarithm is rounded up or down."""
    powers = np.float32(2.0) ** np.arange(-60, 100, dtype=np.float32)
    steps = np.arange(60, dtype=np.int32)
    largest = (powers.view(np.int32)[:, None] - steps).view(np.float32)
    x = np.repeat(largest.reshape(-1, 1), 32, 1)
    expected = np.floor(np.log2(largest.astype(np.float64)).astype(np.float32)) + 125
    assert (qcore.encode(x, "gguf(mxfp4)")[:, 0] == expected.reshape(-1)).all()
