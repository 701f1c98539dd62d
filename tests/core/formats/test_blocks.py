"""Blocks of any shape, element, scale rule and rounding, against exact fractions; their codes; what is refused."""

import math
import pickle
import re
from fractions import Fraction

import numpy as np
import oracle
import oracle_blocks
import pytest
from covering import some, usually
from support import DTYPES, assert_same_bits, bits, spec, words

import qcore
from benchmarks.support.inputs import BLOCKS, MODES, hard_inputs
from qcore import NAMED, NVFP4, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint, p3109
from qcore.arrays import from_lanes
from qcore.formats.block import RULES
from qcore.law import float_scale
from qcore.law.carrier import CARRIERS
from qcore.namespace import Names

ELEMENTS = [
    "e4m3fn",
    "e5m2",
    "e2m1fn",
    "int8",
    "int4",
    "e4m3b11fnuz",
    "dlfloat16",
    "e8m0fnu",
    "qpytorch8",
    p3109(8, 4, signed=False),
    p3109(6, 1),
    FloatingPoint(3, 0),
    FloatingPoint(4, 2, bias=-9, subnormals=False),
    FixedPoint(2, 0),
    FixedPoint(25, 30),
    FixedPoint(6, -4, symmetric=True),
    FixedPoint(5, 5, signed=False),
]
SHAPES = [{-1: 32}, {0: 5}, {-2: 16, -1: 16}, {...: None}, {1: 1, ...: None}, {-1: None, 0: 2}, {...: 3}, {1: 7}]
MX = [name for name, (number, _) in NAMED.items() if isinstance(number, BlockScaled)]
SUB_BLOCKS = [
    *(NAMED[name][0] for name in ("mx9", "mx6", "mx4")),
    BlockScaled("e2m1fn", {-2: 4, -1: None}, "ceil", sub_block={-2: 2, -1: 3}),
    BlockScaled("e4m3fnuz", {...: None}, "rceil", sub_block={0: 1, 2: 5}),
    BlockScaled(FixedPoint(5, 5, signed=False), {0: 2, -1: 12}, "even", sub_block={-1: 4}),
]


@some(*((i, i % 4) for i in range(len(ELEMENTS))), element=ELEMENTS, part=range(4))
def test_equals_the_oracle(element, part):
    """Each rule with each shape, each mode somewhere, on each dtype; an ordinary run takes every fourth shape."""
    rng = np.random.default_rng(3)
    for turn, block in [*enumerate(SHAPES)][part::4]:
        for place, rule in enumerate(RULES):
            number, mode = BlockScaled(element, block, rule), MODES[(turn * 4 + place * 3) % len(MODES)]
            dtype = list(DTYPES.values())[(turn + place) % 4]
            for x in hard_inputs(number, 100, dtype)[:: 5 if number.block_sizes(3) == (None,) * 3 else 1]:
                random_bits = int(rng.integers(1, 25))
                try:
                    expected = oracle.quantize(x, spec(number), mode, words(5, x.shape), random_bits)
                except ValueError:  # the oracle has no e8m0 whose numbers are all beyond the dtype's
                    assert element == "e8m0fnu"
                    continue
                actual = qcore.quantize(x, number, mode, key=5, random_bits=random_bits)
                assert_same_bits(actual, expected, f"{number} {mode} {x.dtype}")


