"""Functions of several steps, each rounded to a format of its own: softmax, norms, activations.

Each law is written once, with the functions of `arithmetic` of a package and its products, which sum and copy. So the
gradient is the chain of the steps' gradients, and rounding passes it straight through. Its bits are defined: the
gradient of a copy is an exact sum, rounded once, and no number has more than two readers, whose gradients are one sum
of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from qcore import linalg
from qcore.arguments import quoted
from qcore.arithmetic.call import SHORT as MOST_BITS
from qcore.arithmetic.call import check_fits
from qcore.arithmetic.functions import FUNCTIONS
from qcore.formats.number import check_number
from qcore.linalg.accumulator import Accumulator, check_accumulator, check_scalar, is_accumulator

REST = "*"  # stands for all steps that have no format of their own
_WIDE, _SHORT = "float32", "bfloat16"  # of steps without a format, and of those before a table


class Steps(NamedTuple):
    """The formats of a function's steps, as texts, which compiled programs can hold.

    Attributes:
        formats: pairs of a step, or "*" for all others, and the text of its format; of "sum" also an accumulator's.
    """

    formats: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return repr(self.text if self._is_one else dict(self.formats))

    @property
    def _is_one(self) -> bool:
        return [step for step, _ in self.formats] == [REST]

    @property
    def text(self) -> str:
        """The text form: the format of all steps, or steps with formats in braces."""
        if self._is_one:
            return self.formats[0][1]
        return f"{{{','.join(f'{step}:{text}' for step, text in self.formats)}}}"

    def of(self, step: str) -> str:
        """The text of a step's format."""
        given = dict(self.formats)
        return given.get(step, given.get(REST, _WIDE))

    @property
    def accumulator(self) -> Accumulator:
        """The accumulator of sums: an accumulator that adds term by term, if "sum" is a format."""
        text = self.of("sum")
        return check_accumulator(text) if is_accumulator(text) else Accumulator(text, chunk=1)


class Stepwise:
    """The steps of a function on NumPy arrays; other packages have their own class.

    Arrays are float32. Where a function sums, they have two axes, and it sums along the last one.
    """

    functions: Any = FUNCTIONS
    matmul: Any = staticmethod(linalg.matmul)

    def __init__(self, function: str, steps: Steps) -> None:
        self.function, self.steps, self.accumulator = function, steps, steps.accumulator

    @property
    def law(self) -> Law:
        return LAWS[self.function]

    @staticmethod
    def scalar(value: float, like: Any) -> Any:
        return np.float32(value)

    @staticmethod
    def ones(rows: int, columns: int, like: Any) -> Any:
        return np.ones((rows, columns), np.float32)

    @staticmethod
    def greatest(x: Any) -> Any:
        """The greatest number of each row, which passes no gradient."""
        return x.max(-1, keepdims=True)

    def check_result(self, dtype: str) -> None:
        """Raises if a dtype has not the numbers of the results."""
        for step in self.law.last:
            check_fits(check_number(self.steps.of(step)), dtype)

    def run(self, x: Any, *parameters: Any, axis: int = -1, **options: Any) -> Any:
        """The function of a float32 array along an axis; `parameters` are of the axis' size, or None."""
        if 0 in x.shape:
            return x
        if x.ndim == 0:
            return self.run(x.reshape(1), *parameters, **options).reshape(())
        moved = x.swapaxes(axis, -1)
        found = self.law.function(self, moved.reshape(-1, moved.shape[-1]), *parameters, **options)
        return found.reshape(moved.shape).swapaxes(axis, -1)

    def entered(self, x: Any) -> Any:
        """x, rounded to the format of the step "input"."""
        return self.functions.negate(self.functions.negate(x), self.steps.of("input"))

    def add(self, x: Any, y: Any) -> Any:
        return self.functions.add(x, y, self.steps.of("add"))

    def subtract(self, x: Any, y: Any) -> Any:
        return self.functions.subtract(x, y, self.steps.of("subtract"))

    def multiply(self, x: Any, y: Any) -> Any:
        return self.functions.multiply(x, y, self.steps.of("multiply"))

    def divide(self, x: Any, y: Any) -> Any:
        return self.functions.divide(x, y, self.steps.of("divide"))

    def sqrt(self, x: Any) -> Any:
        return self.functions.sqrt(x, self.steps.of("sqrt"))

    def reciprocal(self, x: Any) -> Any:
        return self.functions.reciprocal(x, self.steps.of("reciprocal"))

    def looked_up(self, name: str, x: Any) -> Any:
        """An elementary function of the results of the step before it."""
        return getattr(self.functions, name)(x, self.steps.of(name), operands=self.steps.of(self.law.tables[name]))

    def times(self, factor: float, x: Any) -> Any:
        return self.multiply(self.scalar(factor, x), x)

    def square(self, x: Any) -> Any:
        size = self.functions.abs(x)  # one reader of x, though the product has two factors
        return self.multiply(size, size)

    def again(self, x: Any) -> Any:
        """x for two more readers."""
        return self.functions.negate(self.functions.negate(x))

    def total(self, x: Any) -> Any:
        return self.matmul(x, self.ones(x.shape[-1], 1, x), accumulator=self.accumulator)

    def mean(self, x: Any) -> Any:
        return self.divide(self.total(x), self.scalar(x.shape[-1], x))

    def spread(self, x: Any, like: Any) -> Any:
        """A number of each row for all its places."""
        return self.matmul(x, self.ones(1, like.shape[-1], like))

    def repeated(self, x: Any, like: Any) -> Any:
        """A row for all rows."""
        return self.matmul(self.ones(like.shape[0], 1, like), x.reshape(1, -1))


