"""Numbers that share a power-of-two scale: the scale only moves the quantum and the limits of the element's format.

A scale 2^k adds k to every exponent of a format, so each block has a grid of its own, and `round_to_grid` does the
rest. The largest magnitude of the block decides k:

    largest magnitude     eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm     a subnormal one is normalized, to a field below 1
    + carry               the scale rule says from which mantissa on the next exponent is taken
    >> width, - top       the element's largest number gets the exponent of the block's largest

Sub-blocks of a block have scales of their own, which are that of the block or half of it: one bit, a micro-exponent,
says which.

Integers only, as in `qcore.law.grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qcore.law.carrier import Carrier, KeepLanes, power, with_hidden_bits, without_hidden_bits
from qcore.law.codes import Codes, decode, normal_scales
from qcore.law.grid import Grid, uniform_grid
from qcore.random.threefry import identity

KINDS = {"block": "grid", "scaled": "deep", "scaled_general": "wide"}  # and the kind that rounds their elements
E8M0_BIAS = 127  # of the scales' codes, of which 255 is NaN


class Shared(NamedTuple):
    """An element format under a shared scale, on a carrier: ints or 0-d arrays.

    Exponents are those of the element's numbers before they are scaled.

    Attributes:
        carry: added to the largest magnitude, and so to its exponent where the mantissa is large enough.
        least, most: exponent fields of the smallest and the largest scale; read for all but "block" formats.
        top, ones: exponent and mantissa bits of the largest number.
        step: exponent of the smallest quantum.

        Read for "scaled" elements, which may be floating point numbers:
        finest: see `Grid`.
        lower_top, lower_ones: exponent and mantissa bits of the lowest number's magnitude.
        negative: -1 where there are negative numbers, else 0.

        Read for "scaled_general" elements only:
        low: exponent of the smallest normal number.
        floor: -1 where there is no zero, else 0.
        unit, slope, zero, signed_zero, unsigned, lower_jump, coded: see `Grid`.
        shift: added to the carrier's exponent fields, less the scale, to get the parity of codes.
    """

    carry: Any
    least: Any
    most: Any
    top: Any
    ones: Any
    step: Any
    finest: Any = 0
    lower_top: Any = 0
    lower_ones: Any = 0
    negative: Any = -1
    low: Any = 0
    floor: Any = 0
    unit: Any = 0
    slope: Any = 0
    zero: Any = 0
    signed_zero: Any = -1
    unsigned: Any = 0
    lower_jump: Any = 0
    coded: Any = 0
    shift: Any = 0


def magnitudes(xp: Any, bits: Any, carrier: Carrier, kind: str) -> Any:
    """The magnitudes of which a block's scale takes the largest."""
    magnitude = bits & carrier.magnitude_mask
    return xp.where(magnitude > carrier.infinity, 0, magnitude) if kind == "block" else magnitude  # no NaN there


def shared_scale(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    shared: Shared,
    axes: tuple[int, ...],
    kind: str,
    around: tuple[int, ...] = (),
    others: Sequence[Any] = (),
) -> tuple[Any, Any]:
    """The exponent field of each block's scale, and -1 where the scale is NaN, else 0. `axes` get length 1.

    `around` are the axes along the sub-blocks of a block; then each sub-block has a scale. A kernel, which sees one
    element, gives the `others` of its sub-block instead, and `axes` are those of the block.
    """
    width, infinity = carrier.width, carrier.infinity
    magnitude = magnitudes(xp, bits, carrier, kind)
    largest = xp.amax(magnitude, axis=axes, keepdims=True) if axes else magnitude

    def scale_of(largest: Any) -> Any:
        finite = xp.clip(largest, None, infinity - 1)  # QPyTorch's blocks take infinity for the largest number
        exponent = ((with_hidden_bits(xp, finite, carrier) + shared.carry) >> width) - shared.top
        xp.named("shared_scale", magnitude=magnitude, largest=largest, finite=finite, exponent=exponent)
        # QPyTorch's exponents have no limits.
        return exponent if kind == "block" else xp.clip(xp.clip(exponent, shared.least, None), None, shared.most)

    scale = scale_of(largest)
    xp.named("shared_scale", scale=scale)
    if kind == "block":
        return scale, None
    if others:
        for other in others:
            magnitude = xp.clip(magnitude, other & carrier.magnitude_mask, None)
        scale = xp.clip(scale_of(magnitude), scale - 1, None)
    elif around:
        largest = xp.amax(largest, axis=around, keepdims=True)
        scale = xp.clip(scale, xp.amax(scale, axis=around, keepdims=True) - 1, None)
    nan = (infinity - 1 - largest) >> carrier.last  # one infinity or NaN makes the scale NaN
    xp.named("shared_scale", scale=scale, nan=nan)
    return scale, nan