@pytest.mark.parametrize("number", usually(SUB_BLOCKS[1:2] + SUB_BLOCKS[4:], SUB_BLOCKS))
def test_micro_exponents_equal_the_oracle(number):
    """Numbers, scales of sub-blocks, and codes; on each dtype, the modes by turns."""
    for turn, dtype in enumerate(DTYPES.values()):
        for x in hard_inputs(number, 300, dtype)[:: 4 if number.block[0][0] is ... else 1]:
            for mode in ("nearest", MODES[(SUB_BLOCKS.index(number) * 4 + turn) % len(MODES)]):
                expected = oracle.quantize(x, spec(number), mode, words(5, x.shape), 24)
                assert_same_bits(qcore.quantize(x, number, mode, key=5), expected, f"{number} {mode} {x.dtype}")
            carrier, _, numbers = oracle.read(x)
            rules, _ = oracle_blocks.scaled_rules(carrier, *spec(number)[1:], x.shape, [m for _, m in numbers])
            codes, scales = qcore.encode(x, number, mode, key=5)
            expected = [255 if rules[tile][1] is None else rules[tile][1] + 127 for tile in np.ndindex(*scales.shape)]
            np.testing.assert_array_equal(scales.ravel(), expected)
            assert sum(rules[tile][1] is not None for tile in rules) > 3 or number.block[0][0] is ...
            if dtype is np.float32 and number.element.span[1] > -100:
                decoded, rounded = (
                    qcore.decode(codes, number, dtype, scales=scales),
                    qcore.quantize(x, number, mode, key=5),
                )
                np.testing.assert_array_equal(decoded, rounded)