def _softmax(steps: Stepwise, x: Any) -> Any:
    """exp(x - max) / sum."""
    exponentials = steps.looked_up("exp", steps.subtract(x, steps.greatest(x)))
    return steps.divide(exponentials, steps.spread(steps.total(exponentials), x))


def _elementary(name: str) -> Callable[..., Any]:
    return lambda steps, x: steps.looked_up(name, steps.entered(x))


def _sigmoid(steps: Stepwise, x: Any) -> Any:
    return _sigmoid_of(steps, steps.entered(x))


def _sigmoid_of(steps: Stepwise, x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return steps.reciprocal(steps.add(steps.looked_up("exp", steps.functions.negate(x)), steps.scalar(1.0, x)))


def _silu(steps: Stepwise, x: Any) -> Any:
    x = steps.entered(x)
    return steps.multiply(x, _sigmoid_of(steps, x))


def _gelu(steps: Stepwise, x: Any, approximate: str = "none") -> Any:
    """x / 2 (1 + erf(x / sqrt(2))), or x / 2 (1 + tanh(x (a + b x^2)))."""
    x = steps.entered(x)
    inner = steps.again(x)
    if approximate == "tanh":
        cubic = steps.times(sqrt(2 / pi) * 0.044715, steps.square(inner))
        found = steps.multiply(inner, steps.add(steps.scalar(sqrt(2 / pi), x), cubic))
    else:
        found = steps.times(sqrt(0.5), inner)
    found = steps.looked_up("tanh" if approximate == "tanh" else "erf", found)
    return steps.multiply(steps.times(0.5, x), steps.add(steps.scalar(1.0, x), found))


def _layer_norm(steps: Stepwise, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias."""
    return _normalized(steps, steps.subtract(x, steps.spread(steps.mean(x), x)), weight, bias, eps)


def _rms_norm(steps: Stepwise, x: Any, weight: Any, eps: float) -> Any:
    return _normalized(steps, x, weight, None, eps)


def _normalized(steps: Stepwise, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    variance = steps.add(steps.mean(steps.square(x)), steps.scalar(eps, x))
    found = steps.divide(x, steps.spread(steps.sqrt(variance), x))
    found = found if weight is None else steps.multiply(found, steps.repeated(weight, x))
    return found if bias is None else steps.add(found, steps.repeated(bias, x))


class Law(NamedTuple):
    """A function of several steps.

    Attributes:
        function: (steps, *arrays, **options) -> the result.
        steps: their names, in order.
        tables: the steps that are elementary functions, and the steps whose results are their operands.
        last: the steps whose results may be the function's.
    """

    function: Callable[..., Any]
    steps: tuple[str, ...]
    tables: dict[str, str]
    last: tuple[str, ...]


def _law(function: Callable[..., Any], steps: str, tables: str = "", last: str = "") -> Law:
    names = tuple(steps.split())
    pairs = dict(pair.split(":") for pair in tables.split())
    return Law(function, names, pairs, tuple(last.split()) or names[-1:])


LAWS = {
    "softmax": _law(_softmax, "subtract exp sum divide", "exp:subtract"),
    "exp": _law(_elementary("exp"), "input exp", "exp:input"),
    "tanh": _law(_elementary("tanh"), "input tanh", "tanh:input"),
    "sigmoid": _law(_sigmoid, "input exp add reciprocal", "exp:input"),
    "silu": _law(_silu, "input exp add reciprocal multiply", "exp:input"),
    "gelu": _law(_gelu, "input multiply add tanh erf", "tanh:multiply erf:multiply", "multiply"),
    "layer_norm": _law(_layer_norm, "sum divide subtract multiply add sqrt", "", "divide multiply add"),
    "rms_norm": _law(_rms_norm, "multiply sum divide add sqrt", "", "divide multiply"),
}


def check_steps(function: str, given: Any) -> Steps:
    """The formats of a function's steps: one format for all, or a mapping of steps and "*" to formats.

    Without "*", the steps that are not named are float32, or before a table bfloat16.
    """
    law = LAWS[function]
    given = {REST: given} if not isinstance(given, Mapping | Steps) else given
    formats = dict(given.formats) if isinstance(given, Steps) else given
    if not formats:
        raise ValueError(f"arithmetic={quoted(given)}; allowed is a format, or a dict of {', '.join(law.steps)}")
    for step in formats:
        if step not in (*law.steps, REST):
            raise ValueError(
                f"arithmetic has the step {quoted(step)}; allowed for {function} are {', '.join(law.steps)}, {REST}"
            )
    texts = {step: _checked(step, one) for step, one in formats.items()}
    if REST not in texts:
        texts |= {before: _SHORT for before in law.tables.values() if before not in texts}
    steps = Steps(tuple(texts.items()))
    for name, before in law.tables.items():
        number = check_number(steps.of(before))
        if number.bits > MOST_BITS:
            raise ValueError(
                f"arithmetic: the step {before} of {function} is {number.text}, of {number.bits} bits; allowed before "
                f"{name}, which is a table, are {MOST_BITS} bits"
            )
    return steps


def _checked(step: str, given: Any) -> str:
    """The text of a step's format."""
    argument = "arithmetic" if step == REST else f"arithmetic[{quoted(step)}]"
    if step == "sum" and is_accumulator(given):
        return check_accumulator(given, argument).text
    number = check_scalar(argument, given)
    check_fits(number, _WIDE)
    return number.text
