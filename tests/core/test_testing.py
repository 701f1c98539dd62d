"""`qcore.testing.check_format` passes the library's formats, and finds mistakes of others."""

from dataclasses import replace

import pytest
from own_formats import Capped

from qcore import NAMED, BinaryFloat, register_format
from qcore.formats.block import BlockNumber
from qcore.testing import check_format

ELEMENTS = [name for name, (number, _) in NAMED.items() if not isinstance(number, BlockNumber)]
SMALL = [name for name in ELEMENTS if NAMED[name][0].bits <= 8]


@pytest.mark.parametrize("name", SMALL)
def test_named_formats_pass(name):
    check_format(name, ["nearest", "stochastic"])


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name", [*ELEMENTS, "p3109(8,1,signed=False)", "fixed(8,4,wrap=True)", "posit(6,5)", "table([0,0.3,5])"]
)
def test_named_formats_pass_in_all_modes(name):
    check_format(name)


class Wrong(Capped):
    """A format with a mistake, which subclasses make."""

    def mistaken(self, kind, grid):
        return kind, grid

    def reduce(self, carrier):
        kind, grid = super().reduce(carrier)
        return self.mistaken(kind, grid)


class LowLimit(Wrong):
    def mistaken(self, kind, grid):
        return kind, grid._replace(limit=grid.limit - (1 << 19))


class FineStep(Wrong):
    def mistaken(self, kind, grid):
        return kind, grid._replace(top=grid.top - 1, coarsest=grid.coarsest - 1)


class NoSubnormals(Wrong):
    def mistaken(self, kind, grid):
        return "general", grid._replace(slope=6)


class OtherCodes(Capped):
    def codes(self, carrier):
        return replace(self.magnitudes, bias=self.magnitudes.bias + 1).codes(carrier, signed=True)


class LostText(Capped):
    text = "capped(4,3,118)"


class Assigned(Capped):
    __setattr__ = object.__setattr__


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (LowLimit, "to nearest in float32 changes its own result"),
        (FineStep, "is not the neighbour that the mode says|has a code of another number"),
        (NoSubnormals, "is not the neighbour that the mode says"),
        (OtherCodes, "is not the neighbour that the mode says|has a code of another number"),
        (LostText, r"is not equal to parse\('capped\(4,3,118\)'\)"),
        (Assigned, "exp can be assigned; allowed is a dataclass with frozen=True"),
    ],
)
def test_mistakes_are_found(kind, message):
    if "text" not in vars(kind):
        register_format(f"of_a_test_{kind.__name__}", kind)
    with pytest.raises(AssertionError, match=message):
        check_format(kind(4, 3, 119), ["nearest"])


def test_what_can_be_tested():
    with pytest.raises(ValueError, match=r"number=.* is a block format; allowed is a format for single elements"):
        check_format("mxfp4")
    with pytest.raises(ValueError, match="rounding='closest'"):
        check_format("e4m3", ["closest"])
    with pytest.raises(TypeError, match="modes is a str; allowed is a list"):
        check_format("e4m3", "nearest")
    check_format(BinaryFloat(8, 23), ["up"])  # too many codes to list: rounding alone is tested
