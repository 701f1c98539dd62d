"""gguf-py, the package of llama.cpp: the same numbers of all bytes, and the same bytes where it writes them."""

import gguf
import numpy as np
import pytest
from support import assert_same_bits

import qcore
from benchmarks.gguf_files import READ, WRITTEN, kind_of, numbers, random_blocks, read, written
from qcore.exchange.formats.gguf_law import LAYOUTS


@pytest.mark.parametrize("kind", READ)
def test_layouts(kind):
    layout = LAYOUTS[kind]
    assert gguf.GGML_QUANT_SIZES[kind_of(kind)] == (layout.size, layout.width)
    assert kind_of(kind) == layout.code
    row = read(kind, np.random.default_rng(1).integers(0, 256, (10, 4 * layout.width), np.uint8))
    assert (row.count, row.differing) == (40 * layout.size, 0)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", READ)
def test_millions_of_numbers(kind):
    """Random bytes; each of the 65,536 patterns of d, NaN, infinities and subnormal numbers among them."""
    row = read(kind, random_blocks(kind, 1 << 16))
    assert row.count > 10**6
    assert row.differing == 0


@pytest.mark.parametrize("kind", WRITTEN)
def test_bytes(kind):
    assert written(kind, numbers(kind, 200, 3)).differing == 0


@pytest.mark.heavy
@pytest.mark.parametrize("kind", WRITTEN)
def test_millions_of_bytes(kind):
    assert written(kind, numbers(kind, (1 << 21) // LAYOUTS[kind].size)).differing == 0


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
