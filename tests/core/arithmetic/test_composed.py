"""Functions of several steps, beside fractions and mpmath's numbers that are rounded once after each step."""

import math
from fractions import Fraction

import numpy as np
import oracle_arithmetic
import pytest
from mpmath import mp
from support import spec

import qcore
from qcore import Entry, Recipe, parse
from qcore.arithmetic.composed import Stepwise, check_steps

MIXED = {"subtract": "float16", "exp": "e5m2", "sum": "bfloat16", "divide": "e4m3fn"}


def exact(function, *numbers):
    """An elementary function as a fraction, of 400 bits."""
    with mp.workprec(400):
        sign, significand, exponent, _ = function(*map(mp.mpf, numbers))._mpf_
    return (-1) ** sign * Fraction(int(significand)) * Fraction(2) ** exponent


def rounder(formats):
    """(step, fraction) -> the fraction rounded once, to nearest, to the step's format, or to float32."""

    def rounded(step, x):
        text = formats.get(step, formats.get("*", "float32"))
        exact = oracle_arithmetic.in_units(Fraction(x))
        return Fraction(oracle_arithmetic.rounded(*exact, spec(parse(text)), "nearest"))

    return rounded


def total(rounded, numbers):
    """A sum term by term; each addition is of float64, and rounded to the format of sums."""
    found = Fraction(0)
    for x in numbers:
        found = rounded("sum", Fraction(float(found + x)))
    return found


def softmax(rounded, x):
    powers = [rounded("exp", exact(mp.exp, float(rounded("subtract", one - max(x))))) for one in x]
    return [rounded("divide", one / total(rounded, powers)) for one in powers]


def sigmoid(rounded, x):
    return rounded("reciprocal", 1 / rounded("add", 1 + rounded("exp", exact(mp.exp, float(-x)))))


def sigmoids(rounded, x):
    return [sigmoid(rounded, rounded("input", one)) for one in x]


def silu(rounded, x):
    x = [rounded("input", one) for one in x]
    return [rounded("multiply", one * sigmoid(rounded, one)) for one in x]


def gelu(rounded, x, approximate):
    found = []
    if approximate == "none":
        for one in x:
            one = rounded("input", one)
            inner = rounded("multiply", one * Fraction(float(np.float32(math.sqrt(0.5)))))
            curve = rounded("erf", exact(mp.erf, float(inner)))
            found.append(rounded("multiply", rounded("multiply", one / 2) * rounded("add", 1 + curve)))
        return found
    root = math.sqrt(2 / math.pi)
    first, second = (Fraction(float(np.float32(c))) for c in (root, root * 0.044715))
    for one in x:
        one = rounded("input", one)
        cubic = rounded("multiply", second * rounded("multiply", one * one))
        inner = rounded("multiply", one * rounded("add", first + cubic))
        curve = rounded("tanh", exact(mp.tanh, float(inner)))
        found.append(rounded("multiply", rounded("multiply", one / 2) * rounded("add", 1 + curve)))
    return found


def normalized(rounded, x, weight, bias, eps):
    mean = rounded("divide", total(rounded, [rounded("multiply", one * one) for one in x]) / len(x))
    root = rounded("sqrt", oracle_arithmetic.root(rounded("add", mean + Fraction(float(np.float32(eps))))))
    found = [rounded("divide", one / root) for one in x]
    found = [rounded("multiply", one * w) for one, w in zip(found, weight, strict=True)]
    return found if bias is None else [rounded("add", one + b) for one, b in zip(found, bias, strict=True)]


def layer_norm(rounded, x, weight, bias, eps):
    mean = rounded("divide", total(rounded, x) / len(x))
    return normalized(rounded, [rounded("subtract", one - mean) for one in x], weight, bias, eps)


def rms_norm(rounded, x, weight, eps):
    return normalized(rounded, x, weight, None, eps)


def elementary(name):
    return lambda rounded, x: [rounded(name, exact(getattr(mp, name), float(rounded("input", one)))) for one in x]


