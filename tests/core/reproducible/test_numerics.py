"""The reference beside exact arithmetic: mpmath's functions and a loop's sums."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numerics_support import every_kind, hard_powers, hard_quotients, numbers
from support import assert_same_bits

from benchmarks.hard_inputs import CORRECT, correct
from qcore import reproducible
from qcore.cli.functions import differing, hard_inputs
from qcore.reproducible import Names
from qcore.reproducible.elementary import ELEMENTARY, PARTS
from qcore.reproducible.reductions import MAX

SMALLEST = np.float32(2.0**-126)
X = every_kind(np.random.default_rng(1), 3000)


def test_every_part_has_a_correct_function():
    assert set(PARTS) == set(CORRECT)
    assert set(hard_inputs()) <= set(PARTS)


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_correctly_rounded(name):
    """Also where libraries are weakest: near zeros, ends of ranges, and large arguments."""
    rng = np.random.default_rng(2)
    x = np.concatenate([numbers(rng, 60), rng.uniform(-110, 110, 40), np.exp2(rng.uniform(-24, 60, 20))])
    x = x.astype(np.float32)
    x = x[(abs(x) > SMALLEST) & ((x > 0) | (name not in ("log", "sqrt", "rsqrt", "sqrt_slope", "rsqrt_slope")))]
    x = x[(x > -1) | ~np.isin(name, ("log1p", "log1p_slope"))]
    with Names.arithmetic():
        found = PARTS[name](Names, x)
        expected = np.uint32([int(correct(name, f"{bits:08x}"), 16) for bits in x.view(np.uint32)]).view(np.float32)
        assert_same_bits(found, Names.settled(expected))


def test_hard_inputs_are_correct():
    rows = list(differing("qcore"))
    assert rows
    assert sum(count for _, count, _ in rows) > 0
    assert not any(len(wrong) for _, _, wrong in rows)


def test_sigmoid_next_to_zero():
    """1/2 + x/4 is the middle of two float32 numbers for odd multiples of 2^-23; what follows decides."""
    x = np.arange(1, 512, 2) * np.float32(2.0**-23)
    x = np.concatenate([x, -x, x / 2, -x / 2]).astype(np.float32)
    expected = np.uint32([int(correct("sigmoid", f"{bits:08x}"), 16) for bits in x.view(np.uint32)])
    assert_same_bits(reproducible.sigmoid(x), expected.view(np.float32))


@pytest.mark.parametrize("name", ELEMENTARY)
def test_numbers_up_to_the_smallest_normal_one_are_zeros(name):
    function = (lambda x: reproducible.gelu(x, "tanh")) if name == "gelu_tanh" else getattr(reproducible, name)
    y = function(X)
    assert not ((abs(y) > 0) & (abs(y) <= SMALLEST)).any()
    small = np.float32([1e-40, SMALLEST, -1e-40, -SMALLEST])
    assert_same_bits(function(small), function(np.float32([0.0, 0.0, -0.0, -0.0])))
    assert set(y[y != y].view(np.uint32)) == {0x7FC00000}


def test_a_product_that_only_rounds_up_to_the_smallest_number_is_zero():
    """x86 flushes it after rounding, other processors before."""
    a, b = np.float32([1 - 2.0**-24, -(1 - 2.0**-24)]), np.float32([2.0**-126 * (1 + 2.0**-23)] * 2)
    assert abs(a * b).tolist() == [SMALLEST] * 2
    assert_same_bits(reproducible.multiply(a, b), np.float32([0.0, -0.0]))


def tree(terms):
    """Halves by index, an odd rest appended."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [a + b for a, b in zip(terms[:half], terms[half : 2 * half], strict=True)] + terms[2 * half :]
    return terms[0] if terms else 0.0


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 8, 13, 100])
def test_sums(length):
    x = numbers(np.random.default_rng(length), 3, length, 2)
    columns = [[tree(list(map(float, row[:, i]))) for i in range(2)] for row in x]
    with Names.arithmetic():
        assert_same_bits(reproducible.sum(x, 1), Names.settled(np.float32(np.array(columns).reshape(3, 2))))
    whole = tree([tree(list(map(float, column))) for column in x[0].T])
    assert_same_bits(reproducible.sum(x[0]), np.float32(whole)[...])


def test_sums_depend_on_no_layout():
    x = numbers(np.random.default_rng(3), 7, 9, 5)
    assert_same_bits(reproducible.sum(np.asfortranarray(x), (0, 2)), reproducible.sum(x, (0, 2)))


def test_powers():
    rng = np.random.default_rng(4)
    a, b = np.exp2(rng.uniform(-20, 20, 400)).astype(np.float32), rng.uniform(-4, 4, 400).astype(np.float32)
    with mpmath.workdps(40):
        exact = [mpmath.mpf(float(x)) ** mpmath.mpf(float(y)) for x, y in zip(a, b, strict=True)]
        found = reproducible.pow(a, b)
        errors = [abs(float((e - float(y)) / float(np.spacing(y)))) for e, y in zip(exact, found, strict=True)]
    assert max(errors) < 0.500001


