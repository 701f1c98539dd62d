"""Rounding modes, and the one primitive that all formats share: what to add before low bits are dropped."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from qcore.arguments import check_choice


class Rounding(Enum):
    """How a number between two neighbours of a format is rounded.

    Attributes:
        NEAREST: to the nearer one; ties to the even one (IEEE 754 roundTiesToEven).
        NEAREST_AWAY: ties away from zero (IEEE 754 roundTiesToAway).
        NEAREST_ZERO: ties toward zero.
        NEAREST_UP: ties toward +infinity.
        NEAREST_DOWN: ties toward -infinity.
        TOWARD_ZERO: to the neighbour nearer to zero (IEEE 754 roundTowardZero, truncation).
        AWAY: to the neighbour farther from zero.
        UP: to the greater neighbour (IEEE 754 roundTowardPositive).
        DOWN: to the smaller neighbour (IEEE 754 roundTowardNegative).
        ODD: to the odd neighbour (von Neumann rounding), so that another rounding to fewer bits gives the same result
            as one rounding, unless a number overflows. Finite numbers beyond the range become the largest number, odd
            or not, as in RISC-V's vfncvt.rod; in IEEE P3109's signed formats with infinities they become infinity.
        STOCHASTIC: away from zero with probability equal to the distance d from the neighbour nearer to zero, cut off
            to N random bits: floor(d * 2^N) + R >= 2^N for a random R of N bits (IEEE P3109 StochasticA).
        STOCHASTIC_B: the same with d rounded to N bits, ties up (IEEE P3109 StochasticB). With few random bits the mean
            error is much smaller.
        STOCHASTIC_C: the same with d rounded to N bits, ties to even (IEEE P3109 StochasticC).

    Example:
        >>> import numpy as np
        >>> from qcore import quantize
        >>> x = np.float32([2.5])
        >>> [quantize(x, "int4", mode).item() for mode in (Rounding.NEAREST, "nearest_away", "down", "up")]
        [2.0, 3.0, 2.0, 3.0]
        >>> Rounding("nearest") is Rounding.NEAREST
        True
    """

    NEAREST = "nearest"
    NEAREST_AWAY = "nearest_away"
    NEAREST_ZERO = "nearest_zero"
    NEAREST_UP = "nearest_up"
    NEAREST_DOWN = "nearest_down"
    TOWARD_ZERO = "toward_zero"
    AWAY = "away"
    UP = "up"
    DOWN = "down"
    ODD = "odd"
    STOCHASTIC = "stochastic"
    STOCHASTIC_B = "stochastic_b"
    STOCHASTIC_C = "stochastic_c"

    def __repr__(self) -> str:
        return str(self)

    @property
    def to_nearest(self) -> bool:
        """True if the result is always one of the nearest numbers."""
        return self.value.startswith("nearest")

    @property
    def stochastic(self) -> bool:
        """True if random bits decide."""
        return self in (Rounding.STOCHASTIC, Rounding.STOCHASTIC_B, Rounding.STOCHASTIC_C)

    @property
    def directed(self) -> bool:
        """True if any distance from the neighbour nearer to zero, however small, can decide."""
        return self in (Rounding.AWAY, Rounding.UP, Rounding.DOWN, Rounding.ODD)


def rounds_distance(mode: Rounding) -> bool:
    """True if the distance is rounded to as many bits as are random, not cut off."""
    return mode in (Rounding.STOCHASTIC_B, Rounding.STOCHASTIC_C)


def reads_sign(mode: Rounding) -> bool:
    """True if negative numbers are not rounded as the positive ones."""
    return mode in (Rounding.NEAREST_UP, Rounding.NEAREST_DOWN, Rounding.UP, Rounding.DOWN)


# The modes' names as type checkers and editors read them. A test compares them with the members.
RoundingName = Literal[
    "nearest",
    "nearest_away",
    "nearest_zero",
    "nearest_up",
    "nearest_down",
    "toward_zero",
    "away",
    "up",
    "down",
    "odd",
    "stochastic",
    "stochastic_b",
    "stochastic_c",
]
RoundingLike = Rounding | RoundingName  # as users give modes
MODES: dict[RoundingName, Rounding] = {mode.value: mode for mode in Rounding}


def check_rounding(rounding: Any, argument: str = "rounding") -> Rounding:
    if isinstance(rounding, Rounding):
        return rounding
    check_choice(argument, rounding, list(MODES))
    return MODES[rounding]


def increment(mode: Rounding, mask: Any, odd: Any, sign: Any, top_bits: Any) -> Any:
    """What to add to a magnitude so that dropping the bits of `mask` afterwards rounds it.

    With half = (mask + 1) / 2, adding half carries into the kept bits exactly from the midpoint on, and
    half - 1 exactly above it; `(mask + 1) >> 1` and `mask >> 1` are these two, and both are 0 for an empty mask.
    Adding `mask` carries whenever any dropped bit is set.

    Args:
        mode: the rounding mode.
        mask: 2^drop - 1, the bits that will be dropped.
        odd: the last kept bit, 0 or 1; only read by NEAREST and ODD.
        sign: -1 for negative numbers, else 0; only read where up and down differ from away and toward zero.
        top_bits: the random bits aligned with `mask`, see `aligned_bits`; only read by stochastic modes.
    """
    match mode:
        case Rounding.STOCHASTIC | Rounding.STOCHASTIC_B | Rounding.STOCHASTIC_C:
            # Of the mask + 1 equally likely steps, as many carry as the dropped bits count.
            return top_bits
        case Rounding.NEAREST:  # half for odd numbers, half - 1 for even ones: only ties notice the difference
            return (mask + odd) >> 1
        case Rounding.NEAREST_AWAY:
            return (mask + 1) >> 1
        case Rounding.NEAREST_ZERO:
            return mask >> 1
        case Rounding.NEAREST_UP:  # a magnitude: up is away from zero for positive numbers, toward it for negative
            return (mask + (sign + 1)) >> 1
        case Rounding.NEAREST_DOWN:
            return (mask - sign) >> 1
        case Rounding.TOWARD_ZERO:
            return 0
        case Rounding.AWAY:
            return mask
        case Rounding.UP:  # magnitudes again: a negative number goes up when its magnitude is truncated
            return mask & ~sign
        case Rounding.DOWN:
            return mask & sign
        case Rounding.ODD:  # all ones where the last kept bit is 0: any dropped bit then carries into it
            return mask & (odd - 1)


def stays_finite(mode: Rounding, sign: Any) -> Any:
    """-1 where finite numbers never overflow (IEEE 754, section 7.4), else 0; None if it is 0 for all numbers.

    IEEE 754 does not define rounding to odd. RISC-V's vfncvt.rod and Berkeley SoftFloat keep the largest number, odd or
    not; IEEE P3109 differs, see `Grid.ends_odd`. `sign` is -1 for negative numbers, else 0.
    """
    match mode:
        case Rounding.TOWARD_ZERO | Rounding.ODD:
            return -1
        case Rounding.UP:
            return sign
        case Rounding.DOWN:
            return ~sign
    return None


def aligned_bits(xp: Any, mode: Rounding, word: Any, shift: Any, fraction: Any) -> Any:
    """Random bits aligned with the bits to drop, and what rounds the distance to as many bits as are random.

    STOCHASTIC cuts the distance off: no bit below the random ones carries. To round it, half of the last random bit is
    added, which the words of STOCHASTIC_B and STOCHASTIC_C have set; for a tie to even it is one less.

    Args:
        xp: the array namespace.
        mode: a stochastic mode.
        word: random words, see `qcore.random.threefry.rounding_words`.
        shift: of a word to the right.
        fraction: lanes with the bits to drop; only read by STOCHASTIC_C.
    """
    bits = word >> shift
    return bits - below_tie(xp, lowest_bit(word) >> shift, fraction) if mode is Rounding.STOCHASTIC_C else bits


def lowest_bit(word: Any) -> Any:
    return word & -word


def below_tie(xp: Any, half: Any, fraction: Any) -> Any:
    """1 where the bit of a fraction above `half` is 0, so that a tie goes down; else 0, also where `half` is 0."""
    return xp.clip(half & ~(fraction >> 1), None, 1)
