"""The names of rounding modes that type checkers know are those of the members."""

from typing import get_args

from qcore.law.rounding import MODES, Rounding, RoundingLike, RoundingName


def test_names():
    assert get_args(RoundingName) == (*MODES,) == tuple(mode.value for mode in Rounding)
    assert get_args(RoundingLike) == (Rounding, RoundingName)
