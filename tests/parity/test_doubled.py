"""Double quantization: the law by hand, and all packages."""

import jax
import numpy as np
import pytest
import torch
from covering import usually
from weight_files import dynamic_map

import qcore
import qjax
import qtorch
from qcore import Doubled
from qcore.cli.emit_c import emit
from qcore.cli.properties import properties
from qcore.cli.vectors import vector_inputs

TEXT = "nf4(block=8,nested=5)"
SHAPES = {"float32": [(3, 5, 7), (), (0, 3)], "bfloat16": [(5, 30)], "float16": [(5, 30)]}


def inputs(shape, seed=0):
    rng = np.random.default_rng(seed)
    return np.asarray((rng.normal(size=shape) * np.exp2(rng.integers(-9, 9, shape))).astype(np.float32))


def by_hand(scales, block):
    """The decoded scales: each operation is float32's, in the order that the law names."""
    numbers = dynamic_map()
    midpoints = (numbers[:-1] + numbers[1:]) / np.float32(2)
    total = list(scales)
    total += [np.float32(0)] * ((1 << (len(total) - 1).bit_length()) - len(total))
    while len(total) > 1:
        half = len(total) // 2
        total = [total[i] + total[half + i] for i in range(half)]
    offset = total[0] / np.float32(len(scales))
    found, codes = [], []
    for begin in range(0, len(scales), block):
        part = scales[begin : begin + block] - offset
        largest = np.abs(part).max()
        largest = largest if largest else np.float32(1)
        places = np.searchsorted(midpoints, part * (np.float32(1) / largest), "left")
        codes.append(places)
        found.append(numbers[places] * largest + offset)
    return np.concatenate(codes), np.concatenate(found), offset


