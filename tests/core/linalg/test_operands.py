"""Scales and transforms of operands: the NumPy reference against an oracle, their text, and what they refuse."""

import jax
import numpy as np
import oracle_operands as oracle
import pytest
from support import assert_same_bits

from qcore import Accumulator, Hadamard, Operand, Product, Scale, parse, quantize
from qcore.linalg import first_scaling, matmul
from qcore.linalg.arrays import multiply_arrays, next_scaling
from qcore.linalg.geometry import FORWARD, MatrixGeometry
from qcore.linalg.namespace import Float64
from qcore.linalg.product import Products
from qcore.linalg.scaling import prepared, transformed

E4M3 = "e4m3fn:saturate"
HARD = np.float32([0, -0.0, 1e-45, -1e-40, 3e38, 1.17549435e-38, 7.5e-37])


def matrix(rows, terms, seed=0):
    """Numbers of all magnitudes, and tiles of zeros, of subnormal numbers, and with one infinity and one NaN."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, terms)).astype(np.float32) * np.exp2(rng.integers(-30, 30, (rows, terms)))
    x = np.where(rng.random(x.shape) < 0.1, rng.choice(HARD, x.shape), x).astype(np.float32)
    x[0, :16], x[1, 16:32], x[2, 3], x[3, 20] = 0, 1e-42, np.inf, np.nan
    return x


@pytest.mark.parametrize("scale", [Scale(), Scale(1, 16), Scale(3, 16), Scale(2, None), Scale(None, 16)])
def test_operands_are_multiplied_with_the_scales_of_their_tiles(scale):
    x = matrix(5, 40)
    with np.errstate(all="ignore"):
        found, r = prepared(Float64, x, Operand(E4M3, scale=scale))
    expected, of_each = oracle.scaled(x, scale.outer, scale.terms, 448)
    assert_same_bits(found, expected)
    assert_same_bits(np.unique(r), np.unique(of_each))


def test_a_margin_leaves_room():
    x = np.float32([[3.0, 448.0]])
    found, r = prepared(Float64, x, Operand(E4M3, scale=Scale(margin=2)))
    assert (found.tolist(), r) == ([[0.75, 112.0]], 4.0)


@pytest.mark.parametrize("chunk", [8, 16])
def test_each_chunk_has_the_scales_of_its_tiles(chunk):
    """DeepSeek's law, with tiles of 1 x 16 and 4 x 16: float32(float32(S) * float32(ra * rb)) is added in float32."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 40), (7, 40)))
    operands = Operand(E4M3, scale=Scale(1, 16)), Operand(E4M3, scale=Scale(4, 16))
    found = matmul(a, b.T, operands=operands, accumulator=Accumulator(chunk=chunk))
    (left, ra), (right, rb) = oracle.scaled(a, 1, 16, 448), oracle.scaled(b, 4, 16, 448)
    left, right = (quantize(x, E4M3).astype(np.float64) for x in (left, right))
    expected = np.zeros((5, 7), np.float32)
    for k in range(0, 40, chunk):
        sums = (left[:, k : k + chunk] @ right[:, k : k + chunk].T).astype(np.float32)
        expected = expected + sums * (ra[:, k : k + 1] * rb[:, k])
    assert_same_bits(found, expected)


def test_the_scale_of_a_tensor_multiplies_the_last_number():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 6, 6)).astype(np.float32)
    half = Accumulator("float(6,9)", chunk=1)
    operands = (Operand(E4M3, scale=Scale()),) * 2
    (left, ra), (right, rb) = (oracle.scaled(x, None, None, 448) for x in (a, b))
    sums = matmul(quantize(left, E4M3), quantize(right, E4M3), accumulator=half)
    assert_same_bits(matmul(a, b, operands=operands, accumulator=half), sums * (ra * rb)[0, 0])


@pytest.mark.parametrize("seed", [0, 3, 1 << 40])
def test_hadamard(seed):
    key = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    words = np.asarray(jax.random.bits(jax.random.wrap_key_data(key), (16,), "uint32"))
    signs = Hadamard(seed).signs
    assert signs == tuple(np.where(words >> 31, -1, 1).tolist())
    x = np.random.default_rng(5).standard_normal((3, 32)).astype(np.float32)
    x[1] *= np.float32(2.0**-127)
    x[2] *= np.exp2(np.arange(32, dtype=np.float32) * 3 - 50)
    expected = [oracle.hadamard(part, signs) for part in x.reshape(-1, 16).tolist()]
    assert_same_bits(transformed(Float64, x, Hadamard(seed)), np.float32(expected).reshape(3, 32))


def test_transforms_of_both_operands_leave_the_product():
    """Of integers exactly, with a sum that 16 does not divide."""
    a, b = np.float32(np.random.default_rng(6).integers(-8, 9, (2, 21, 21)))
    assert_same_bits(matmul(a, b, operands=(Operand(transform=Hadamard(1)),) * 2), matmul(a, b))


