"""Functions of one float32 number, and their derivatives.

Smooth functions are evaluated in float64 and rounded once. They use exp, log, log1p, tanh, sin, cos and the square root
of the framework. The error function is defined here: libraries' versions differ in accuracy, and NumPy does not have
one. Piecewise functions round each operation to float32; where a number is NaN, the result and the derivative are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial, inf, pi, sqrt
from typing import Any

from qcore.arguments import check_float, quoted
from qcore.binding import public
from qcore.reproducible.binding import Binding, of_one
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.operations import normal


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """A polynomial by Horner's rule. A compiler may contract it: that changes the last place of float64 only."""
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


_EXPM1 = [1 / factorial(k) for k in range(1, 17)]


def expm1(xp: Any, x: Any) -> Any:
    """exp(x) - 1 of float64 numbers, by its series for |x| < 1/2. Inductor's own function subtracts there too."""
    # The term after the last is below 0.5^16 / 17!, which is less than 2^-60 of the sum.
    return xp.where(abs(x) < 0.5, x * polynomial(_EXPM1, x), xp.exp(x) - 1.0)


_NEAR_ZERO = 2.0**-12


def sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    # Near 0 it is 1/2 + x/4 - x^3/48. Float64 loses the cube, and many sums 1/2 + x/4 are the middle of two float32
    # numbers. A factor a little below 1/4 puts the exact product on the cube's side of the middle, and of no other one.
    return xp.near_zero(x, _NEAR_ZERO, 0.5 + x * (0.25 - 2.0**-29), 1.0 / (1.0 + xp.exp(-x)))


def sigmoid_slope(xp: Any, x: Any) -> Any:
    """The derivative of sigmoid, by exp(-|x|): it is even, and exp(-x) would overflow for large negative numbers."""
    e = _decay(xp, x)
    return e / ((1.0 + e) * (1.0 + e))


def silu(xp: Any, x: Any) -> Any:
    return x / (1.0 + xp.exp(-x))


def silu_slope(xp: Any, x: Any) -> Any:
    """The derivative of silu; near 0, where it is 1/2 + x/2 - x^3/12, as `sigmoid`."""
    beyond = times_sigmoid_slope(xp, x, x)
    return xp.near_zero(x, _NEAR_ZERO, 0.5 + x * (0.5 - 2.0**-28), beyond)


def times_sigmoid_slope(xp: Any, argument: Any, change: Any) -> Any:
    """The derivative of x sigmoid(argument), where `change` is x times the argument's derivative."""
    e = _decay(xp, argument)
    # Below zero the exponential is a factor of the whole sum, so that an underflow keeps the sign.
    above, below = 1.0 + e + xp.product(change, e), e * (1.0 + e + change)
    return xp.where(argument < 0, below, above) / ((1.0 + e) * (1.0 + e))


def _decay(xp: Any, x: Any) -> Any:
    """exp(-|x|), written as a choice: its derivative at zero is then not 0, unlike that of the absolute value."""
    return xp.exp(xp.where(x < 0, x, -x))


def softplus(xp: Any, x: Any) -> Any:
    """log(1 + exp(x)), with the larger of 0 and x taken out, so that the exponential cannot overflow."""
    return xp.where(x > 0, x, 0.0) + xp.log1p(xp.exp(-abs(x)))


_CUBE = 0.044715
_TWICE = 2 * sqrt(2 / pi)


def gelu_tanh(xp: Any, x: Any) -> Any:
    """x / 2 (1 + tanh(u)), where 1 + tanh(u) is 2 sigmoid(2u)."""
    # As a sigmoid: for negative u the sum 1 + tanh(u) would cancel.
    return x / (1.0 + xp.exp(-(x * _twice(xp, x, _CUBE))))


def gelu_tanh_slope(xp: Any, x: Any) -> Any:
    return times_sigmoid_slope(xp, x * _twice(xp, x, _CUBE), xp.product(x, _twice(xp, x, 3 * _CUBE)))


def _twice(xp: Any, x: Any, cube: float) -> Any:
    """2u / x where u = sqrt(2 / pi) (x + cube x^3), and with three times the cube 2u's derivative."""
    return _TWICE + xp.product(x * x, _TWICE * cube)


# erf(x) / x as a polynomial in x^2, for |x| < 1/2
_MIDDLE = (
    1.1283791670955126,
    -0.3761263890318375,
    0.1128379167095487,
    -0.026866170645000076,
    0.005223977622024224,
    -0.0008548326511566567,
    0.00012055286259121393,
    -1.4923005626894847e-05,
    1.6371282597755977e-06,
    -1.4621341491012844e-07,
)