def test_hard_pairs():
    """The quotients are the nearest numbers, by fractions; the powers one of the two beside a middle."""
    a, b = hard_quotients(np.random.default_rng(5), 500)
    found = reproducible.divide(a, b)
    for x, y, z in zip(a, b, found, strict=True):
        exact, gap = Fraction(float(x)) / Fraction(float(y)), Fraction(float(np.spacing(z)))
        error = abs(Fraction(float(z)) - exact)
        assert gap / 2 - gap / 2**22 < error < gap / 2
    for a, b in hard_powers():
        exact = a.astype(np.int64) ** b.astype(np.int64)
        assert (exact % 2 == 1).all()
        assert (exact > 2**24).all()
        assert (exact < 2**25).all()
        assert (abs(reproducible.pow(a, b).astype(np.int64) - exact) == 1).all()


def test_powers_of_special_numbers():
    special = np.float32([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.5, -2.5, np.inf, -np.inf, np.nan])
    a, b = special[:, None], special[None, :]
    with np.errstate(all="ignore"):
        expected = np.power(a, b)
    found = reproducible.pow(a, b)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("axis", [(0, 0), 3, -4, (0, -3)])
def test_wrong_axes(axis):
    with pytest.raises(ValueError, match="axis="):
        reproducible.sum(np.ones((2, 3, 4), np.float32), axis)


def test_wrong_arguments():
    x = np.ones((2, 3), np.float32)
    for error, wrong in [
        (TypeError, lambda: reproducible.exp([1.0])),
        (TypeError, lambda: reproducible.exp(np.ones(3))),
        (TypeError, lambda: reproducible.sum(x, 0.5)),
        (TypeError, lambda: reproducible.cross_entropy(x, x[:, 0])),
        (ValueError, lambda: reproducible.gelu(x, "erf")),
        (ValueError, lambda: reproducible.cross_entropy(x, np.zeros(3, int))),
        (ValueError, lambda: reproducible.layer_norm(x, x)),
        (ValueError, lambda: reproducible.layer_norm(x, axis=0)),
        (ValueError, lambda: reproducible.batch_norm(x[0])),
        (ValueError, lambda: reproducible.clip_by_norm([x], 0.0)),
        (ValueError, lambda: reproducible.Cosine(0.1, 10, 10)),
        (ValueError, lambda: reproducible.mse(x, x[:1])),
    ]:
        with pytest.raises(error, match="allowed"):
            wrong()


def cosine(rate, steps, warmup, last, step):
    """The rate at a step: exact sines, and one float32 operation after the other."""
    rate, last = np.float32(rate), np.float32(last)
    if step <= warmup - 1:
        return np.float32(step + 1) * rate / np.float32(warmup)
    with mpmath.workdps(40):
        left = mpmath.mpf(max(steps - step, 0)) / (steps - warmup)
        square = np.float32(float(mpmath.sin(left * mpmath.pi / 2) ** 2))
    return square * (rate - last) + last


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (7, 0), (7, 1), (7, 3), (7, 6)])
def test_cosine(steps, warmup):
    """All steps, those at both ends of the rise and beyond the last one too."""
    for rate, last in ((0.1, 0.0), (1.0, 0.3)):
        schedule = reproducible.Cosine(rate, steps, warmup, last)
        for step in range(steps + 3):
            found = reproducible.rate(schedule, np.float32(step)[...])
            assert_same_bits(found, np.asarray(cosine(rate, steps, warmup, last, step)))
    assert float(reproducible.rate(reproducible.Cosine(1.0, steps, warmup), np.float32(warmup)[...])) == 1.0


def test_milestones():
    """Each product is rounded; a milestone counts from its own step on, and two at one step count twice."""
    rate, factor = np.float32(0.3), np.float32(0.7)
    expected = [rate] * 2 + [rate * factor] * 3 + [rate * factor * factor * factor] * 2
    schedule = reproducible.Milestones(0.3, (2, 5, 5), 0.7)
    for step, one in enumerate(expected):
        assert_same_bits(reproducible.rate(schedule, np.float32(step)[...]), np.asarray(one))


def test_equal_numbers_share_the_gradient_of_the_greatest():
    x = np.float32([[3, 1, 3], [0.0, -0.0, -1], [2, 2, 2]])
    found, saved = MAX.run(Names, (x,), {"axes": (1,), "keepdims": False})
    assert_same_bits(found, np.float32([3, 0, 2]))
    (gradient,) = MAX.gradients(Names, saved, np.float32([1, -8, 1]), {"axes": (1,), "keepdims": False})
    third = np.float32(1) / np.float32(3)
    assert (gradient == np.float32([[0.5, 0, 0.5], [-4, -4, 0], [third] * 3])).all()


def test_logsumexp_of_infinities():
    """Those of one sign are the result; less themselves they would be NaN."""
    most = np.float32(np.finfo(np.float32).max)
    x = np.float32([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 2], [most, -most], [np.inf, -np.inf]])
    found = reproducible.logsumexp(x, 1)
    assert_same_bits(found, np.float32([-np.inf, np.inf, 2, most, np.inf]))
    assert np.isnan(reproducible.logsumexp(np.float32([np.nan, np.inf]), 0))
