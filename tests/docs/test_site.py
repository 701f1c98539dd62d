"""The site in a browser: its pages, search, tables and reference."""

import importlib
import inspect
import re
import zlib

import pytest
from documents import PHONE

from website import reference

pytestmark = pytest.mark.heavy


def test_the_reference_has_every_name(site):
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    described = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    directives = {line[4:] for text in reference.pages().values() for line in text.splitlines() if line[:4] == "::: "}
    assert len(directives) > 300
    assert not directives - described


def test_every_page_loads(site, address, page):
    """Without an error on the console; pictures are there, and have texts; nothing is wider than a phone."""
    found = [path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(found) > 40
    for name in found:
        page.set_viewport_size(PHONE)
        page.goto(f"{address}/{name}")
        assert page.complaints == [], name
        assert page.title()
        pictures = page.eval_on_selector_all(".md-content img", "all => all.map(one => [one.alt, one.naturalWidth])")
        assert all(alt and width for alt, width in pictures), (name, pictures)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"], name


def test_search_finds_a_name(address, page):
    page.goto(f"{address}/index.html")
    page.fill(".md-search__input", "float_quantize")
    results = page.locator(".md-search-result__link")
    results.first.wait_for(timeout=60_000)
    assert any("reference/" in link for link in results.evaluate_all("all => all.map(one => one.href)"))
    assert page.complaints == []


def test_the_table_of_formats_is_live(address, page):
    page.goto(f"{address}/named-formats.html")
    table = page.locator(".live")

    def column(number):
        return table.locator(f"tbody tr:not([hidden]) td:nth-child({number})").all_inner_texts()

    def largest():
        return [float(text) for text in column(5)]

    everything = column(1)
    table.get_by_role("button", name="max").click()
    assert sorted(column(1)) == sorted(everything)
    assert largest() == sorted(largest())
    assert largest()[0] < largest()[-1]
    table.get_by_role("button", name="max").click()
    assert largest() == sorted(largest(), reverse=True)
    table.locator("input").fill("8 saturate")
    assert set(column(2)) == {"8"}
    assert set(column(9)) == {"saturate"}
    assert 3 < len(column(1)) < len(everything)


def test_the_reference_shows_functions_whole(site):
    """Also those of the reproducible rooms, which are bound methods."""
    for name in ("qcore", "qtorch.quantization", "qjax.nnx", "qtorch.reproducible", "qjax.reproducible"):
        text = (site / "reference" / f"{name}.html").read_text()
        described = re.findall(rf"^::: {name}\.(\w+)$", reference.pages()[name], re.M)
        functions = [one for one in described if inspect.isroutine(getattr(importlib.import_module(name), one))]
        for heading in ("Source code in", "Returns:", "Examples:"):
            assert text.count(heading) >= len(functions) > 7, (name, heading)


def test_tutorials_show_what_they_print(site):
    page = (site / "tutorials" / "find-the-layer.html").read_text()
    assert "2:output    e4m3fn" in page
    assert (site / "tutorials" / "find-the-layer-1.svg").is_file()
