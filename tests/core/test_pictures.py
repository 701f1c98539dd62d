"""The style of pictures: colours, names at the ends of curves, light and dark files."""

import re
from itertools import combinations

import numpy as np
import pytest

from qcore.pictures import CURVES, DARK, FAINT, INK, WIDTH, draw_curves, picture

LIGHT_PAGE, DARK_PAGE = "#ffffff", "#1e2129"  # of the site
# What colour-blind readers see of linear red, green and blue (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """As WCAG 2 defines it."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(seen):
    """Oklab, in which 0.02 is the smallest difference that most people see."""
    cones = [
        [0.41222147, 0.53633254, 0.05144599],
        [0.2119035, 0.68069955, 0.10739696],
        [0.08830246, 0.28171884, 0.6299787],
    ]
    axes = [
        [0.21045426, 0.79361779, -0.00407205],
        [1.9779985, -2.42859221, 0.45059371],
        [0.0259040, 0.78277177, -0.80867577],
    ]
    return np.array(axes) @ np.cbrt(np.array(cones) @ np.clip(seen, 0, 1))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_are_seen_on_the_page(dark):
    for colour in (*CURVES, FAINT):
        assert contrast(DARK[colour] if dark else colour, DARK_PAGE if dark else LIGHT_PAGE) > 4


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", EYES)
def test_colours_of_curves_differ_for_all_readers(dark, eyes):
    seen = [lab(np.array(EYES[eyes]) @ linear(DARK[colour] if dark else colour)) for colour in CURVES]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 0.08


def test_a_picture_is_one_file_for_light_and_dark(tmp_path):
    for name in ("one.svg", "two.svg"):
        with picture(tmp_path / name, 2, "A & B", "A line.") as figure:
            draw_curves(figure.subplots(), {"a": [(0, 1), (1, 2)]})
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert "<title>A &amp; B</title>\n<desc>A line.</desc>" in text
    assert f"[style*='fill: {INK}']{{fill:{DARK[INK]}!important}}" in text
    # Colours that no rule replaces would be those of a light page on a dark one.
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", re.sub(r"<style>.*?</style>", "", text))) <= set(DARK)
    assert f'width="{72 * WIDTH:g}pt"' in text


def test_names_at_the_ends_do_not_overlap(tmp_path):
    """Three curves end at one point, at the top, and a fourth one far below."""
    curves = {name: [(0, 0), (1, y)] for name, y in (("a", 9), ("b", 9), ("a name of two lines", 9), ("d", 0))}
    with picture(tmp_path / "x.svg", 2, "", "") as figure:
        axes = figure.subplots()
        draw_curves(axes, curves, ("level", 9))
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 5
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert max(box.y1 for box in boxes) <= figure.bbox.y1


def test_more_curves_than_colours_are_refused(tmp_path):
    curves = {str(i): [(0, i)] for i in range(6)}
    with (
        pytest.raises(ValueError, match="6 curves in one panel; allowed are 5: draw more panels"),
        picture(tmp_path / "x.svg", 2, "", "") as figure,
    ):
        draw_curves(figure.subplots(), curves)
    assert not (tmp_path / "x.svg").exists()