# exp(t^2) erfc(t) (1 + 2t) as a polynomial in (t - 4) / (t + 4), for 0 <= t <= 10; both within 3e-16, relative
_TAIL = (
    1.2329951186255526,
    -0.1396211168405623,
    0.015379652102610473,
    0.06809705425466908,
    -0.10103906603586531,
    0.0937328349990944,
    -0.06633036582031154,
    0.03716751552655567,
    -0.016197733981455194,
    0.005031970067657489,
    -0.000757773707063825,
    -0.00019925714661091188,
    0.00015062309720018628,
    -2.4397746422436416e-05,
    -1.1225101875659178e-05,
    5.706604414895734e-06,
    2.9801353803031333e-07,
    -8.210939042560568e-07,
    7.115337800585303e-08,
    1.0633855618594884e-07,
    -1.6371779763566967e-08,
    -1.234686604382353e-08,
    1.5738283774192037e-09,
    9.311744978232572e-10,
)

_SLOPE = 2 / sqrt(pi)  # of erf at zero
_DENSITY = 1 / sqrt(2 * pi)  # of the normal distribution at zero
_NEAR = 0.125
_NORMAL = [_DENSITY * (-0.5) ** k / (factorial(k) * (2 * k + 1)) for k in range(8)]  # the distribution, less 1/2
_NORMAL_SLOPE = [(2 * k + 2) * c for k, c in enumerate(_NORMAL)]  # of x times the distribution
_FAR = 10.0  # erfc(10) and exp(-100) are below the normal float32 numbers


def erf(xp: Any, x: Any) -> Any:
    """The error function of float64 numbers; the squares of float32 numbers are exact."""
    square = x * x
    # Below 1/2 the difference would cancel; above, the polynomial in x^2 would need too many terms.
    tail = 1.0 - xp.exp(-square) * _scaled_tail(xp, abs(x))
    return xp.where(abs(x) < 0.5, x * polynomial(_MIDDLE, square), xp.where(x < 0, -tail, tail))


def erf_slope(xp: Any, x: Any) -> Any:
    """The derivative of the error function."""
    square = x * x
    # At 0x37f5db6c it lies next to the middle of two float32 numbers, and exponentials of libraries lie on both sides.
    # So near zero it is a difference.
    return xp.near_zero(x, 2.0**-14, _SLOPE - _SLOPE * square, xp.exp(-square) * _SLOPE)


def gelu(xp: Any, x: Any) -> Any:
    """x times the distribution function of the normal distribution, which is erfc(-x / sqrt(2)) / 2."""
    # By its series near zero: at -2.1e-5 the last place of a library's exponential would decide.
    tail = xp.exp(-0.5 * (x * x)) * _normal_tail(xp, x)
    near = 0.5 + xp.product(x, polynomial(_NORMAL, x * x))
    return x * xp.where(abs(x) < _NEAR, near, xp.where(x > 0, 1.0 - tail, tail))


def gelu_slope(xp: Any, x: Any) -> Any:
    """The derivative of gelu."""
    # By its series near zero: at 0.0731 the last place of a library's exponential would decide. Below zero the
    # exponential is a factor of the whole sum, so that an underflow keeps the sign.
    rest = xp.exp(-0.5 * (x * x)) * (_normal_tail(xp, x) - xp.product(abs(x), _DENSITY))
    near = 0.5 + xp.product(x, polynomial(_NORMAL_SLOPE, x * x))
    return xp.where(abs(x) < _NEAR, near, xp.where(x > 0, 1.0 - rest, rest))


def _normal_tail(xp: Any, x: Any) -> Any:
    """exp(x^2 / 2) times the normal distribution function of -|x|."""
    return 0.5 * _scaled_tail(xp, abs(x) * sqrt(0.5))


def _scaled_tail(xp: Any, t: Any) -> Any:
    """exp(t^2) erfc(t) for 0 <= t <= 10; beyond, the value at 10, as its factor exp(-t^2) is a zero there."""
    t = xp.where(t > _FAR, _FAR, t)
    return polynomial(_TAIL, (t - 4.0) / (t + 4.0)) / (1.0 + 2.0 * t)


Function = Callable[[Any, Any], Any]  # (xp, numbers) -> numbers


def rounded(function: Function) -> Function:
    """A function of float32 numbers: it evaluates a function of float64 numbers and rounds the result once."""
    return lambda xp, x: xp.float32(function(xp, xp.float64(x)))


