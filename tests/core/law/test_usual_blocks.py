"""Blocks that are usual are rounded the same by fewer operations, whatever the mode; others are found."""

import numpy as np
import pytest
from covering import some
from support import DTYPES

from qcore import Rounding, parse
from qcore.formats.number import prepare
from qcore.law.carrier import CARRIERS
from qcore.namespace import Names

FORMATS = (
    "mxfp8_e4m3 mxfp8_e5m2 mxfp4 mxint8 scaled(fixed(6,-9),{1:16}) scaled(e3m4,{1:16},even) "
    "scaled(fixed(6,9,signed=False),{1:8}) scaled(e3m2fn,{1:8},rceil) nvfp4"
).split()


def blocks_of_all_sizes(carrier, length, rng):
    """A block a row: magnitudes from the carrier's smallest to its largest, in each with some far below; specials."""
    most = carrier.infinity >> carrier.width
    largest = np.repeat(np.arange(most), 6)[:, None]
    fields = np.clip(
        largest - rng.integers(0, rng.choice([1, 4, 12, 40], largest.shape), (len(largest), length)), 0, None
    )
    mantissas = rng.integers(0, carrier.hidden, fields.shape) & rng.choice([-1, 0, carrier.hidden >> 2], fields.shape)
    lanes = (fields << carrier.width | mantissas) | rng.choice([0, carrier.negative], fields.shape)
    lanes[::7] &= carrier.negative  # zeros
    lanes[::11, 3] = carrier.infinity
    lanes[::13, 5] = carrier.quiet_nan
    return lanes & (-1 << carrier.padding)


@some(
    *(place for place in np.ndindex(2, len(FORMATS), len(DTYPES)) if sum(place) % 4 == 0),
    coded=[False, True],
    text=FORMATS,
    dtype=[*DTYPES],
)
def test_usual_blocks(coded, text, dtype):
    carrier, rng = CARRIERS[dtype], np.random.default_rng(0)
    lane, found = f"i{carrier.lane_bits // 8}", set()
    rows = blocks_of_all_sizes(carrier, 16, rng).astype(lane)
    for lanes in np.split(rows, [60, len(rows) // 2]):  # NVFP4 has a scale for each
        word = rng.integers(0, 1 << carrier.last, lanes.shape, lane) & (-1 << carrier.last - 24)
        for mode in Rounding:
            program, constants = prepare(parse(text), mode, carrier, None, coded)
            if (usual := program.usual(Names, lanes, constants, (1,))) is None:
                assert (program.unscaled, mode.directed) == (True, True)
                continue
            usual = usual[:, 0]
            expected = program.run(Names, lanes, constants, (1,), word)
            actual = program.run(Names, lanes, constants, (1,), word, usual=True)
            if coded:
                assert all((a == e).all() for a, e in zip(actual[1:], expected[1:], strict=True))
                expected, actual = expected[0], actual[0]
            assert (actual[usual] == expected[usual]).all(), mode
            found |= {*usual.tolist(), "differs"} if (actual != expected).any() else set(usual.tolist())
    assert found == {True, False, "differs"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", FORMATS[:-1])
def test_usual_scales_of_codes(text, dtype):
    carrier = CARRIERS[dtype]
    decoding, constants = parse(text).decoding(carrier)
    scales, codes = (one.astype(f"i{carrier.lane_bits // 8}") for one in np.ogrid[:256, :256])
    usual = decoding.usual(constants, scales)[:, 0]
    expected, actual = (decoding.run(Names, codes, constants, scales, usual=one) for one in (False, True))
    assert (actual[usual] == expected[usual]).all()
    assert usual.any() or dtype == "float16"  # which has hardly more numbers than the element
    assert not usual.all()
    assert (actual != expected)[~usual].any()