def block_grid(
    xp: Any, scale: Any, nan: Any, carrier: Carrier, shared: Shared, kind: str, materialize: KeepLanes = identity
) -> Grid:
    """The grid of each block; `scale` and `nan` are the results of `shared_scale`."""
    quiet = carrier.quiet_nan
    quantum, keep = scale + shared.step, carrier.infinity
    base, top, coarsest = uniform_grid(xp, quantum, carrier)
    limit = lane(xp, scale + shared.top, shared.ones, carrier)
    xp.named("block_grid", quantum=quantum, base=base, top=top, coarsest=coarsest, limit=limit)
    if kind == "block":
        base, top, coarsest, limit = materialize((base, top, coarsest, limit))
        return Grid(base, top, coarsest, 0, limit, keep)
    end = _largest(xp, quantum, shared.finest, carrier)
    limit = _held(xp, limit, end, carrier)
    lower = _held(xp, lane(xp, scale + shared.lower_top, shared.lower_ones, carrier), end, carrier) & shared.negative
    # With floor and limit at NaN's magnitude, the rounding itself makes NaN of all elements of a block whose scale is.
    nan_lane, floor = nan & quiet, nan & (quiet - base)
    xp.named("block_grid", end=end, limit=limit, lower=lower, nan_lane=nan_lane, floor=floor)
    lower, limit = (lower - limit) & ~nan, (limit & ~nan) | nan_lane
    xp.named("block_grid", limit=limit, lower=lower)
    if kind == "scaled":
        base, top, coarsest, limit, lower, floor = materialize((base, top, coarsest, limit, lower, floor))
        return Grid(base, top, coarsest, shared.finest, limit, keep, lower, floor=floor)
    lowest = lane(xp, scale + shared.low, 0, carrier)
    floor = xp.clip(floor, xp.clip(lowest - base, 0, None) & shared.floor, None)
    xp.named("block_grid", lowest=lowest, floor=floor)
    others = floor, nan_lane | shared.zero, lowest, shared.shift + scale + (base >> carrier.width)
    base, top, coarsest, limit, lower, floor, zero, lowest, shift = materialize(
        (base, top, coarsest, limit, lower, *others)
    )
    return Grid(
        base,
        top,
        coarsest,
        shared.finest,
        limit,
        keep,
        lower,
        floor=floor,
        unit=shared.unit,
        slope=shared.slope,
        zero=zero,
        signed_zero=shared.signed_zero,
        unsigned=shared.unsigned,
        lower_jump=shared.lower_jump,
        lowest=lowest,
        coded=shared.coded,
        shift=shift,
    )


def usual_blocks(grid: Grid, nan: Any, largest: Any) -> Any:
    """True for usual blocks: `round_to_grid` rounds them with the kind "grid", in fewer operations.

    Their grids are symmetric, and not finer for subnormal numbers of the carrier than for others; or all is zero.
    """
    return (largest < 1) | ((grid.coarsest >= grid.finest) & (grid.lower == 0) & (nan == 0))


def lane(xp: Any, field: Any, ones: Any, carrier: Carrier) -> Any:
    """The magnitudes with these mantissas and exponent fields; fields may be below 1, or beyond the carrier's."""
    # A field beyond the range becomes the field of infinity, and with a mantissa the bits of a NaN; `_held` clips it.
    normal = (xp.clip(xp.clip(field, 0, None), None, carrier.infinity >> carrier.width) << carrier.width) + ones
    return xp.where(field > 0, normal, (carrier.hidden | ones) >> xp.clip(1 - field, 0, carrier.last))


def _held(xp: Any, magnitude: Any, end: Any, carrier: Carrier) -> Any:
    """The largest magnitude up to this one that the carrier can store: a result that would be stored as 0 is 0 here,
    before zeros get signs."""
    return xp.clip(magnitude, None, end) & (-1 << carrier.padding)