def test_delayed_scales_follow_from_past_magnitudes():
    operands = [Operand(number, scale=Scale(history=3)) for number in (E4M3, "int8")]
    products = Products(Product(*operands), Product(None, operands[1]), Product(None, operands[0]))
    state, seen = first_scaling(3), []
    for most in (2.0, 0.0, 8.0, np.inf, 1.0, 0.5, 0.25, 0.0):
        a, b = np.float32([[most, -most / 4]]), np.float32([[3.0], [-0.3]])
        given = state.copy()
        with np.errstate(invalid="ignore"):
            expected = quantize(a * given[0, 0], E4M3), quantize(b * given[1, 0], "int8")
            sums = (expected[0].astype(np.float64) @ expected[1]).astype(np.float32)
            sums = sums * (np.float32(1) / given[0, 0] * (np.float32(1) / given[1, 0]))
        found = multiply_arrays(MatrixGeometry(), FORWARD, products.forward, a, b, b.shape, None, state)
        if np.isfinite(most):
            assert_same_bits(found, sums)
        state = next_scaling(products, state, (a, b, np.float32([[1.0]])))
        seen = [most, *seen][:3]
        assert state[0, 1:].tolist() == [*seen, *[0.0] * (3 - len(seen))]
        assert state[0, 0] == oracle.scale(seen, 448, previous=float(given[0, 0]))
    assert state[2].tolist() == [1.0, 0.0, 0.0, 0.0]  # the gradient has no scale


TEXTS = {
    "scale()": Scale(),
    "scale(outer=1,terms=128)": Scale(1, 128),
    "scale(terms=16,margin=-1)": Scale(None, 16, margin=-1),
    "scale(history=1024)": Scale(history=1024),
    "scale(history=2,reduce_amax=False)": Scale(history=2, reduce_amax=False),
    "hadamard()": Hadamard(),
    "operand(e4m3fn,rounding=stochastic,scale=scale(outer=1,terms=32),transform=hadamard(seed=7))": Operand(
        "e4m3fn", "stochastic", Scale(1, 32), Hadamard(7)
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text):
    assert (TEXTS[text].text, parse(text)) == (text, TEXTS[text])


TILE = Operand(E4M3, scale=Scale(1, 128))
REFUSED = [
    (lambda: Scale(0), ValueError, "outer=0; allowed is an int from 1 to"),
    (lambda: Scale(terms="16"), TypeError, "terms='16'"),
    (lambda: Scale(1, 16, history=4), ValueError, "history=4 with tiles of 1 x 16"),
    (lambda: Scale(history=0), ValueError, "history=0"),
    (lambda: Scale(reduce_amax=False), ValueError, "reduce_amax=False with history=None"),
    (lambda: Scale(history=2, reduce_amax=0), TypeError, "reduce_amax is a int; allowed is a bool"),
    (lambda: Hadamard(-1), ValueError, "key=-1"),
    (lambda: Hadamard((1, 2)), TypeError, "seed=(1, 2)"),
    (lambda: Operand("nvfp4", scale=Scale()), ValueError, "scale=scale() with number=nvfp4"),
    (lambda: Operand(None, scale=Scale()), ValueError, "scale=scale() with number=None"),
    (lambda: Operand("fixed(8,4,clamp=False)", scale=Scale()), ValueError, "with a largest number"),
    (lambda: Operand(E4M3, scale=Hadamard()), TypeError, "is a Hadamard; allowed are a Scale"),
    (lambda: Operand(E4M3, transform="scale()"), TypeError, "is a Scale; allowed are a Hadamard"),
    (lambda: Operand(E4M3, scale=Scale(history=2), transform=Hadamard()), ValueError, "scale without history"),
    (lambda: Product(Operand(transform=Hadamard()), None), ValueError, "allowed is the same in both"),
    (lambda: Product(TILE, TILE), ValueError, "accumulator has chunk=None; allowed is a divisor of 128"),
    (
        lambda: Product(None, TILE, Accumulator(chunk=48)),
        ValueError,
        "second has scale(outer=1,terms=128), accumulator has chunk=48",
    ),
    (lambda: Product(TILE, None, Accumulator(chunk=32, fraction_bits=13)), ValueError, "as inner accumulator"),
    (lambda: Accumulator("fixed(1,0)"), ValueError, "number='fixed(1,0)'; allowed are formats with numbers above zero"),
    (lambda: Accumulator(chunk=0), ValueError, "chunk=0; allowed is an int from 1 to"),
    (lambda: first_scaling(0), ValueError, "history=0"),
    (
        lambda: Products(Product(Operand(E4M3, scale=Scale(history=2))), Product(), Product()),
        ValueError,
        "a is operand(e4m3fn:saturate,scale=scale(history=2)) and operand() in two products",
    ),
]


@pytest.mark.parametrize(("make", "error", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_refused(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)
