"""Formats and reports as tables in notebooks: the cells of what `print` shows, escaped."""

from html.parser import HTMLParser

import numpy as np
import pytest

from qcore import RECIPES, Entry, Product, Recipe, parse
from qcore.affine import INT8
from qcore.insight import Record, Site, statistics_of
from qcore.report import LayerReport, ProductReport, Report, RunReport


class _Cells(HTMLParser):
    """The rows of a table, and whether all tags are closed."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


def rows(shown):
    cells = _Cells(shown._repr_html_())
    assert not cells.open
    assert len({len(row) for row in cells.rows}) == 1
    return cells.rows


@pytest.mark.parametrize("text", ["e4m3fn", "mxfp4", "fixed(8,4)", "posit(8,1)"])
def test_formats(text):
    number = parse(text)
    head, *others = rows(number)
    assert head == [type(number).__name__, number.text]
    assert ["bits of a code", str(number.bits)] in others or text == "mxfp4"


def test_reports():
    assert ["bits", "8"] in rows(INT8)
    layer = LayerReport("a<b>&c", "Linear", "quantized", weight="int8", scale=0.25, reason='"why"')
    head, row = rows(Report((layer,)))
    found = dict(zip(head, row, strict=True))
    assert (found["path"], found["scale"], found["reason"]) == ("a<b>&c", "0.25", '"why"')
    run = RunReport([ProductReport("head", 0, "linear", ((2, 8), (4, 8)), 64, reason="no entry of the recipe")])
    assert "head" in rows(run)[1]
    assert run._repr_html_().endswith("<pre>lowered: 0.0%</pre>")


def test_recipes():
    head, first, second = rows(Recipe([Entry("a<b"), Entry("*", "conv", Product("int8", "e5m2"), last=1)]))
    assert head == ["name", "layer type", "forward", "grad input", "grad weight", "first", "last"]
    assert (first[:3], second[:3], second[-1]) == (["a<b", "", ""], ["*", "conv", Product("int8", "e5m2").text], "1")
    assert all(rows(recipe) for recipe in RECIPES.values())


def test_records():
    record = Record("<mlp>")
    for step in (0, 1):
        record.add(step, Site("<0>", "output"), statistics_of(np.float32([1, 2, 3, 4000]), "e4m3fn"))
    record.add(1, Site("1", "output"), statistics_of(np.float32([1, 2]), "e5m2"))
    head, first, second = rows(record)
    assert head == ["site", "format", "elements", "overflowed", "saturated", "underflowed", "SQNR"]
    assert first == ["<0>:output", "e4m3fn", "8", "25 %", "0 %", "0 %", "inf dB"]
    assert second[:3] == ["1:output", "e5m2", "2"]
    found = rows(record.site(Site("<0>", "output")))
    assert found[0] == ["Statistics", "e4m3fn"]
    assert ["elements", "8"] in found
    assert ["largest before", "4000"] in found
    for number in range(45):
        record.add(0, Site(str(number), "weight"), statistics_of(np.float32([1]), "e5m2"))
    assert record._repr_html_().endswith("<p>and 7 more</p>")
    assert len(rows(record)) == 41
