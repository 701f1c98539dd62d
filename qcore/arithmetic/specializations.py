"""Specializations: IEEE P3109's operations with formats and a projection, as functions of arrays of codes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from qcore.arguments import check_int, missing_key
from qcore.arithmetic import blocks, choices, extended
from qcore.arithmetic.extended import EXACT, ROUNDED
from qcore.arithmetic.queries import QUERIES, decoded, encoded, neighbour, smallest_normal
from qcore.formats.floating import BinaryFloat
from qcore.linalg.namespace import Float64
from qcore.packing import check_codes
from qcore.random.threefry import fold_in

ROUNDINGS = {
    "NearestTiesToEven": "nearest",
    "NearestTiesToAway": "nearest_away",
    "TowardPositive": "up",
    "TowardNegative": "down",
    "TowardZero": "toward_zero",
    "ToOdd": "odd",
    "StochasticA": "stochastic",
    "StochasticB": "stochastic_b",
    "StochasticC": "stochastic_c",
}
SATURATIONS = {"SatNone": "inf", "SatFinite": "saturate", "SatPropagate": "propagate"}
USUAL = ("NearestTiesToEven", "SatNone")
COMPARISONS = {
    name: choices.COMPARISONS[law]
    for name, law in {
        "CompareLess": "less",
        "CompareLessEqual": "less_equal",
        "CompareEqual": "equal",
        "CompareGreater": "greater",
        "CompareGreaterEqual": "greater_equal",
        "TotalOrder": "total_order",
    }.items()
}
PREDICATES = {
    f"Is{name}": choices.PREDICATES[f"is_{law}"]
    for name, law in {
        "Zero": "zero",
        "One": "one",
        "NaN": "nan",
        "Infinite": "infinite",
        "Finite": "finite",
        "SignMinus": "sign_minus",
        "Normal": "normal",
        "Subnormal": "subnormal",
    }.items()
}
NEXT = {"NextGreaterThan": 1, "NextLessThan": -1}
REDUCTIONS = {"BlockReduceAdd": blocks.total, "BlockReduceMultiply": blocks.product, "BlockDotProduct": blocks.total}
TO_BLOCK = ("ConvertToBlock", "ConvertToBlockMaxAbsFinite")
_ELEMENTWISE = ("Convert", *EXACT, *ROUNDED)  # of which there are Block.. and Scaled..
OF_BLOCKS = {name: f"Block{name}" for name in _ELEMENTWISE}
SCALED = {name: f"Scaled{name}" for name in _ELEMENTWISE}
OPERATIONS = sorted(
    [*_ELEMENTWISE, *OF_BLOCKS.values(), *SCALED.values(), "Class", *COMPARISONS, *PREDICATES, *NEXT, *QUERIES]
    + [*REDUCTIONS, "ConvertFromBlock", *TO_BLOCK]
)
_DECISIVE = (26, 36, 50)  # bits that decide a rounding, for which functions are computed


@dataclass(frozen=True)
class Specialization:
    """An operation with its formats and its projection; calling it takes and returns NumPy arrays of codes.

    Comparisons and predicates return bools, `Class` returns names, and queries, which take no arrays, what they ask.
    A block is an array of scales and one of elements, which has one more axis at its end; scaled numbers are two arrays
    of one shape. The arrays of operands come one after the other, each with its scales before it, and then the scales
    of the result, if these are given. A block that is a result is a tuple of both arrays.

    Attributes:
        operation: its name in the report.
        operands: the formats of the operands; of a query the format that it asks.
        result: the format of the result; None where that is no code.
        rounding, saturation: names of `ROUNDINGS` and `SATURATIONS`, which the report calls RoundOf and SatOf.
        scales: the formats of the operands' scales, where operands have scales.
        result_scale: the format of the result's scale, where the result is a block.
        scale_projection: how `ConvertToBlockMaxAbsFinite` rounds and saturates scales.
        block: the number of elements of a block; None of operations without blocks.

    Example:
        >>> from qcore.arithmetic.p3109 import specialization
        >>> least = specialization("MinPositiveOf<Binary8p4se>")
        >>> least()
        0.0009765625
        >>> order = specialization("TotalOrder<Binary8p4se>")
        >>> order(np.uint8([128]), np.uint8([0]))  # NaN is below all numbers
        array([ True])
        >>> convert = specialization("ConvertToBlockMaxAbsFinite<2, binary16, Binary8p1uf, Binary4p2sf>")
        >>> scales, elements = convert(np.float16([[1.0, 4.0]]).view(np.uint16))
        >>> scales.tolist(), elements.tolist()  # 4, and 1/4 and 1
        ([130], [[1, 4]])
    """

    operation: str
    operands: tuple[BinaryFloat, ...]
    result: BinaryFloat | None
    rounding: str = USUAL[0]
    saturation: str = USUAL[1]
    scales: tuple[BinaryFloat, ...] = ()
    result_scale: BinaryFloat | None = None
    scale_projection: tuple[str, str] = USUAL
    block: int | None = None

    def __call__(self, *codes: np.ndarray, key: Any = None, random_bits: int = 24) -> Any:
        """The codes of the results of codes that broadcast; other results as the class describes.

        `key` and `random_bits` are for stochastic modes, as for `quantize`: the leading bits of an element's random
        word are R.
        """
        if self.operation in QUERIES:
            _check_count(self.operation, codes, 0)
            return QUERIES[self.operation](self.operands[0])
        formats = self._formats
        _check_count(self.operation, codes, len(formats))
        random_bits = check_int("random_bits", random_bits, 1, 24)
        if key is None and "Stochastic" in self.rounding + self.scale_projection[0]:
            raise missing_key()
        given = [check_codes(x, f"operand {i}") for i, x in enumerate(codes)]
        numbers = [decoded(x, number) for x, number in zip(given, formats, strict=True)]
        noise = {"key": key, "random_bits": random_bits}
        with np.errstate(all="ignore"):
            return self._of_blocks(numbers, noise) if self.block else self._of_numbers(_broadcast(numbers), noise)

    @property
    def _formats(self) -> list[BinaryFloat]:
        """The formats of the arrays that a call takes."""
        scales = iter(self.scales)
        found = [one for number in self.operands for one in (*islice(scales, 1), number)]
        given = self.result_scale is not None and self.operation != TO_BLOCK[1]
        return [*found, self.result_scale] if given else found  # type: ignore[list-item]

    def _of_numbers(self, numbers: list[np.ndarray], noise: dict[str, Any]) -> Any:
        name, number = self.operation, self.operands[0]
        if name in COMPARISONS:
            return COMPARISONS[name](*numbers)
        if name in PREDICATES:
            return PREDICATES[name](numbers[0], smallest_normal(number))
        if name == "Class":
            return np.array(choices.CLASSES)[choices.class_of(Float64, numbers[0], smallest_normal(number))]
        if name in NEXT:
            return encoded(neighbour(numbers[0], number, NEXT[name]), number, "nearest", "inf")
        if self.scales:
            numbers = [scale * x + 0.0 for scale, x in zip(numbers[::2], numbers[1::2], strict=True)]
        found = extended.results(name.removeprefix("Scaled"), numbers, self._digits(noise))
        return self._projected(found, noise)

    def _of_blocks(self, arrays: list[np.ndarray], noise: dict[str, Any]) -> Any:
        given, name, digits = iter(arrays), self.operation, self._digits(noise)
        x = _broadcast([self._block(next(given) if self.scales else None, next(given)) for _ in self.operands])
        if name in REDUCTIONS:
            return self._projected(REDUCTIONS[name](x[0] if len(x) == 1 else x[0] * x[1]), noise)
        if self.result_scale is None:
            return self._projected(x[0], noise)
        scale = self._scale_of(x[0], noise) if name == TO_BLOCK[1] else next(given)
        if name not in TO_BLOCK:
            x = [extended.results(name.removeprefix("Block"), x, digits)]
        scale, quotients = blocks.scaled_down(scale, x[0])
        return encoded(scale, self.result_scale, "nearest", "inf"), self._projected(quotients, noise)

    def _block(self, scale: np.ndarray | None, x: np.ndarray) -> np.ndarray:
        """The numbers of blocks."""
        if x.shape[-1:] != (self.block,):
            raise ValueError(f"elements of blocks have shape {x.shape}; allowed are {self.block} along the last axis")
        return x if scale is None else blocks.decoded(scale, x)

    def _scale_of(self, x: np.ndarray, noise: dict[str, Any]) -> np.ndarray:
        """The scales of blocks, whose random words are those of a key of their own."""
        assert self.result_scale is not None
        rounding, saturation = self.scale_projection
        if noise["key"] is not None:
            noise = noise | {"key": fold_in(noise["key"], 1)}
        found = encoded(blocks.largest(x), self.result_scale, ROUNDINGS[rounding], SATURATIONS[saturation], **noise)
        return decoded(found, self.result_scale)

    def _digits(self, noise: dict[str, Any]) -> int:
        """How many bits decide a rounding at most."""
        assert self.result is not None
        random_bits = noise["random_bits"] if "Stochastic" in self.rounding else 1
        digits = digits_of(self.result, self.result_scale) + random_bits
        if digits > _DECISIVE[-1]:
            raise ValueError(
                f"random_bits={random_bits}: {digits} bits decide roundings; allowed are {_DECISIVE[-1]}, with fewer "
                "random bits"
            )
        return next(one for one in _DECISIVE if digits <= one)

    def _projected(self, numbers: np.ndarray, noise: dict[str, Any]) -> np.ndarray:
        assert self.result is not None
        return encoded(numbers, self.result, ROUNDINGS[self.rounding], SATURATIONS[self.saturation], **noise)


def _check_count(operation: str, codes: tuple[np.ndarray, ...], count: int) -> None:
    if len(codes) != count:
        raise ValueError(f"{operation} has {len(codes)} arrays; allowed are {count or 'none'}")


def _broadcast(numbers: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(x) for x in np.broadcast_arrays(*numbers)]


def digits_of(number: BinaryFloat, scale: BinaryFloat | None) -> int:
    """The significant bits of a number by its scale; powers of two have none."""
    return number.span[0] + (scale.span[0] if scale is not None and scale.span[0] > 1 else 0)