def _largest(xp: Any, quantum: Any, finest: Any, carrier: Carrier) -> Any:
    """The carrier's largest number that is a multiple of the quantum and drops at least `finest` bits."""
    width, last = carrier.width, (carrier.infinity >> carrier.width) - 1
    # In the last field, a quantum of 2^q means that q + width - last bits are zero. Where even the hidden bit would be
    # one of these, no finite number of the carrier is a multiple, and the last factor makes the result 0.
    drop = xp.clip(xp.clip(quantum + (width - last), finest, None), None, width + 1)
    xp.named("_largest", drop=drop)
    return ((carrier.infinity - 1) >> drop << drop) & ((drop - (width + 1)) >> carrier.last)


def rescale(xp: Any, bits: Any, exponent: Any, carrier: Carrier) -> Any:
    """The lanes of numbers times 2^exponent: infinity beyond the carrier's range, toward zero below its steps."""
    infinity, magnitude = carrier.infinity, bits & carrier.magnitude_mask
    most, shift = power(xp, exponent, carrier)
    lanes = xp.clip(with_hidden_bits(xp, magnitude, carrier), None, most) + shift
    scaled = without_hidden_bits(xp, lanes, carrier)
    # Adding to an exponent field is wrong for infinity and NaN, whose field is not an exponent, and for zero, which has
    # no leading bit to normalize.
    special = (magnitude > infinity - 1) | (magnitude < 1)
    xp.named("rescale", magnitude=magnitude, lanes=lanes, scaled=scaled)
    return xp.where(special, magnitude, scaled) | (bits & carrier.negative)


def usual_to_unscale(scale: Any, nan: Any, carrier: Carrier, shared: Shared) -> Any:
    """True for usual blocks: without NaN, and all elements below the carrier's normal numbers are rounded to zero.

    Subnormal numbers need no normalization there. In directed modes they are not rounded to zero.
    """
    return (nan == 0) & (scale + shared.step > carrier.width + 2)


def unscale(
    xp: Any, bits: Any, scale: Any, nan: Any, carrier: Carrier, shared: Shared, materialize: KeepLanes, usual: bool
) -> Any:
    """Lanes divided by their blocks' scales, clipped so that the result times the scale is a number of the carrier.

    A quotient below the carrier's normal numbers may become another such number above zero.
    """
    magnitude, nans = bits & carrier.magnitude_mask, nan & carrier.quiet_nan
    shift = (scale - carrier.bias) << carrier.width
    # Saturation by the element's own law could choose a number that the scale takes beyond the carrier. The bound is
    # therefore set here; a scale below 1 cannot do so, and a sum with it could leave the lane, so it is left out.
    end = _largest(xp, scale + shared.step, shared.finest, carrier) & (-1 << carrier.padding)
    most = (end - xp.clip(shift, 0, None)) & ~nan | nans
    xp.named("unscale", magnitude=magnitude, nans=nans, shift=shift, end=end, most=most)
    shift, most, nans = materialize((shift, most, nans))
    lanes = magnitude
    if not usual:
        lanes = xp.clip(with_hidden_bits(xp, lanes, carrier), -E8M0_BIAS - 1 << carrier.width, None)  # zero stays below
    lanes = lanes - shift
    # A lane below zero is not a magnitude. Zero becomes 0; all else stays above it, which directed modes ask for.
    lanes = xp.clip(xp.clip(lanes, xp.clip(magnitude, None, 1), None), None, most)
    lanes = lanes if usual else xp.clip(lanes, nans, None)
    xp.named("unscale", lanes=lanes)
    return lanes | (bits & carrier.negative)


def scale_codes(scale: Any, nan: Any, carrier: Carrier) -> Any:
    """E8M0 codes of scales."""
    return (scale + (E8M0_BIAS - carrier.bias)) | (nan & 255)


def usual_to_decode(scales: Any, carrier: Carrier, codes: Any) -> Any:
    """True for usual scales: not NaN, and every element times the scale is zero or a normal number of the carrier."""
    scales = scales & 255
    return (scales < 255) & normal_scales(scales - E8M0_BIAS, carrier, codes)


def decode_scaled(xp: Any, elements: Any, scales: Any, carrier: Carrier, codes: Codes, usual: bool) -> Any:
    """The lanes of elements with these codes times the scales with these E8M0 codes."""
    scales = scales & 255
    if usual:
        return decode(xp, elements, carrier, codes, (None, (scales - E8M0_BIAS) << carrier.width))
    nan = (254 - scales) >> carrier.last  # of the 256 codes only 255 is NaN
    lanes = decode(xp, elements, carrier, codes, power(xp, scales - E8M0_BIAS, carrier))
    xp.named("decode_scaled", scales=scales, nan=nan, lanes=lanes)
    return (lanes & (carrier.negative | ~nan)) | (nan & carrier.quiet_nan)