def test_mx4_by_hand():
    """The pair (0.11, 0.13) has half the scale of 1: steps of 1/4, and (0.3, 1) has steps of 1/2."""
    x = np.float32([[1, 0.3, 0.11, 0.13, 0.9, -2, 0, 0]])
    assert qcore.quantize(x[:, :4], "mx4").tolist() == [[1, 0.5, 0, 0.25]]
    _, scales = qcore.encode(x, "mx4")
    assert qcore.quantize(x, "mx4").tolist() == [[1, 0.5, 0, 0, 1, -2, 0, 0]]
    assert scales.tolist() == [[127, 127, 128, 127]]
    assert qcore.encode(np.float32([1, 0, 0, np.nan]), "mx4")[1].tolist() == [255, 255]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sub_block": {-1: 3}}, "sub_block={-1: 3} with block={-1: 16}"),
        ({"sub_block": {-2: 2}}, "sub_block={-2: 2} with block={-1: 16}"),
        ({"sub_block": {-1: None}}, "sub_block={-1: None}"),
        ({"sub_block": {...: 2}}, "sizes that divide the block's"),
        ({"sub_block": {-1: 2}, "scale": "float32"}, "sub_block with scale='float32'; allowed are sub-blocks"),
    ],
)
def test_wrong_sub_blocks(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        BlockScaled("int4", {-1: 16}, **settings)


@some(
    *((i, j) for i in range(len(MX)) for j in range(i % 4, len(RULES), 4)),
    name=MX,
    rule=[*RULES],
)
def test_scales_are_those_of_the_oracle(name, rule):
    number = BlockScaled(NAMED[name][0].element, {-1: 32}, rule)
    for dtype in [*DTYPES.values()][[*RULES].index(rule) % 2 :: 2]:
        (x,) = hard_inputs(number, 1500, dtype)
        _, scales = qcore.encode(x, number)
        carrier, _, numbers = oracle.read(x)
        rules, _ = oracle_blocks.scaled_rules(carrier, *spec(number)[1:], x.shape, [m for _, m in numbers])
        expected = [255 if rules[tile][1] is None else rules[tile][1] + 127 for tile in np.ndindex(*scales.shape)]
        assert {0, 255} < set(expected)
        np.testing.assert_array_equal(scales.ravel(), expected)


def test_scales_at_the_ends_of_their_range():
    tiny, huge = np.float64([[2.0**-300], [2.0**300]])
    for rule in RULES:
        number = BlockScaled("e4m3fn", {-1: 4}, rule)
        assert qcore.encode(np.float64([tiny, huge, [0.0]]), number)[1].tolist() == [[0], [254], [0]]
        assert qcore.quantize(huge, number, "nearest") == [448 * 2.0**127]
    fine = BlockScaled(FixedPoint(8, 90), {-1: 4})  # whose scales are large, but not that of zeros
    assert qcore.encode(np.float32([[0.0], [1.0]]), fine)[1].tolist() == [[0], [211]]
    largest = np.finfo(np.float32).max
    for rule, expected in (("floor", 1.75 * 2.0**127), ("ceil", 1.875 * 2.0**127)):  # beyond float32's range
        y = qcore.quantize(np.float32([largest, -largest]), BlockScaled("e4m3fn", {-1: 4}, rule), "away")
        assert y.tolist() == [expected, -expected]


def test_a_nan_or_an_infinity_is_all_of_its_block():
    x = np.float32([[1, -0.0, 2], [1, np.nan, -2], [0, -np.inf, -2], [np.inf, 0, -3]])
    payload = np.uint32(0xFFC01234)
    x.view(np.uint32)[1, 1] = payload
    for mode in MODES:
        for element in ("e4m3fn", "int8", "e4m3fnuz", FixedPoint(4, 1, signed=False)):
            y = bits(qcore.quantize(x, BlockScaled(element, {-1: None}), mode, key=1))
            assert not np.isnan(y[0].view(np.float32)).any()
            expected = np.where(np.signbit(x[1:]), np.uint32(0xFFC00000), np.uint32(0x7FC00000))
            expected[0, 1] = payload  # which keeps its own bits
            np.testing.assert_array_equal(y[1:], expected)


def test_block_floating_point_is_a_case_of_it():
    """Within E8M0's range, and without NaN and infinity."""
    x = np.random.default_rng(0).standard_normal((6, 7, 8)).astype(np.float32) ** 9
    for wl in (2, 8, 17, 25):
        element = FixedPoint(wl, wl - 2, symmetric=True)
        for dim in range(-1, 3):
            block = {...: None} if dim == -1 else {dim: 1, ...: None}
            for mode in MODES:
                expected = qcore.quantize(x, BlockFloatingPoint(wl, dim), mode, key=1)
                assert_same_bits(qcore.quantize(x, BlockScaled(element, block), mode, key=1), expected)


@pytest.mark.parametrize("shape", [(3, 70), (64,), (1, 1), (5, 0), (0,), ()])
@pytest.mark.parametrize("number", [*(NAMED[name][0] for name in (*MX, "nvfp4")), *BLOCKS], ids=str)
def test_decoding_gives_what_quantize_gives(number, shape):
    if len(shape) < 3:
        try:
            number.block_sizes(len(shape))
        except ValueError:
            pytest.skip(f"no axis of {number} in {shape}")
    rng = np.random.default_rng(2)
    x = np.asarray(rng.standard_normal(shape) * np.exp(rng.uniform(-9, 9, shape)), np.float32)
    if x.size > 100:
        x[0, 3], x[1, -1] = np.nan, np.inf
    for mode in ("nearest", "stochastic"):
        values = qcore.quantize(x, number, mode, key=9)
        codes, scales = qcore.encode(x, number, mode, key=9)
        assert codes.shape == x.shape
        decoded = qcore.decode(codes, number, scales=scales)
        assert decoded.dtype == np.float32
        there = ~np.isnan(values)
        if not isinstance(number.element, FixedPoint) and getattr(number.element, "has_signed_zero", True):
            assert_same_bits(decoded[there], values[there])
        np.testing.assert_array_equal(decoded, values)
        block = scales[0] if number.tensor_scale else scales
        sizes = number.block_sizes(len(shape))
        assert block.shape == tuple(-(-n // (size or max(n, 1))) for n, size in zip(shape, sizes, strict=True))
        assert block.dtype == np.uint8


def test_decoding_beyond_a_dtype():
    codes, number = np.uint8([[0x7E, 0xFE, 0x01, 0x7F]]), NAMED["mxfp8_e4m3"][0]  # 448, -448, 2^-9, NaN

    def decoded(scale, dtype=np.float32):
        return qcore.decode(codes, number, dtype, scales=np.uint8([[scale]]))[0].tolist()

    assert decoded(254)[:3] == [np.inf, -np.inf, 2.0**118]
    assert decoded(254, np.float64)[:2] == [448 * 2.0**127, -448 * 2.0**127]
    assert decoded(0)[:3] == [448 * 2.0**-127, -448 * 2.0**-127, 2.0**-136]
    assert decoded(100, np.float16)[:3] == [448 * 2.0**-27, -448 * 2.0**-27, 0]
    assert decoded(94, np.float16)[:3] == [0, 0, 0]  # cut off: 448 * 2^-33 is 7/8 of float16's smallest number
    zeros = qcore.decode(np.uint8([[0, 128]]), number, scales=np.uint8([[254]]))
    assert_same_bits(zeros, np.float32([[0.0, -0.0]]))
    assert np.isnan(decoded(127)).tolist() == [False] * 3 + [True]
    assert np.isnan(decoded(255)).all()


TORCHAO = NVFP4(law="torchao_0_16")


def float32(value):
    """A Fraction rounded to 24 bits, ties to even; exponents have no end."""
    if value == 0:
        return value
    step = Fraction(2) ** (oracle_blocks.floor_log2(value) - 23)
    return round(value / step) * step


def nearest_of(value, numbers):
    """The nearest of ascending numbers, ties to the even place among them; the last is the largest."""
    return min(enumerate(numbers), key=lambda pair: (abs(pair[1] - value), pair[0] % 2))[1]


def nvfp4(x, size):
    """torchao's NVFP4 of the rows of a 2-D float32 array, to nearest, in fractions."""
    e2m1 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]
    e4m3 = sorted({Fraction(float(v)) for v in qcore.decode(np.arange(0x7F), "e4m3fn")})
    largest = max(abs(Fraction(float(v))) for v in x.ravel() if np.isfinite(v))
    whole = max(float32(largest / 2688), Fraction(2) ** -126) if largest else Fraction(1)
    y = np.empty(x.shape, np.float64)
    for row, start in np.ndindex(x.shape[0], -(-x.shape[1] // size)):
        place = row, slice(start * size, (start + 1) * size)
        if not np.isfinite(x[place]).all():
            y[place] = np.nan
            continue
        values = [Fraction(float(v)) for v in x[place]]
        scale = float32(float32(max(map(abs, values)) / 6) / whole)
        scale = float32(nearest_of(max(scale, Fraction(1, 64)), e4m3) * whole)
        rounded = [nearest_of(float32(abs(v) / scale), e2m1) * scale for v in values]
        signs = np.copysign(1, x[place])
        with np.errstate(over="ignore"):
            y[place] = np.array([float(float32(v)) for v in rounded]) * signs
    return np.clip(y, -np.finfo(np.float32).max, np.finfo(np.float32).max).astype(np.float32)


@pytest.mark.parametrize("exponent", [-148, -135, -126, -110, -3, 0, 90, 127])
def test_nvfp4_equals_fractions(exponent):
    rng = np.random.default_rng(exponent + 200)
    with np.errstate(over="ignore"):
        x = np.ldexp(rng.uniform(-1, 1, (12, 40)) * 4.0 ** -rng.integers(0, 9, (12, 1)), exponent + 1).astype(
            np.float32
        )
    x[np.isinf(x)] = 1
    x[3] = 0
    x[5, 2], x[6, 20] = np.nan, np.inf
    x[7, :16] = np.ldexp(np.repeat([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], 2), exponent - 2)  # ties, if the scale is
    actual, expected = qcore.quantize(x, TORCHAO, "nearest"), nvfp4(x, 16)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    there = ~np.isnan(expected)
    assert_same_bits(actual[there], expected[there])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nvfp4_results_fit_the_dtype_as_casts_do(dtype):
    """On every number of the dtype, every midpoint and its neighbours; at the end of the range they saturate."""
    dtype = DTYPES[dtype]
    numbers = np.arange(1, 2**15, dtype=np.uint16).view(dtype).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    points = np.concatenate([numbers, numbers[1:] / 2 + numbers[:-1] / 2, numbers[:3] / 4, numbers[:3] / 2])
    points = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(0))])
    points = points[points >= 2.0**-126]
    carrier = CARRIERS[np.dtype(dtype).name]
    fitted = from_lanes(float_scale.from_working(Names, points.view(np.int32), carrier), carrier, points.astype(dtype))
    assert_same_bits(fitted, np.minimum(points, numbers.max()).astype(dtype))


def test_nvfp4_ties_and_scales():
    x = np.float32([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] + [0] * 8 + [448 * 6] + [0] * 15])
    codes, (scales, whole) = qcore.encode(x, TORCHAO)
    assert (scales.tolist(), float(whole)) == ([[0x38, 0x7E]], 1.0)  # 1 and 448
    assert qcore.decode(codes, "e2m1fn")[0, :8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert qcore.encode(np.zeros((1, 16), np.float32), TORCHAO)[1][1] == 1
    for mode, expected in (("toward_zero", 2.0), ("away", 3.0), ("nearest_up", 3.0), ("odd", 3.0)):
        assert qcore.quantize(x, TORCHAO, mode)[0, 4] == expected


def test_values():
    number = BlockScaled("e4m3fn", {-1: 32, 0: 2, ...: None}, "rceil")
    assert repr(number) == (
        "BlockScaled(element=BinaryFloat(exp=4, man=3, bias=7, specials='fn', overflow='saturate'), "
        "block={-1: 32, 0: 2, ...: None}, rule='rceil')"
    )
    assert repr(NVFP4({0: 16})) == "NVFP4(block={0: 16})"
    for one in (number, NVFP4({0: 16}), NAMED["mxint8"][0]):
        twin = pickle.loads(pickle.dumps(one))
        assert (twin, hash(twin)) == (one, hash(one))
    assert BlockScaled("e4m3fn", {0: 2, -1: 32}) == BlockScaled(NAMED["e4m3fn"][0], ((-1, 32), (0, 2), (..., 1)))
    assert BlockScaled("e4m3fn", {-1: 32}) != BlockScaled("e4m3fn", {-1: 32}, "ceil")
    assert BlockScaled("e5m2", {...: None}).block_sizes(2) == (None, None)
    assert number.block_sizes(3) == (2, None, 32)
    assert number.axes(3) == (0, 1, 2)
    assert BlockScaled("e5m2", {-1: 32}).axes(3) == (2,)
    assert NVFP4().axes(2) == (0, 1)  # the scale of all


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: BlockScaled("e4m3fx", {-1: 32}), ValueError, "element='e4m3fx': e4m3fx may mean e4m3fn"),
        (lambda: BlockScaled(BlockFloatingPoint(8), {-1: 32}), TypeError, "element=BlockFloatingPoint.*allowed are a"),
        (lambda: BlockScaled("mxfp4", {-1: 32}), TypeError, "element=BlockScaled.*allowed are a"),
        (lambda: BlockScaled(FixedPoint(1, 0), {-1: 32}), ValueError, "element=FixedPoint.*numbers above zero"),
        (lambda: BlockScaled("e5m2", 32), TypeError, "block=32 is a int; allowed is a mapping"),
        (lambda: BlockScaled("e5m2", {"x": 32}), TypeError, "block's axis='x' is a str; allowed is an int"),
        (lambda: BlockScaled("e5m2", {-1: 0}), ValueError, r"block\[-1\]=0; allowed is an int from 1 to"),
        (lambda: BlockScaled("e5m2", {...: 2.0}), TypeError, r"block\[\.\.\.\]=2\.0 is a float"),
        (lambda: BlockScaled("e5m2", {-1: 32}, "log"), ValueError, "rule='log'; allowed are floor, ceil, even"),
        (lambda: NVFP4({-1: "16"}), TypeError, r"block\[-1\]='16' is a str"),
        (lambda: NVFP4().block_sizes(0), ValueError, r"block=\{-1: 16\} has axis -1; allowed are none but \.\.\."),
        (lambda: BlockScaled("e5m2", {2: 4}).block_sizes(2), ValueError, "has axis 2; allowed are -2 <= axis < 2"),
        (lambda: BlockScaled("e5m2", {1: 4, -1: 4}).block_sizes(2), ValueError, "twice in an array of 2"),
        (lambda: qcore.quantize(np.ones(3, np.float32), "mxfp4", "up", overflow="inf"), ValueError, "overflow='inf'"),
        (lambda: qcore.encode(np.ones(3, np.float32), BlockFloatingPoint(8)), ValueError, "has no codes"),
        (
            lambda: qcore.encode(np.ones(3, np.float16), BlockScaled(FixedPoint(20, 3), {...: None})),
            ValueError,
            "dtype",
        ),
        (lambda: qcore.decode(np.ones(3, np.uint8), "mxfp4"), TypeError, r"scales is a NoneType; .*shape \(1,\)"),
        (
            lambda: qcore.decode(np.ones(3, np.uint8), "mxfp4", scales=np.ones(2, np.uint8)),
            ValueError,
            r"scales has shape \(2,\); allowed is \(1,\) for codes of shape \(3,\)",
        ),
        (lambda: qcore.decode(np.ones(3, np.uint8), "mxfp4", scales=np.ones(1)), TypeError, "scales is a .*integers"),
        (lambda: qcore.decode(np.ones(3, np.uint8), "e5m2", scales=1), ValueError, "scales is a int; allowed is None"),
        (lambda: qcore.decode(np.ones(3, np.uint8), "nvfp4", scales=np.ones(1, np.uint8)), ValueError, "a pair for"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("exponent", [-149, -20, 0, 100])
def test_nvfp4_next_to_ties_of_quotients(exponent):
    """Quotients are rounded to float32 before they are to elements: what is just beside a tie may become one."""
    rng = np.random.default_rng(exponent + 149)
    x = np.zeros((40, 15), np.float32)
    x[:, 0] = np.ldexp(rng.uniform(1, 2, 40), exponent + rng.integers(0, 9, 40))
    _, (scales, whole) = qcore.encode(x, TORCHAO)
    scale = np.float32(qcore.decode(scales, "e4m3fn") * np.float64(whole))
    x[:, 1:8] = scale * np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    x[:, 8:] = np.nextafter(x[:, 1:8], np.where(rng.random((40, 7)) < 0.5, 0, np.inf).astype(np.float32))
    assert_same_bits(qcore.quantize(x, TORCHAO), nvfp4(x, 16))


@pytest.mark.parametrize(("name", "wl"), [("msfp12", 4), ("msfp16", 8)])
@pytest.mark.parametrize("mode", ["nearest", "toward_zero", "up"])
def test_msfp_is_block_floating_point_of_16_in_a_row(name, wl, mode):
    """In fractions: multiples of 2^(E - (wl - 2)), E the largest element's exponent, up to 2^(wl-1) - 1 of them."""
    x = np.random.default_rng(wl).standard_normal((12, 48)) * 2.0 ** np.arange(-100, 104, 17)[:, None]
    x = x.astype(np.float32)
    x[0], x[1, :16], x[2, :17] = 0, 2.0**-60, 2 - 2.0**-23  # zeros; powers of two; what rounds beyond the end
    actual = qcore.quantize(x, name, mode)
    rows = BlockFloatingPoint(wl, 0)
    assert_same_bits(actual, qcore.quantize(x.reshape(36, 16), rows, mode).reshape(x.shape))
    for block, found in zip(x.reshape(36, 16), actual.reshape(36, 16), strict=True):
        largest = max(abs(Fraction(float(v))) for v in block)
        step = Fraction(2) ** (oracle_blocks.floor_log2(largest) - (wl - 2)) if largest else Fraction(1)
        operation = {"nearest": round, "toward_zero": math.trunc, "up": math.ceil}[mode]
        counts = [min(max(operation(Fraction(float(v)) / step), 1 - 2 ** (wl - 1)), 2 ** (wl - 1) - 1) for v in block]
        assert [Fraction(float(v)) for v in found] == [count * step for count in counts]


@pytest.mark.parametrize("element", ["e4m3fn", "e4m3fnuz", "e3m2fn", "e8m0fnu", "fixed(8,6)"])
@pytest.mark.parametrize("mode", ["nearest", "away", "down", "odd"])
def test_zeros_have_the_code_of_zero_under_every_scale(element, mode):
    largest = np.ldexp(np.float32(1), np.arange(-149, 128))
    x = np.stack([largest, np.zeros_like(largest)], axis=1)
    codes, _ = qcore.encode(x, BlockScaled(element, {-1: None}), mode)
    np.testing.assert_array_equal(codes[:, 1], qcore.encode(np.float32([0]), element, mode, overflow="saturate")[0])