def test_the_law_by_hand():
    x, block = inputs((30, 13)), 5
    codes, (seconds, largest, offset) = qcore.encode(x, TEXT)
    first, scales = qcore.encode(x, "nf4(block=8)")
    places, decoded, mean = by_hand(scales, block)
    assert (codes == first).all()
    assert (seconds == places).all()
    assert (offset, largest.shape) == (mean, (10,))
    expected = qcore.decode(first, "nf4(block=8)", scales=decoded)
    assert qcore.quantize(x, TEXT).tobytes() == expected.tobytes()
    assert qcore.decode(codes, TEXT, scales=(seconds, largest, offset)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", usually(["float32"], [*SHAPES]))
def test_packages_agree(dtype):
    for shape in SHAPES[dtype]:
        x = inputs(shape, 1)
        given = torch.from_numpy(x).to(getattr(torch, dtype))
        x = x.astype(jax.numpy.dtype(dtype))
        mode = {"rounding": "stochastic", "key": 3} if dtype == "float16" else {}
        codes, scales = qcore.encode(x, TEXT, **mode)
        expected = [qcore.quantize(x, TEXT, **mode), codes, *scales]
        found = [qtorch.quantize(given, TEXT, **mode), *jax.tree.leaves(qtorch.encode(given, TEXT, **mode))]
        again = qtorch.decode(found[1], TEXT, given.dtype, scales=tuple(found[2:]))
        assert torch.equal(again, found[0])
        by_torch = [one.view(torch.int16).numpy() if one.dtype is torch.bfloat16 else one.numpy() for one in found]
        found = [qjax.quantize(x, TEXT, **mode), *jax.tree.leaves(qjax.encode(x, TEXT, **mode))]
        assert (np.asarray(qjax.decode(found[1], TEXT, x.dtype, scales=tuple(found[2:]))) == found[0]).all()
        for one, two, three in zip(expected, by_torch, map(np.asarray, found), strict=True):
            assert one.shape == two.shape == three.shape
            assert one.tobytes() == two.tobytes() == three.tobytes(), (shape, one.dtype)


def test_extreme_scales():
    """Both ends of float32, zeros, NaN and infinity: sums do not overflow, and subnormal numbers do not count."""
    x = np.zeros((12, 8), np.float32)
    x[0], x[1], x[2], x[3, 1], x[4, 2], x[5] = 3e38, -3e38, 1e-38, np.nan, np.inf, 1e-44
    expected = qcore.quantize(x, TEXT)
    assert np.isnan(expected[3, 1])
    found = qtorch.quantize(torch.from_numpy(x), TEXT).numpy(), np.asarray(qjax.quantize(x, TEXT))
    assert all(one.tobytes() == expected.tobytes() for one in found)


@pytest.mark.heavy
def test_transforms_programs_and_gradients():
    x = inputs((4, 6, 10))
    each = np.stack([qcore.quantize(one, TEXT) for one in x])
    assert np.asarray(jax.vmap(lambda x: qjax.quantize(x, TEXT))(x)).tobytes() == each.tobytes()
    given = torch.from_numpy(x)
    assert torch.func.vmap(lambda x: qtorch.quantize(x, TEXT))(given).numpy().tobytes() == each.tobytes()
    expected = qcore.quantize(x, TEXT)
    program = torch.compile(
        lambda x: (qtorch.quantize(x, TEXT), qtorch.encode(x, TEXT)), backend="aot_eager", fullgraph=True
    )
    numbers, (codes, scales) = program(given)
    assert numbers.numpy().tobytes() == expected.tobytes()
    assert qtorch.decode(codes, TEXT, scales=scales).numpy().tobytes() == expected.tobytes()
    assert np.asarray(jax.jit(lambda x: qjax.quantize(x, TEXT))(x)).tobytes() == expected.tobytes()
    leaf = given.clone().requires_grad_()
    (qtorch.quantize(leaf, TEXT) * 3).sum().backward()
    assert leaf.grad.eq(3).all()
    assert (jax.grad(lambda x: (qjax.quantize(x, TEXT) * 3).sum())(x) == 3).all()


def test_texts_and_wrong_arguments():
    number = qcore.parse(TEXT)
    assert number == Doubled("nf4(block=8)", 5) == qcore.parse("doubled(nf4(block=8),5)")
    assert (number.text, qcore.parse("nf4(block=8,nested=0)").text) == (TEXT, "nf4(block=8)")
    assert (
        qcore.parse("doubled(scaled(int8,{-1:4},scale=float32),7)").text
        == "doubled(scaled(int8,{-1:4},scale=float32),7)"
    )
    for make, kind, words in (
        (lambda: Doubled("mxfp4"), ValueError, "allowed is a BlockScaled with scale='float32' and no history"),
        (lambda: Doubled("e4m3fn"), TypeError, "allowed is a BlockScaled with scale='float32'"),
        (lambda: Doubled("nf4(block=8)", 0), ValueError, "block=0; allowed is an int from 1"),
        (lambda: qcore.quantize(np.float64([1]), TEXT), ValueError, "x has dtype float64; allowed for nf4"),
        (
            lambda: qcore.quantize(np.float32([1]), TEXT, overflow="wrap"),
            ValueError,
            "has no other policy than its own",
        ),
        (lambda: qcore.decode(np.uint8([1]), TEXT, scales=np.float32([1])), ValueError, "scales has the shapes"),
    ):
        with pytest.raises(kind, match=words):
            make()


def test_other_rooms():
    """Statistics are there; C and vectors, whose elements stand alone, say that they are not."""
    x = inputs((30, 13))
    rounded = qcore.quantize(x, TEXT)
    expected = qcore.insight.statistics_between(x, rounded, TEXT)
    assert expected.sqnr > 10
    assert qtorch.insight.statistics_between(torch.from_numpy(x), torch.from_numpy(rounded), TEXT).sqnr == expected.sqnr
    number = qcore.parse(TEXT)
    for run in (
        lambda: emit(TEXT, "nearest", None),
        lambda: vector_inputs(number, np.dtype("float32"), 10, 0),
        lambda: properties(number),
    ):
        with pytest.raises(ValueError, match="nested"):
            run()
