"""The bar of a search: what is drawn on a terminal, and nothing elsewhere."""

import sys

import numpy as np

from qcore.insight import choose_formats
from qcore.notices import progress

LOSSES = {"e4m3fn": 0.25, "e2m1fn": 0.5}


def search():
    return choose_formats(
        {"a": 8, "b": 4}, LOSSES, lambda formats: (sum(map(LOSSES.get, formats.values())), np.ones(1)), 6
    )


def test_bars_on_a_terminal_end_full(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    search()
    out, shown = capsys.readouterr()
    assert out == ""
    for text in ("each site alone", "narrower, site by site"):
        assert f"{text} " in shown
        assert "100%" in shown.rpartition(text)[2].partition("\n")[0]


def test_the_part_that_is_done(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with progress("half") as done:
        done(0.5)
    assert "50%" in capsys.readouterr().err


def test_nothing_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    search()
    assert capsys.readouterr() == ("", "")


def test_nothing_without_rich(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    found = search()
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert search() == found
    assert capsys.readouterr() == ("", "")
