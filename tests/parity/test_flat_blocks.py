"""Blocks that are cut from the elements in row-major order: bitsandbytes' law by hand, and all packages."""

import jax
import numpy as np
import pytest
import torch
from covering import usually
from weight_files import NF4

import qcore
import qjax
import qtorch

FP4 = np.float32([0, 0.0625, 8, 12, 4, 6, 2, 3]) / np.float32(12)
TABLES = {
    "nf4": NF4,
    "fp4_bnb": np.concatenate([FP4, -FP4]),
    "af4": np.float32(
        [
            -1,
            -0.69441008,
            -0.51243739,
            -0.3736951,
            -0.25607552,
            -0.14982478,
            -0.04934812,
            0,
            0.04273164,
            0.12934483,
            0.21961274,
            0.31675666,
            0.42563882,
            0.55496234,
            0.72424863,
            1,
        ]
    )[::-1],
}
SHAPES = [(3, 50), (2, 3, 5, 7), (129,), (), (0, 5)]


def by_hand(x, table, size):
    """Codes, numbers and largest magnitudes of blocks; a zero has the first code that stands for it."""
    order = np.argsort(table, kind="stable")
    order = np.array([one for i, one in enumerate(order) if i == 0 or table[one] != table[order[i - 1]]])
    ascending = table[order]
    midpoints = (ascending[:-1] + ascending[1:]) / np.float32(2)
    codes, largest = [], []
    for begin in range(0, x.size, size):
        part = x.reshape(-1)[begin : begin + size]
        absmax = np.abs(part).max()
        z = np.clip(part * (np.float32(1) / max(absmax, np.float32(1e-38))), -1, 1)
        codes.append(order[np.searchsorted(midpoints, z, "left")])
        largest.append(absmax)
    codes, largest = np.concatenate(codes or [[]]).astype(np.uint8), np.float32(largest)
    numbers = table[codes] * largest.repeat(size)[: x.size]
    return codes.reshape(x.shape), numbers.reshape(x.shape), largest


def inputs(shape, seed=0):
    rng = np.random.default_rng(seed)
    scale = np.float32(2) ** rng.integers(-60, 60, shape or 1).reshape(shape)
    return (rng.normal(size=shape) * np.where(rng.random(shape) < 0.1, scale, 1)).astype(np.float32)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("shape", SHAPES[:-2])
def test_bitsandbytes_by_hand(name, shape):
    x, text = inputs(shape), f"{name}(block=64)"
    codes, numbers, largest = by_hand(x, TABLES[name], 64)
    found, scales = qcore.encode(x, text)
    assert (found == codes).all()
    assert (scales.view(np.int32) == largest.view(np.int32)).all()
    values = qcore.quantize(x, text)
    assert (values == numbers).all()
    assert (qcore.decode(found, text, scales=scales) == numbers).all()


FLAT = "nf4(block=64)", "scaled(e4m3fn,{flat:7},scale=float32)", "scaled(e2m1fn,{flat:16})"


@pytest.mark.parametrize("text", usually(FLAT[1:2], FLAT))
def test_packages_agree(text):
    """All shapes, with smaller blocks at the end, zeros and one number."""
    for shape in SHAPES[1:] if text.startswith("nf4") else SHAPES[:1]:
        x = np.asarray(inputs(shape, 1))
        codes, scales = qcore.encode(x, text)
        expected = [qcore.quantize(x, text), codes, scales, qcore.decode(codes, text, scales=scales)]
        assert (expected[0] == expected[3]).all()  # a table's zero has no sign
        given = torch.from_numpy(x)
        found = [qtorch.quantize(given, text), *qtorch.encode(given, text)]
        by_torch = [one.numpy() for one in (*found, qtorch.decode(found[1], text, scales=found[2]))]
        found = [qjax.quantize(x, text), *qjax.encode(x, text)]
        by_jax = [np.asarray(one) for one in (*found, qjax.decode(found[1], text, scales=found[2]))]
        for one, others in zip(expected, zip(by_torch, by_jax, strict=True), strict=True):
            for other in others:
                assert (one.shape, one.tobytes()) == (other.shape, other.tobytes()), shape


def test_strides_transforms_and_programs():
    """The order of the elements is that of rows, whatever the strides; vmap has blocks in each example."""
    x, text = inputs((6, 10)), "nf4(block=16)"
    expected = qcore.quantize(np.ascontiguousarray(x.T), text)
    turned = torch.from_numpy(x).t()
    for run in (qtorch.quantize, torch.compile(qtorch.quantize, backend="aot_eager")):
        assert run(turned, text).numpy().tobytes() == expected.tobytes()
    each = np.stack([qcore.quantize(row, text) for row in x.reshape(3, 2, 10)])
    by_torch = torch.func.vmap(lambda x: qtorch.quantize(x, text))(torch.from_numpy(x).reshape(3, 2, 10))
    by_jax = jax.vmap(lambda x: qjax.quantize(x, text))(x.reshape(3, 2, 10))
    assert by_torch.numpy().tobytes() == np.asarray(by_jax).tobytes() == each.tobytes()
    assert np.asarray(jax.jit(lambda x: qjax.quantize(x, text))(x)).tobytes() == qcore.quantize(x, text).tobytes()


def test_texts():
    number = qcore.BlockScaled("nf4", {"flat": 64}, "absmax", "float32")
    assert number.text == "nf4(block=64)"
    assert qcore.parse("scaled(nf4, {flat: 64}, rule=absmax, scale=float32)") == qcore.parse("nf4(block=64)") == number
    assert qcore.parse("scaled(nf4,{flat:64},scale=float32)").text == "scaled(nf4,{flat:64},scale=float32)"
    assert (number.axes(3), number.axes(1), number.block_sizes(1)) == ((0, 1, 2), (0,), (64,))
    for wrong, words in {
        "nf4(block=0)": r"block\['flat'\]=0; allowed is an int from 1",
        "nf4()": "missing here is block",
        "scaled(nf4,{flat:None},scale=float32)": "allowed beside 'flat' is no other axis, and a size",
        "scaled(nf4,{flat:4,-1:4},scale=float32)": "allowed beside 'flat' is no other axis, and a size",
    }.items():
        with pytest.raises(ValueError, match=words):
            qcore.parse(wrong)