def elementwise(
    function: Callable[..., Any], derivative: Callable[..., Any], by_pieces: bool = False
) -> Differentiable:
    """The law of a function (xp, x, **options) of one float32 number and its derivative; the gradient is a product."""

    def forward(xp: Any, x: Any, **options: Any) -> tuple[Any, tuple[Any]]:
        return function(xp, x, **options), (x,)

    def backward(xp: Any, saved: tuple[Any], gradient: Any, **options: Any) -> tuple[Any]:
        return (xp.mul(gradient, derivative(xp, saved[0], **options)),)

    return Differentiable(forward, backward, by_pieces)


IN_FLOAT64: dict[str, Function] = {
    "exp": lambda xp, x: xp.exp(x),
    "expm1": expm1,
    "log": lambda xp, x: xp.log(x),
    "log1p": lambda xp, x: xp.log1p(x),
    "log1p_slope": lambda xp, x: 1.0 / (1.0 + x),
    "tanh": lambda xp, x: xp.tanh(x),
    "tanh_slope": lambda xp, x: 4.0 * sigmoid_slope(xp, 2.0 * x),  # 1 - tanh(x)^2 would cancel for large |x|
    "sigmoid": sigmoid,
    "sigmoid_slope": sigmoid_slope,
    "erf": erf,
    "erf_slope": erf_slope,
    "sin": lambda xp, x: xp.sin(x),
    "cos": lambda xp, x: xp.cos(x),
    "sqrt": lambda xp, x: xp.root(x),
    "sqrt_slope": lambda xp, x: 0.5 / xp.root(x),
    "rsqrt": lambda xp, x: 1.0 / xp.root(x),
    "rsqrt_slope": lambda xp, x: -0.5 / (x * xp.root(x)),
    "reciprocal": lambda xp, x: 1.0 / x,
    "reciprocal_slope": lambda xp, x: -1.0 / (x * x),
    "softplus": softplus,
    "silu": silu,
    "silu_slope": silu_slope,
    "gelu": gelu,
    "gelu_slope": gelu_slope,
    "gelu_tanh": gelu_tanh,
    "gelu_tanh_slope": gelu_tanh_slope,
}
PARTS = {name: rounded(function) for name, function in IN_FLOAT64.items()}


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946  # as torch has them


def _relu(xp: Any, x: Any) -> Any:
    return xp.where(x <= 0, 0.0, x)


def _step(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, 1.0, xp.where(x == x, 0.0, x))


def _negative_sine(xp: Any, x: Any) -> Any:
    return -PARTS["sin"](xp, x)


def _chosen(xp: Any, condition: Any, value: Any, x: Any, other: float) -> Any:
    """`value` where the condition holds, `other` elsewhere, and NaN where x is NaN (its comparisons are False)."""
    return xp.where(condition, value, xp.where(x == x, other, x))


def _absolute_slope(xp: Any, x: Any) -> Any:
    return xp.where(x < 0, -1.0, _chosen(xp, x > 0, 1.0, x, 0.0))


def _leaky(xp: Any, x: Any, slope: float) -> Any:
    return xp.where(x > 0, x, xp.mul(x, slope))


def _leaky_slope(xp: Any, x: Any, slope: float) -> Any:
    return _chosen(xp, x > 0, 1.0, x, slope)


def _clamped(xp: Any, x: Any, low: float, high: float, ends: bool) -> Any:
    # Comparisons, not a minimum and a maximum: NaN fails both comparisons and stays.
    return xp.where(x < low, low, xp.where(x > high, high, x))


def _clamped_slope(xp: Any, x: Any, low: float, high: float, ends: bool) -> Any:
    """The slope of the clamp: 1 inside, 0 outside; at both ends 1 if `ends` is true, else 0."""
    inside = (x >= low) & (x <= high) if ends else (x > low) & (x < high)
    return _chosen(xp, inside, 1.0, x, 0.0)


def _hard_sigmoid(xp: Any, x: Any) -> Any:
    return xp.where(x <= -3, 0.0, xp.where(x >= 3, 1.0, xp.div(xp.add(x, 3.0), 6.0)))


def _hard_sigmoid_slope(xp: Any, x: Any) -> Any:
    return _chosen(xp, (x > -3) & (x < 3), 1 / 6, x, 0.0)


def _hard_swish(xp: Any, x: Any) -> Any:
    return xp.where(x <= -3, 0.0, xp.mul(x, _hard_sigmoid(xp, x)))


def _hard_swish_slope(xp: Any, x: Any) -> Any:
    return xp.where(x <= -3, 0.0, xp.where(x >= 3, 1.0, xp.add(xp.div(x, 3.0), 0.5)))


