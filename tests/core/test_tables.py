"""Tables and texts that fit, letter by letter."""

import pytest

from qcore.tables import fitted_table, fitted_text, terminal_width

HEAD = "site", "format", "share"
ROWS = [("first", "e4m3fn", "1.5 %"), ("second.layer", "", "-")]


def drawn(width, **settings):
    return [line for lines in fitted_table(HEAD, ROWS, width, **settings) for line in lines]


def test_a_table_that_fits_is_in_columns():
    assert drawn(27, right=("share",)) == [
        "site          format  share",
        "first         e4m3fn  1.5 %",
        "second.layer              -",
    ]


def test_what_has_no_room_stands_below_with_its_name():
    assert drawn(26) == [
        "site          format",
        "first         e4m3fn",
        "    share: 1.5 %",
        "second.layer",
        "    share: -",
    ]
    long = [("model.layers.0.attention.query", "e5m2", "")]
    assert [line for lines in fitted_table(HEAD, long, 20) for line in lines] == [
        "site",
        "model.layers.0.",
        "    attention.query",
        "    format: e5m2",
    ]


def test_words_longer_than_a_line_end_at_their_marks():
    assert fitted_text("  a b", 20) == ["  a b"]
    assert fitted_text("", 20) == []
    assert fitted_text("x" * 40, 20) == ["x" * 16, *["    " + "x" * 16] * 1, "    " + "x" * 8]
    assert fitted_text("/a/folder/of/mine/and/a/file: 3 rows", 24) == ["/a/folder/of/mine/", "    and/a/file: 3 rows"]


@pytest.mark.parametrize(("columns", "width"), [("132", 132), ("1", 20)])
def test_the_width_is_that_of_the_variable(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width
