"""GGUF's types in NumPy, torch and JAX: the same bytes and the same numbers, eager and compiled."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from support import assert_same_bits, bits

import qcore
import qjax
import qtorch
from qcore.exchange import Encoded, save_quantized
from qcore.exchange.formats.gguf_law import LAYOUTS

WRITTEN = [kind for kind, layout in LAYOUTS.items() if layout.encode]
SOME = ("q4_0", "mxfp4"), ("q4_1", "q8_0", "tq2_0", "nvfp4")
TEXTS = {kind: f"gguf({kind})" for kind in LAYOUTS}


def rows_of(kind, count=40):
    return np.random.default_rng(3).integers(0, 256, (4, count * LAYOUTS[kind].width), np.uint8)


def numbers_of(kind, rows=48):
    """Rows of all magnitudes, of random bits, on a grid, and with numbers at the ends of float32."""
    rng, size = np.random.default_rng(4), 3 * LAYOUTS[kind].size
    x = rng.standard_normal((rows, size)) * np.exp2(rng.integers(-126, 126, (rows, 1)))
    x[::3] = rng.integers(-16, 17, (len(x[::3]), size)) * np.exp2(rng.integers(-6, 6, (len(x[::3]), 1)))
    x = x.astype(np.float32)
    x[:8] = rng.integers(0, 2**32, (8, size), np.uint32).view(np.float32)
    x[:4] = np.where(np.abs(x[:4]) < 1e30, x[:4], 1)
    x[8:10] = rng.choice(np.float32([3.4028235e38, -3.4028235e38, 1e-45, 1.2e-38, 0, -0.0]), (2, size))
    return x


def test_numbers_of_bytes():
    """All types in one program of JAX."""
    rows = {kind: rows_of(kind) for kind in LAYOUTS}
    expected = {kind: qcore.decode(rows[kind], TEXTS[kind]) for kind in LAYOUTS}
    compiled = jax.jit(lambda rows: {kind: qjax.decode(row, TEXTS[kind]) for kind, row in rows.items()})(rows)
    for kind in LAYOUTS:
        assert_same_bits(qtorch.decode(torch.from_numpy(rows[kind]), TEXTS[kind]), expected[kind], kind)
        assert_same_bits(compiled[kind], expected[kind], kind)


@pytest.mark.parametrize("kinds", [SOME[0], pytest.param(SOME[1], marks=pytest.mark.heavy)], ids=["some", "more"])
def test_bytes_of_numbers(kinds):
    """Several types in one program of JAX, with an operation before them."""
    x = {kind: numbers_of(kind) for kind in kinds}

    def both(x):
        return {k: (qjax.encode(-v, TEXTS[k]), qjax.quantize(-v[:, :-5], TEXTS[k])) for k, v in x.items()}

    compiled = jax.jit(both)(x)
    for kind in kinds:
        y = -x[kind]
        expected = qcore.encode(y, TEXTS[kind]), qcore.quantize(y[:, :-5], TEXTS[kind])
        tensor = torch.from_numpy(y)
        assert_same_bits(qtorch.encode(tensor, TEXTS[kind]), expected[0], kind)
        assert_same_bits(qtorch.quantize(tensor[:, :-5], TEXTS[kind]), expected[1], kind)
        assert_same_bits(compiled[kind][0], expected[0], kind)
        assert_same_bits(compiled[kind][1], expected[1], kind)


@pytest.mark.parametrize("kind", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_searches(kind):
    """Eager torch; programs of JAX take seconds to compile and are heavy, see `test_each_type`."""
    x = numbers_of(kind)
    tensor, expected = torch.from_numpy(x), qcore.encode(x, TEXTS[kind])
    assert_same_bits(qtorch.encode(tensor, TEXTS[kind]), expected)
    assert_same_bits(qtorch.quantize(tensor, TEXTS[kind]), qcore.quantize(x, TEXTS[kind]))


def test_programs_of_torch():
    torch._dynamo.reset()

    def run(x):
        found = []
        for kind in ("q4_0", "mxfp4", "q2_k"):
            rows = qtorch.encode(x * 1.5, TEXTS[kind])
            found += [rows, qtorch.decode(rows, TEXTS[kind]), qtorch.quantize(x * 1.5, TEXTS[kind])]
        return found

    x = torch.from_numpy(numbers_of("q2_k"))
    for compiled, eager in zip(torch.compile(run, backend="aot_eager", fullgraph=True)(x), run(x), strict=True):
        assert_same_bits(compiled, eager)


def test_gradients_and_small_dtypes():
    x = torch.randn(3, 64, requires_grad=True)
    qtorch.quantize(x, "gguf(q4_0)").sum().backward()
    assert (x.grad == 1).all()
    gradient = jax.grad(lambda x: qjax.quantize(x, "gguf(q4_0)").sum())(jnp.ones((3, 64)))
    assert (gradient == 1).all()
    with np.errstate(all="ignore"):
        half = numbers_of("q4_0").astype(np.float16)
    expected = qcore.quantize(half, "gguf(q4_0)")
    assert_same_bits(qtorch.quantize(torch.from_numpy(half), "gguf(q4_0)"), expected)
    assert_same_bits(qjax.quantize(half, "gguf(q4_0)"), expected)


def test_recipes_take_them():
    model = torch.nn.Sequential(torch.nn.Linear(64, 8))
    lowered = qtorch.recipes.lower(model, layer_types=["linear"], weight_number="gguf(q8_0)")
    x, layer = torch.randn(2, 64), model[0]
    expected = torch.nn.functional.linear(x, qtorch.quantize(layer.weight, "gguf(q8_0)"), layer.bias)
    assert_same_bits(lowered(x), expected)


def test_files(tmp_path):
    """What one package writes, all load: bytes, and the numbers of bytes."""
    x = numbers_of("q8_0")
    entries = {"w": Encoded(qcore.encode(x, "gguf(q8_0)"), qcore.parse("gguf(q8_0)"))}
    entries |= {"b": x[0], "half": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3), "i": np.int32([[-1, 2]])}
    entries["none"] = Encoded(np.empty((0, 18), np.uint8), qcore.parse("gguf(q4_0)"))
    save_quantized(tmp_path / "w.gguf", entries)
    for package in (qcore, qtorch, qjax):
        found = package.exchange.load_quantized(tmp_path / "w.gguf")
        for name in ("b", "half", "i"):
            assert_same_bits(found[name], entries[name], name)
        assert (found["w"].shape, found["w"].number, found["none"].shape) == (x.shape, entries["w"].number, (0, 32))
        assert_same_bits(found["w"].codes, entries["w"].codes)
        assert_same_bits(found["w"].dequantize(), qcore.quantize(x, "gguf(q8_0)"))
        package.exchange.save_quantized(tmp_path / "again.gguf", found)
        assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "w.gguf").read_bytes()
    for wrong in (
        {"w": x.astype(np.complex64)},
        {"w": Encoded(np.uint8([1]), qcore.parse("e4m3fn"))},
        {"w": x[0, 0:1][0]},
    ):
        with pytest.raises((TypeError, ValueError), match="'w'"):
            save_quantized(tmp_path / "wrong.gguf", wrong)
    with pytest.raises(ValueError, match="'w'"):
        save_quantized(tmp_path / "w.safetensors", {"w": entries["w"]})
    with pytest.raises(ValueError, match=r"tensor 'w' has shape \(\); allowed are 1 to 4 axes"):
        save_quantized(tmp_path / "wrong.gguf", {"w": np.array(1.0, np.float32)})


@pytest.mark.heavy
@pytest.mark.parametrize("kind", WRITTEN)
def test_each_type(kind):
    """Programs of one type, optimized: 100 thousand numbers; Inductor's too."""
    x = numbers_of(kind, 400)
    rows, expected = qcore.encode(x, TEXTS[kind]), qcore.quantize(x, TEXTS[kind])
    assert_same_bits(qjax.encode(x, TEXTS[kind]), rows)
    assert_same_bits(jax.jit(lambda x: qjax.quantize(-x, TEXTS[kind]))(-x), expected)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (qtorch.encode(x, TEXTS[kind]), qtorch.quantize(x, TEXTS[kind])))
    for found, one in zip(compiled(torch.from_numpy(x)), (rows, expected), strict=True):
        assert (bits(found) == bits(one)).all()