def _elu(xp: Any, x: Any, positive: float, negative: float, divisor: float) -> Any:
    # Infinite where x is large, so the branches are chosen by `where` and not added.
    below = xp.mul(PARTS["expm1"](xp, xp.div(x, divisor)), negative)
    return xp.where(x > 0, xp.mul(x, positive), below)


def _elu_slope(xp: Any, x: Any, positive: float, negative: float, divisor: float) -> Any:
    below = xp.mul(PARTS["exp"](xp, xp.div(x, divisor)), negative / divisor)
    return xp.where(x > 0, positive, below)


ELEMENTARY = {
    "exp": elementwise(PARTS["exp"], PARTS["exp"]),
    "expm1": elementwise(PARTS["expm1"], PARTS["exp"]),
    "log": elementwise(PARTS["log"], PARTS["reciprocal"]),
    "sin": elementwise(PARTS["sin"], PARTS["cos"]),
    "cos": elementwise(PARTS["cos"], _negative_sine),
    "softplus": elementwise(PARTS["softplus"], PARTS["sigmoid"]),
    "relu": elementwise(_relu, _step, by_pieces=True),
} | {
    name: elementwise(PARTS[name], PARTS[f"{name}_slope"])
    for name in ("log1p", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "reciprocal", "silu", "gelu", "gelu_tanh")
}
PIECEWISE = {
    "abs": elementwise(lambda xp, x: abs(x), _absolute_slope, by_pieces=True),
    "leaky_relu": elementwise(_leaky, _leaky_slope, by_pieces=True),
    "clamp": elementwise(_clamped, _clamped_slope, by_pieces=True),
    "hardsigmoid": elementwise(_hard_sigmoid, _hard_sigmoid_slope, by_pieces=True),
    "hardswish": elementwise(_hard_swish, _hard_swish_slope),
    "elu": elementwise(_elu, _elu_slope),
}


