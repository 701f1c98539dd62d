"""The law of rounding, once, for every format, framework and device: integers only.

A float's magnitude bits (exponent | mantissa) are an increasing integer, so rounding a number means: drop low
bits of that integer under a rounding mode. Only the number of dropped bits differs from element to element.

    magnitude bits     eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    - base             so that the quantum 2^q, the smallest step of the format here, has exponent field 1
    + increment        decided by the rounding mode and the `drop` low bits
    & ~mask            the low bits are gone; a carry has moved into the exponent by itself
    + base, limit      back, and the range of the format

With the base subtracted, fields >= 1 hold numbers of at least one quantum, whose hidden bit the field supplies,
and field 0 holds those in [1/2, 1) quantum: 24 bits are dropped there, of which the highest is the hidden one.
Smaller numbers are negative.

Functions here take the array namespace `xp` (numpy, torch, jax.numpy) and lanes (int32 arrays, see Carrier). They
use operators, `xp.where`, `xp.clip` and `xp.amax`, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from qcore.carrier import Carrier
from qcore.random import Settle, unsettled
from qcore.rounding import Rounding, increment


class Grid(NamedTuple):
    """A format on a carrier, reduced to integers: ints, 0-d int32 arrays, or arrays with one entry a block.

    Attributes:
        base: subtracted from the magnitude bits, so that the smallest quantum has exponent field 1.
        top: bits to drop where the exponent field is 0, were there no limits; one less for each field above.
        coarsest: the most bits dropped (below this the quantum no longer shrinks).
        finest: the fewest bits dropped (above this the quantum grows with the number).
        unit: the carrier's hidden bit where numbers have no stored mantissa (so that n is 1, odd), else 0.
        limit: bits of the largest positive result.
        lower: what is added to `limit` for negative numbers.
    """

    base: Any
    top: Any
    coarsest: Any
    finest: Any
    unit: Any
    limit: Any
    lower: Any


class Block(NamedTuple):
    """A block format on a carrier: ints or 0-d int32 arrays.

    Attributes:
        below: exponent of the largest magnitude minus exponent of the quantum.
        ones: mantissa bits of the largest result.
    """

    below: Any
    ones: Any


def uniform_grid(xp: Any, quantum: Any, carrier: Carrier) -> tuple[Any, Any, Any]:
    """`base`, `top` and `coarsest` of a grid whose smallest quantum has the biased exponent `quantum`."""
    width = carrier.width
    base = xp.clip(quantum - 1, 0, None) << width
    return base, xp.clip(quantum + width, None, width + 1), xp.clip(quantum + (width - 1), 0, width + 1)


def round_to_grid(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, word: Any = None, wide: bool = False
) -> Any:
    """Rounds each lane to the grid.

    Args:
        xp: the array namespace.
        bits: lanes of the carrier's bits, any shape.
        carrier: their layout.
        mode: the rounding mode.
        grid: the format's integers.
        word: random words of the shape of `bits`, see `qcore.random.rounding_words`; STOCHASTIC only.
        wide: whether the format's exponents go below the carrier's, so that the quantum of the carrier's
            subnormal numbers depends on their own leading bit.
    """
    width, hidden = carrier.width, carrier.hidden
    magnitude = bits & carrier.magnitude_mask
    m = magnitude - grid.base
    if not mode.to_nearest:
        m = _deep(xp, magnitude, m, carrier)
    drop = xp.clip(xp.clip(grid.top - (m >> width), grid.finest, None), None, grid.coarsest)
    if wide:
        own = xp.clip(leading_bit(magnitude) + (grid.finest - width), 0, None)
        drop = xp.where(magnitude < hidden, own, drop)
    mask = (1 << drop) - 1
    odd = ((m | xp.clip(m, None, grid.unit)) >> drop) & 1 if mode is Rounding.NEAREST else None
    top_bits = word >> (31 - drop) if mode is Rounding.STOCHASTIC else None
    sign = bits >> 31
    step = increment(mode, mask, odd, sign, top_bits)
    if not mode.to_nearest:  # below one quantum, no more than what leads there
        step = xp.clip(step, None, hidden - xp.clip(m, None, 0))
    rounded = (m + step) & ~(mask & (hidden - 1))
    rounded = (rounded + grid.base) & (-rounded >> 31)  # what is not above zero is zero
    rounded = xp.clip(rounded, None, grid.limit + (sign & grid.lower))
    return xp.where(magnitude > carrier.infinity, bits, rounded | (bits ^ magnitude))


def _deep(xp: Any, magnitude: Any, m: Any, carrier: Carrier) -> Any:
    """Based magnitudes whose negative ones are exact, in units of quantum / 2^24, less the hidden bit.

    Rounding to nearest only needs to know that they are below one half; their probabilities need more. What the
    shift drops cannot matter: random words have at most 24 bits, and floor is what the law takes.
    """
    hidden = carrier.hidden
    significand = (magnitude & (hidden - 1)) + xp.clip(magnitude, None, hidden)
    return xp.clip(m, (significand >> xp.clip(-(m >> carrier.width), 0, 31)) - hidden, None)


def leading_bit(value: Any) -> Any:
    """floor(log2 value) of int32 lanes with 0 < value < 2^31; 0 for 0."""
    position = value & 0
    for step in (16, 8, 4, 2, 1):
        upper = value >> step
        jump = (-upper >> 31) & step  # `step` where any upper bit is set, else 0
        position, value = position + jump, value >> jump
    return position


def block_grid(
    xp: Any, bits: Any, carrier: Carrier, block: Block, axes: tuple[int, ...], settle: Settle = unsettled
) -> Grid:
    """The grid of each block of lanes; a block shares everything along `axes`, which keep length 1."""
    width, hidden = carrier.width, carrier.hidden
    magnitude = bits & carrier.magnitude_mask
    numbers = xp.where(magnitude > carrier.infinity, 0, magnitude)  # a NaN does not count
    largest = xp.amax(numbers, axis=axes, keepdims=True) if axes else numbers
    largest = xp.clip(largest, None, carrier.infinity - 1)
    exponent = xp.where(largest < hidden, leading_bit(largest) - (width - 1), largest >> width)
    base, top, coarsest = uniform_grid(xp, exponent - block.below, carrier)
    normal = (xp.clip(exponent, 0, None) << width) + block.ones
    subnormal = (hidden | block.ones) >> xp.clip(1 - exponent, 0, 31)
    limit = xp.where(exponent > 0, normal, subnormal)
    return Grid(settle(base), settle(top), settle(coarsest), 0, 0, settle(limit), 0)


@dataclass(frozen=True)
class Program:
    """What is fixed when the law is traced or compiled; formats of one kind differ in constants only.

    Attributes:
        carrier: the layout of the input and of the result.
        mode: the rounding mode.
        kind: "grid", "wide" (a grid whose exponents go below the carrier's) or "block".
    """

    carrier: Carrier
    mode: Rounding
    kind: str

    def run(
        self,
        xp: Any,
        bits: Any,
        constants: Grid | Block,
        axes: tuple[int, ...],
        word: Any = None,
        settle: Settle = unsettled,
    ) -> Any:
        """Rounds lanes; `constants` is a Block where the kind is "block" (shared along `axes`), else a Grid.

        `settle` is an identity whose result a compiler must not work out again for every element of a block.
        """
        if isinstance(constants, Block):
            constants = block_grid(xp, bits, self.carrier, constants, axes, settle)
        return round_to_grid(xp, bits, self.carrier, self.mode, constants, word, wide=self.kind == "wide")
