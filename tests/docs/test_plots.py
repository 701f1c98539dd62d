"""Pictures of formats: made, repeated, refused, and as docs has them."""

import re
from functools import partial
from importlib.metadata import version
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from covering import usually

from qcore import NAMED, parse
from qcore.pictures import in_two_widths
from website.plots import PICTURES, draw, drawing

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("suffix", usually([], ["svg", "png"]))
def test_plots_are_made_and_repeat(tmp_path, suffix):
    names = ["e8m0fnu", "fixed(12,4)", "p3109(6,6)", "mxfp6_e2m3"]
    for index in range(2):
        draw(names, tmp_path / f"{index}.{suffix}")
    first, second = (tmp_path / f"{index}.{suffix}" for index in range(2))
    assert first.read_bytes() == second.read_bytes()
    if suffix == "png":
        assert matplotlib.image.imread(first).std() > 0.1
    else:
        assert all(f"<!-- {name}" in first.read_text() for name in names)


ENDS = "fixed(4,1074) fixed(2,-1022) fixed(2,0) float(1,0) p3109(12,1) p3109(3,1) posit(2,0) posit(32,5)".split()


@pytest.mark.parametrize("name", usually(ENDS[::3], ENDS))
def test_plots_at_the_ends_of_what_there_is(tmp_path, name):
    draw([name], tmp_path / "x.png")
    assert matplotlib.image.imread(tmp_path / "x.png").std() > 0.05


def exponents(numbers):
    return np.log2(numbers).round(4).tolist()


def test_blocks_are_drawn_with_their_scales():
    """MX: the scale of 1 is 2^-2, of the largest numbers of blocks the error is that of 8 - epsilon made 6 at most.
    NVFP4: the scale of 1 is 1/6, and others follow to 2^-15 with three bits of mantissa."""
    mx, nv = (drawing(NAMED[name][0]) for name in ("mxfp4", "nvfp4"))
    assert mx.numbers.tolist() == exponents(np.array([0.5, 1, 1.5, 2, 3, 4]) / 4)
    assert nv.numbers.tolist() == exponents(np.array([0.5, 1, 1.5, 2, 3, 4, 6]) / 6)
    assert (mx.normal, round(nv.normal, 4)) == (-2, exponents(1 / 6))
    for one, lost in ((mx, 0.125 / 2), (nv, 0.5 / 6 / 2)):
        places, errors = one.curve
        assert (errors[places < np.log2(lost)] == 0).all()
        assert (errors[places > np.log2(lost) + 0.001] < 0).all()
    assert mx.alone.places.min() == nv.alone.places.min() == -18
    assert -2.03 < mx.alone.errors.max() < -2
    follow = nv.alone.places > -14.8
    assert -4.2 < nv.alone.errors[follow].max() < -4.08
    assert nv.alone.errors[~follow].max() > -2


@pytest.mark.parametrize("text", ["scaled(e2m1fn,{-2:16,-1:16})", "scaled(e2m1fn,{...:None})", "scaled(e2m1fn,{0:1})"])
def test_pictures_of_blocks_do_not_depend_on_their_shapes(text):
    same, expected = drawing(parse(text)), drawing(parse("mxfp4"))
    np.testing.assert_array_equal(same.numbers, expected.numbers)
    for one, other in ((same.curve, expected.curve), (same.alone, expected.alone)):
        np.testing.assert_array_equal(one, other)


def test_block_floating_point_is_drawn():
    one = drawing(parse("block(4,dim=-1)"))
    assert one.numbers.tolist() == exponents(np.arange(1, 5) / 4)


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("int8", "x.gif", r"plot file '.*x.gif'; allowed are names that end in .svg or .png"),
        ("float(12,2)", "x.svg", r"FloatingPoint\(exp=12, man=2\) has numbers of"),
        ("fixed(1,0)", "x.svg", r"FixedPoint\(wl=1, fl=0\) has no positive numbers to plot"),
    ],
)
def test_plots_refused(tmp_path, name, file, message):
    with pytest.raises(ValueError, match=message):
        draw([name], tmp_path / file)
    assert not list(tmp_path.iterdir())


NARROW = {name.replace(".", "-narrow."): name for name in PICTURES}


@pytest.mark.parametrize("name", usually([*PICTURES][:2], [*PICTURES, *NARROW]))
def test_pictures_of_docs_are_fresh(tmp_path, name):
    """If they are not: `python -m website`."""
    pinned = re.findall(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    if pinned == [version("matplotlib")]:
        if name in NARROW:
            in_two_widths(partial(draw, PICTURES[NARROW[name]]), tmp_path / NARROW[name])
        else:
            draw(PICTURES[name], tmp_path / name)
        (text, numbers), (committed, expected) = _drawing(tmp_path / name), _drawing(ROOT / "docs" / name)
        assert text == committed
        assert numbers == pytest.approx(expected, abs=0.01)


_NUMBER = re.compile(r"-?\d+\.\d+")


def _drawing(path):
    """A file's text and its numbers; names that are hashes of coordinates, whose last digits differ between processors,
    are left out."""
    text = re.sub(r"\bp[0-9a-f]{10}\b", "clip", path.read_text())
    return _NUMBER.sub("#", text), [float(number) for number in _NUMBER.findall(text)]