class ElementaryFunctions(Binding):
    """Functions of one float32 array. Numbers of magnitude at most 2^-126 are zeros, as arguments and as results."""

    exp = of_one("exp", ELEMENTARY["exp"], "e^x.", "[0.0, 1]", "[1.0, 2.7182817459106445]")
    expm1 = of_one("expm1", ELEMENTARY["expm1"], "e^x - 1.", "[0.0, -np.inf]", "[0.0, -1.0]")
    log = of_one(
        "log", ELEMENTARY["log"], "The natural logarithm; NaN of a negative number.", "[0.0, 1, -1]", "[-inf, 0.0, nan]"
    )
    log1p = of_one("log1p", ELEMENTARY["log1p"], "log(1 + x); NaN below -1.", "[-1.0, 0, -2]", "[-inf, 0.0, nan]")
    erf = of_one("erf", ELEMENTARY["erf"], "The error function.", "[-np.inf, 0, np.inf]", "[-1.0, 0.0, 1.0]")
    sin = of_one("sin", ELEMENTARY["sin"], "The sine of radians; NaN of an infinity.", "[0, np.pi / 2]", "[0.0, 1.0]")
    cos = of_one("cos", ELEMENTARY["cos"], "The cosine of radians; NaN of an infinity.", "[0, np.pi]", "[1.0, -1.0]")
    sqrt = of_one("sqrt", ELEMENTARY["sqrt"], "The square root; NaN of a negative number.", "[0.25, 9]", "[0.5, 3.0]")
    rsqrt = of_one(
        "rsqrt", ELEMENTARY["rsqrt"], "1 / sqrt(x), rounded once; NaN of a negative number.", "[0.25, 4]", "[2.0, 0.5]"
    )
    reciprocal = of_one("reciprocal", ELEMENTARY["reciprocal"], "1 / x.", "[-4, 0.5]", "[-0.25, 2.0]")
    tanh = of_one("tanh", ELEMENTARY["tanh"], "The hyperbolic tangent.", "[-np.inf, 0, np.inf]", "[-1.0, 0.0, 1.0]")
    sigmoid = of_one("sigmoid", ELEMENTARY["sigmoid"], "1 / (1 + exp(-x)).", "[-np.inf, 0]", "[0.0, 0.5]")
    softplus = of_one("softplus", ELEMENTARY["softplus"], "log(1 + exp(x)).", "[-np.inf, np.inf]", "[0.0, inf]")
    silu = of_one("silu", ELEMENTARY["silu"], "x / (1 + exp(-x)), rounded once.", "[0.0, 100]", "[0.0, 100.0]")
    relu = of_one("relu", ELEMENTARY["relu"], "x where it is above 0, else +0.", "[-2.0, 3]", "[0.0, 3.0]")
    abs = of_one("abs", PIECEWISE["abs"], "The magnitude; its derivative at 0 is 0.", "[-2.0, 3]", "[2.0, 3.0]")
    hardsigmoid = of_one(
        "hardsigmoid",
        PIECEWISE["hardsigmoid"],
        "(x + 3) / 6 from -3 to 3; 0 below, 1 above.",
        "[-4.0, 0]",
        "[0.0, 0.5]",
    )
    hardswish = of_one(
        "hardswish", PIECEWISE["hardswish"], "x * hardsigmoid(x); +0 up to -3.", "[-4.0, 4]", "[0.0, 4.0]"
    )

    @public
    def gelu(self, x: Any, approximate: str = "none") -> Any:
        """x times the distribution function of the normal distribution, rounded once.

        Args:
            x: float32 array.
            approximate: "none", or "tanh" for x * sigmoid(2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3).

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.gelu(np.float32([0.0, 100])).tolist()
            [0.0, 100.0]
        """
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate={quoted(approximate)}; allowed are 'none' and 'tanh'")
        return self.call(ELEMENTARY["gelu" if approximate == "none" else "gelu_tanh"], self.float32("x", x))

    @public
    def leaky_relu(self, x: Any, slope: float = 0.01) -> Any:
        """x where it is above 0, else slope * x.

        Args:
            x: float32 array.
            slope: a finite number.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.leaky_relu(np.float32([-2.0, 3]), 0.5).tolist()
            [-1.0, 3.0]
        """
        return self._piecewise("leaky_relu", x, slope=_finite("slope", slope))

    @public
    def clamp(self, x: Any, low: float | None = None, high: float | None = None) -> Any:
        """The nearest number from low to high; the derivative is 1 there, at both ends too, and 0 elsewhere.

        Args:
            x: float32 array.
            low, high: numbers, or None for no bound.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.clamp(np.float32([-2.0, 0.5, 3]), 0, 1).tolist()
            [0.0, 0.5, 1.0]
        """
        return self._clamped(x, low, high, True)

    @public
    def hardtanh(self, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
        """`clamp` with a derivative of 0 at both ends, as torch.nn.Hardtanh.

        Args:
            x: float32 array.
            low, high: numbers.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.hardtanh(np.float32([-2.0, 0.5, 3])).tolist()
            [-1.0, 0.5, 1.0]
        """
        return self._clamped(x, low, high, False)

    @public
    def elu(self, x: Any, alpha: float = 1.0) -> Any:
        """x where it is above 0, else alpha * (exp(x) - 1).

        Args:
            x: float32 array.
            alpha: a finite number.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.elu(np.float32([-100.0, 3]), 0.5).tolist()
            [-0.5, 3.0]
        """
        return self._piecewise("elu", x, positive=1.0, negative=_finite("alpha", alpha), divisor=1.0)

    @public
    def selu(self, x: Any) -> Any:
        """1.0507 times the `elu` of x with alpha = 1.6733; the product of both constants is one number.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.selu(np.float32([-100.0, 1])).tolist()
            [-1.7580993175506592, 1.0507010221481323]
        """
        return self._piecewise("elu", x, positive=_SELU_SCALE, negative=_SELU_SCALE * _SELU_ALPHA, divisor=1.0)

    @public
    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        """x where it is above 0, else alpha * (exp(x / alpha) - 1).

        Args:
            x: float32 array.
            alpha: a finite number that is not 0.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.celu(np.float32([-100.0, 3]), 0.5).tolist()
            [-0.5, 3.0]
        """
        number = _finite("alpha", alpha)
        if number == 0:
            raise ValueError("alpha=0; allowed is a finite number that is not 0")
        return self._piecewise("elu", x, positive=1.0, negative=number, divisor=number)

    def _piecewise(self, name: str, x: Any, **options: Any) -> Any:
        return self.call(PIECEWISE[name], self.float32("x", x), **options)

    def _clamped(self, x: Any, low: float | None, high: float | None, ends: bool) -> Any:
        least = -inf if low is None else _number("low", low)
        most = inf if high is None else _number("high", high)
        if least > most:
            raise ValueError(f"low={quoted(low)} and high={quoted(high)}; allowed is low <= high")
        return self._piecewise("clamp", x, low=least, high=most, ends=ends)


def _number(name: str, value: Any) -> float:
    """A number that is not NaN, rounded to float32."""
    return normal(check_float(name, value, "a number", lambda number: number == number))


def _finite(name: str, value: Any) -> float:
    """A finite number, rounded to float32."""
    return normal(check_float(name, value, "a finite number", lambda number: abs(number) < 2.0**127))
