"""The operations of IEEE P3109 on extended real numbers: exact results, each as one float64 number rounded to odd.

Extended real numbers have one NaN and no -0. The laws are those of `qcore.arithmetic`, but for the operands that the
report gives other results. Numbers beyond every format stay finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qcore.arithmetic import choices, elementary
from qcore.arithmetic.law import one_nan
from qcore.arithmetic.operations import OPERATIONS
from qcore.linalg.namespace import Float64

Numbers = np.ndarray
FARTHEST = 2.0**700  # no format that is provided has such numbers, nor have quotients by a scale


def title(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


# Operations whose results are operands, or their negatives.
EXACT: dict[str, tuple[int, Callable[..., Numbers]]] = {
    "Negate": (1, choices.negate),
    "Abs": (1, choices.magnitude),
    "CopySign": (2, choices.copysign),
    "Clamp": (3, choices.clamp),
    **{title(name): (2, choices.chosen(first)) for name, first in choices.EXTREMA.items()},
}
_RENAMED = {"FMA": "fma", "FAA": "faa", "Recip": "reciprocal", "RSqrt": "rsqrt", "LogOnePlus": "log1p"}
_RENAMED |= {"ExpMinusOne": "expm1", "SinPi": "sinpi", "CosPi": "cospi", "TanPi": "tanpi"}
_ARCS = "Sin Cos Tan Sinh Cosh Tanh SinPi CosPi TanPi Tan2 Tan2Pi".split()
_KEPT = "add subtract multiply divide sqrt exp exp2 log log2 softplus sin cos tan sinh cosh tanh hypot".split()
ROUNDED = {
    **{name.title(): name for name in _KEPT},
    **_RENAMED,
    **{f"Arc{name}": f"arc{name.lower()}" for name in _ARCS},
}
_NAN_WHERE: dict[str, Callable[..., Numbers]] = {
    "Divide": lambda x, y: y == 0,
    "Recip": lambda x: x == 0,
    "RSqrt": lambda x: x == 0,
    "TanPi": lambda x: np.isfinite(x) & (np.mod(x, 1.0) == 0.5),
    "Hypot": lambda x, y: np.isnan(x) | np.isnan(y),
    **dict.fromkeys(("ArcTan2", "ArcTan2Pi"), lambda y, x: ((x == 0) & (y == 0)) | (np.isinf(x) & np.isinf(y))),
}


def count_of(name: str) -> int:
    """The number of an operation's operands."""
    return EXACT[name][0] if name in EXACT else OPERATIONS[ROUNDED[name]].operands if name in ROUNDED else 1


def results(name: str, numbers: list[Numbers], digits: int) -> Numbers:
    """The results of float64 numbers of one shape, for roundings that so many bits decide; "Convert" returns its own.

    Operands of products have up to 24 significant bits, as in `qcore.arithmetic.law`.
    """
    with np.errstate(all="ignore"):
        if name == "Convert":
            found = numbers[0]
        elif name in EXACT:
            found = EXACT[name][1](Float64, *numbers)
        else:
            found = _computed(name, numbers, digits)
        return within(np.asarray(one_nan(Float64, found)))


def within(x: Numbers) -> Numbers:
    """Finite numbers but 0 brought to exponents from -700 to 700; there is no -0."""
    near = np.copysign(np.clip(abs(x), 1 / FARTHEST, FARTHEST), x)
    return np.where((x != 0) & np.isfinite(x), near, x + 0.0)


def _computed(name: str, numbers: list[Numbers], digits: int) -> Numbers:
    wrong = _NAN_WHERE.get(name, lambda *x: np.zeros(x[0].shape, bool))(*numbers)
    if name.startswith("ArcTan2"):  # (y, -infinity) has a positive angle, also below zero
        numbers = [np.where(np.isneginf(numbers[1]), abs(numbers[0]), numbers[0]), numbers[1]]
    law = OPERATIONS[ROUNDED[name]].law
    found = law(Float64, *numbers) if law is not None else _of_function(ROUNDED[name], numbers, digits)
    return np.where(wrong, np.nan, found)


def _of_function(name: str, numbers: list[Numbers], digits: int) -> Numbers:
    """The results of an elementary function, computed once for equal operands."""
    lanes = np.stack([x.ravel() for x in numbers]).view(np.int64)
    distinct, places = np.unique(lanes, axis=1, return_inverse=True)
    function: Any = elementary.of_one if len(numbers) == 1 else elementary.of_two
    return function(name, *distinct.view(np.float64), digits=digits)[places.reshape(numbers[0].shape)]
