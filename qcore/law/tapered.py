"""Posits: rounding, encoding and decoding of numbers with tapered precision. Integers only, as in `qcore.law.grid`.

A posit is the leading bits of an endless string: regime | exponent | fraction, where the regime k is a run of k + 1
ones, or of -k zeros, and the bit that ends it.

magnitude bits - bias      kkkkk EEE mmmmmmmmmmmmmmmmmmmmmmm    a number's exponent is k * 2^es + E
code, without its sign     11..10 EEE mmm                       `drop` bits of E and m less, n - 1 bits together

Both are increasing integers of the number, and both end in the same bits; a longer regime leaves fewer of them. So the
string is never built. As for any other format, a rounded number is the magnitude without the low bits that do not fit
the code, and a carry moves into the regime by itself. If the regime leaves no bits, the number is beyond the largest
or the smallest posit, so magnitudes are first clipped to these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.law.carrier import Carrier, leading_bit, quiet, with_hidden_bits, without_hidden_bits
from qcore.law.rounding import Rounding, aligned_bits, increment


class Taper(NamedTuple):
    """Posits on a carrier: ints or 0-d arrays.

    Attributes:
        below: bits below the regime in magnitudes less the bias.
        drop: bits to drop for the regimes 0 and -1, one more for each step away; below 0 the carrier has fewer bits.
        most: the most bits dropped.
        least, largest: the smallest and the largest posit of the carrier, as `with_hidden_bits` returns them.
        parity: added to a magnitude, so that the bit above the dropped ones is the code's last bit even if that belongs
            to the regime.
    """

    below: Any
    drop: Any
    most: Any
    least: Any
    largest: Any
    parity: Any


class PositCodes(NamedTuple):
    """Codes of n bits, negative numbers in two's complement, on a carrier: ints or 0-d arrays.

    Attributes:
        free: n - 3, the bits that the shortest regime leaves.
        drop: as in `Taper`, for a carrier that has all bits of all posits.
        half: 2^(n-1) - 1, the bits of a magnitude.
        nar: 2^(n-1), the code that is not a real number.
    """

    free: Any
    drop: Any
    half: Any
    nar: Any


def round_magnitude(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, taper: Taper, word: Any, wide: bool
) -> tuple[Any, Any, Any]:
    """Magnitudes less the bias, rounded.

    Returns:
        The magnitudes, how many bits were dropped, and the regimes before rounding.
    """
    sign, magnitude = bits >> carrier.last, bits & carrier.magnitude_mask
    if wide:
        magnitude = with_hidden_bits(xp, magnitude, carrier)
    # Clipped first: beyond the largest posit the regime would leave no bits, and no posit rounds to zero.
    m = xp.clip(magnitude, taper.least, taper.largest) - (carrier.bias << carrier.width)
    regime = m >> taper.below
    length = regime ^ (regime >> carrier.last)  # the regimes k and -k - 1 are runs of the same length
    drop = xp.clip(xp.clip(length + taper.drop, 0, None), None, taper.most)  # each step of the regime costs one bit
    power = 1 << drop
    odd = xp.clip((m + taper.parity) & power, None, 1) if mode in (Rounding.NEAREST, Rounding.ODD) else None
    top_bits = aligned_bits(xp, mode, word, carrier.last - drop, m) if mode.stochastic else None
    mask = power - 1
    xp.named("round_magnitude", sign=sign, magnitude=magnitude, m=m, regime=regime, length=length, drop=drop)
    xp.named("round_magnitude", power=power, odd=odd, mask=mask)
    return (m + increment(mode, mask, odd, sign, top_bits)) & ~mask, drop, regime


def round_to_posit(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, taper: Taper, word: Any = None, wide: bool = False
) -> Any:
    """Rounds each lane to a posit; arguments as for `qcore.law.grid.round_to_grid`, infinity becomes a NaN.

    `wide` is for posits that are subnormal numbers of the carrier.
    """
    rounded, *_ = round_magnitude(xp, bits, carrier, mode, taper, word, wide)
    value = rounded + (carrier.bias << carrier.width)  # a carry into the regime is one into the exponent, too
    if wide:
        value = without_hidden_bits(xp, value, carrier)
    magnitude = bits & carrier.magnitude_mask
    value = xp.where(magnitude > 0, value | (bits & carrier.negative), 0)  # posits have one zero, without a sign
    xp.named("round_to_posit", rounded=rounded, value=value)
    return xp.where(magnitude > carrier.infinity - 1, quiet(bits, carrier), value)


def encode(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, taper: Taper, codes: PositCodes, word: Any, wide: bool
) -> Any:
    """Rounds lanes and returns the codes of the results; arguments as for `round_to_posit`."""
    rounded, drop, regime = round_magnitude(xp, bits, carrier, mode, taper, word, wide)
    sign, magnitude, zeros = bits >> carrier.last, bits & carrier.magnitude_mask, regime >> carrier.last
    length = regime ^ zeros
    # A carrier with fewer bits than the posit has nothing to drop; the code's other low bits are zeros.
    kept = rounded >> drop << xp.clip(-taper.drop - length, 0, None)
    code = (kept + _run(xp.clip(length, None, codes.free), zeros, codes)) & codes.half
    xp.named("encode", rounded=rounded, zeros=zeros, length=length, kept=kept, code=code)
    code = xp.where(magnitude > 0, ((code ^ sign) - sign) & (codes.half | codes.nar), 0)
    return xp.where(magnitude > carrier.infinity - 1, codes.nar, code)


def decode(xp: Any, code: Any, carrier: Carrier, codes: PositCodes) -> Any:
    """The lanes of the posits with these codes; bits above a code's highest are ignored."""
    number = ((code & (codes.half | codes.nar)) ^ codes.nar) - codes.nar
    sign = number >> carrier.last
    magnitude = ((number ^ sign) - sign) & codes.half
    zeros = ((magnitude >> (codes.free + 1)) & 1) - 1  # -1 for a run of zeros, whose first bit is 0
    end = magnitude ^ (codes.half & ~zeros)  # the leading bit of `end` ends the regime
    length = codes.free - leading_bit(xp, end & ~(end >> 1), carrier)  # & ~: so that it cannot round up
    kept = magnitude - (codes.half & ~zeros) + ~zeros - _run(length, zeros, codes)
    value = (kept << (length + codes.drop)) + (carrier.bias << carrier.width)
    xp.named("decode", number=number, sign=sign, magnitude=magnitude, zeros=zeros, end=end, length=length, kept=kept)
    return xp.where(magnitude == 0, sign & carrier.quiet_nan, value | (sign & carrier.negative))


def _run(length: Any, zeros: Any, codes: PositCodes) -> Any:
    """The difference between a code and the bits of its magnitude, without 2^(n-1) for a run of ones.

    A regime of `length` + 2 bits leaves f = `free` - `length` bits. In a code it is 2^f for a run of zeros, and
    2^(n-1) - 2 * 2^f for a run of ones. In magnitudes it is k * 2^f, where k is -`length` - 1, or `length`.
    """
    run = (length + 2) << (codes.free - length)
    return (run ^ ~zeros) - ~zeros