FUNCTIONS = {
    "softmax": (softmax, ["bfloat16", MIXED, {"*": "e4m3fn", "sum": "e5m2"}], {}),
    "exp": (elementary("exp"), ["bfloat16", {"input": "e5m2", "exp": "float16"}], {}),
    "tanh": (elementary("tanh"), ["e4m3fn"], {}),
    "sigmoid": (sigmoids, ["bfloat16", {"*": "e4m3fn", "add": "float16"}], {}),
    "silu": (silu, ["bfloat16"], {}),
    "gelu": (gelu, ["bfloat16", {"*": "float16", "erf": "e4m3fn"}], {"approximate": "none"}),
    "gelu tanh": (gelu, ["bfloat16", {"*": "float16", "tanh": "e4m3fn"}], {"approximate": "tanh"}),
    "layer_norm": (layer_norm, ["bfloat16", {"*": "float16", "sum": "float32"}], {"eps": 1e-5}),
    "rms_norm": (rms_norm, ["bfloat16"], {"eps": 1e-6}),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_steps_are_rounded_once(case):
    (law, several, options), name = FUNCTIONS[case], case.split()[0]
    rng = np.random.default_rng(1)
    x = (2 * rng.standard_normal((4, 9))).astype(np.float32)
    count = {"layer_norm": 2, "rms_norm": 1}.get(name, 0)
    parameters = rng.standard_normal((count, 9)).astype(np.float32)
    for given in several:
        found = Stepwise(name, check_steps(name, given)).run(x, *parameters, **options)
        formats = given if isinstance(given, dict) else {"*": given}
        fractions = [[Fraction(float(one)) for one in row] for row in parameters]
        for row, numbers in zip(found, x, strict=True):
            right = law(rounder(formats), [Fraction(float(one)) for one in numbers], *fractions, **options)
            assert row.tolist() == [float(one) for one in right], (name, given)


def test_axes_and_special_numbers():
    steps = Stepwise("softmax", check_steps("softmax", "bfloat16"))
    x = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)
    assert np.array_equal(steps.run(x, axis=1), steps.run(x.swapaxes(1, 2)).swapaxes(1, 2))
    row = np.float32([[0.0, -np.inf, 0.0], [np.nan, 0.0, 1.0]])
    assert np.array_equal(steps.run(row), [[0.5, 0.0, 0.5], [np.nan] * 3], equal_nan=True)
    assert steps.run(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert steps.run(np.float32(3.0).reshape(())) == 1.0


def test_sums_have_the_accumulator_that_is_given():
    x = np.zeros((1, 300), np.float32)
    each, together = (
        Stepwise("softmax", check_steps("softmax", {"*": "bfloat16", "sum": one})).run(x)[0, 0]
        for one in ("bfloat16", "accumulator(bfloat16,chunk=300)")
    )
    assert (each, together) == (2.0**-8, 218 * 2.0**-16)  # a sum of ones ends at 256 in bfloat16


def test_entries_as_text():
    entry = Entry("*", "softmax", arithmetic={**MIXED, "sum": "accumulator(float16,chunk=4)"})
    recipe = Recipe([entry, Entry("a.*", "gelu", arithmetic="bfloat16"), Entry("*", "exp")])
    assert parse(recipe.text, Recipe) == recipe == eval(repr(recipe), vars(qcore))
    assert "arithmetic={subtract:float16,exp:e5m2,sum:accumulator(float16,chunk=4),divide:e4m3fn}" in recipe.text
    assert Entry("*", "softmax", arithmetic={"exp": "e5m2"}).text.endswith("{exp:e5m2,subtract:bfloat16})")


@pytest.mark.parametrize(
    ("kind", "arithmetic", "message"),
    [
        ("softmax", "float32", "the step subtract of softmax is .* of 32 bits; allowed before exp, .* are 16 bits"),
        ("softmax", {"root": "e5m2"}, "arithmetic has the step 'root'; allowed for softmax are subtract, exp, sum, "),
        ("softmax", {"exp": "mxfp4"}, r"arithmetic\['exp'\]=.*; allowed are formats without shared scales"),
        ("softmax", {}, "arithmetic={}; allowed is a format, or a dict of subtract, exp, sum, divide"),
        ("linear", "e5m2", "layer_type='linear' with arithmetic; allowed are softmax, exp, "),
        ("softmax", 3, "arithmetic=3 is a int; allowed is a Number"),
    ],
)
def test_wrong_arithmetic(kind, arithmetic, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Entry("*", kind, arithmetic=arithmetic)
