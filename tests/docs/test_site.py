"""The site in a browser: its pages, search, tables and reference."""

import importlib
import inspect
import io
import re
import zlib

import numpy as np
import pytest
from documents import DESK, PHONE
from matplotlib.image import imread

from website import reference

pytestmark = pytest.mark.heavy


def test_the_reference_has_every_name(site):
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    described = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    directives = {line[4:] for text in reference.pages().values() for line in text.splitlines() if line[:4] == "::: "}
    assert len(directives) > 300
    assert not directives - described


# Of a page: code that is cut, tables without a way to their last columns, names in tables that are broken.
CUT = """
const inSight = one => one.checkVisibility() && one.clientWidth > 0;
const longest = code => code.textContent.split("\\n").reduce((a, b) => a.length > b.length ? a : b, "");
const code = [...document.querySelectorAll(".md-content pre > code")]
    .filter(one => inSight(one) && !one.closest("details") && one.scrollWidth > one.clientWidth).map(longest);
const scrolls = one => one && ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
const tables = [...document.querySelectorAll(".md-content table")].filter(inSight).filter(one => {
    const box = one.closest(".md-typeset__scrollwrap");
    return one.scrollWidth > (box || one.parentElement).clientWidth && !scrolls(box);
}).map(one => one.innerText.slice(0, 60));
const names = [...document.querySelectorAll(".md-content :is(td, th) code")]
    .filter(one => inSight(one) && one.getClientRects().length > 1).map(one => one.textContent);
const {scrollWidth, scrollHeight} = document.scrollingElement;
return {code, tables, names, width: scrollWidth, height: scrollHeight};
"""
LONGEST_PAGE = 20_000  # pixels
# Links of the tabs and of the list beside the page that are in sight and can be clicked; the page's own contents apart.
LINKS = """
[...document.querySelectorAll(".md-tabs__link, .md-sidebar--primary .md-nav__link")]
    .filter(one => one.checkVisibility({visibilityProperty: true}) && one.getBoundingClientRect().height > 0)
    .filter(one => getComputedStyle(one).pointerEvents !== "none")
    .map(one => one.textContent.trim())
"""
MOST_LINKS = 25


@pytest.fixture(scope="module")
def names(site):
    found = [path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(found) > 40
    return sorted(found)


def test_every_page_on_a_desk_and_on_a_phone(names, address, page, subtests):
    """Without an error on the console; nothing is cut, and nothing wider than the screen. Pictures are there, and have
    texts. Few links of the navigation are in sight. On a phone code scrolls in its box."""
    for name in names:
        with subtests.test(name):
            page.complaints.clear()
            page.set_viewport_size(DESK)
            page.goto(f"{address}/{name}")
            assert page.complaints == []
            assert page.title()
            pictures = page.eval_on_selector_all(
                ".md-content img", "all => all.map(one => [one.alt, one.naturalWidth])"
            )
            assert all(alt and width for alt, width in pictures), pictures
            assert 5 < len(page.evaluate(LINKS)) <= MOST_LINKS
            found = page.evaluate(f"() => {{{CUT}}}")
            # What programs of notebooks print has the width that they give it, and scrolls.
            cut = [] if name.startswith("tutorials/") else found["code"]
            assert (cut, found["tables"], found["names"]) == ([], [], [])
            assert found["height"] <= LONGEST_PAGE
            page.set_viewport_size(PHONE)
            found = page.evaluate(f"() => {{{CUT}}}")
            assert (found["width"] <= PHONE["width"], found["tables"], found["names"]) == (True, [], [])


def test_a_phone_has_pictures_and_tables_of_its_own(address, page):
    """The narrow picture, at its own size, and rows that are blocks behind their headings; a desk has neither."""
    for viewport, drawn, label in ((PHONE, "recipes-narrow.svg", "accumulator"), (DESK, "recipes.svg", None)):
        page.set_viewport_size(viewport)
        page.goto(f"{address}/recipes.html")
        image = page.locator("picture img").first
        assert image.evaluate("one => one.currentSrc").endswith(f"/{drawn}")
        assert image.evaluate("one => one.clientWidth / one.naturalWidth") > 0.95
        cell = page.locator("table[data-stacked] tbody tr").first.locator("td").last
        shown = cell.evaluate("one => [getComputedStyle(one, '::before').content, one.dataset.label]")
        assert shown == [f'"{label}"' if label else "none", "accumulator"]


def luminance(colours):
    """Relative luminance, as WCAG 2 defines it, of colours from 0 to 1 in the last axis."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def read(image):
    """A picture's paper, as its corners show it, and the contrast of each pixel with it."""
    pixels = imread(io.BytesIO(image))[..., :3]
    corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1]]
    levels, paper = luminance(pixels) + 0.05, luminance(corners[0]) + 0.05
    return corners * 255, np.maximum(levels, paper) / np.minimum(levels, paper)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_seen_on_the_page(scheme, names, site, address, page):
    """Their paper is the page's, without a box, and their ink has a contrast of 3 with it; the reader's choice of a
    dark page decides, not the system's."""
    system = {"light": "dark", "dark": "light"}[scheme]
    page.emulate_media(color_scheme=system)
    page.goto(f"{address}/index.html")
    page.locator("label[for^=__palette]:visible").click()
    seen = set()
    for name in [name for name in names if "<img" in (site / name).read_text(encoding="utf-8")]:
        page.goto(f"{address}/{name}")
        expected = {"light": "default", "dark": "slate"}[scheme]
        assert page.locator("body").get_attribute("data-md-color-scheme") == expected
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for picture in page.locator(".md-content img:visible").all():
            source = picture.get_attribute("src")
            if source not in seen:
                seen.add(source)
                picture.scroll_into_view_if_needed()
                page.wait_for_function("one => one.complete", arg=picture.element_handle())
                corners, contrasts = read(picture.screenshot())
                assert np.abs(corners - [int(part) for part in re.findall(r"\d+", paper)[:3]]).max() < 3, source
                assert (contrasts >= 3).mean() > 0.005, source
    assert len(seen) > 10


def test_search_finds_a_name(searched, page):
    page.goto(f"{searched}/index.html")
    page.fill(".md-search__input", "float_quantize")
    results = page.locator(".md-search-result__link")
    results.first.wait_for(timeout=60_000)
    assert any("reference/" in link for link in results.evaluate_all("all => all.map(one => one.href)"))
    assert page.complaints == []


def test_the_table_of_formats_is_live(address, page):
    page.goto(f"{address}/formats.html")
    table = page.locator(".live")

    def column(number):
        return table.locator(f"tbody tr:not([hidden]) td:nth-child({number})").all_inner_texts()

    def largest():
        return [float(text) for text in column(5)]

    page.set_viewport_size(PHONE)
    cell = table.locator("tbody td").first
    box = table.locator(".md-typeset__scrollwrap")
    assert box.evaluate("one => { one.scrollLeft = 200; return one.scrollLeft; }") > 0
    assert cell.bounding_box()["x"] >= box.bounding_box()["x"]  # the names stay in sight
    page.set_viewport_size(DESK)
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
    for word, names in (("fp8", {"e4m3fn", "e5m2", "hif8"}), ("float8_e4m3fn", {"e4m3fn"}), ("half", {"float16"})):
        table.locator("input").fill(word)
        assert names <= set(column(1)), word
        assert "int8" not in column(1)


# What newcomers type, and the pages that answer.
QUESTIONS = {
    "tensor core": ("machines", "chip-designers", "fp8-products", "products"),
    "nvfp4 jax": ("blocks", "recipes", "low-precision-training", "start"),
    "convert to onnx": ("take-out", "quantize-a-model"),
    "install": ("index", "start"),
    "int8 qat": ("quantize-a-model", "workflow", "from-torch-ao"),
    "save and resume": ("low-precision-training", "same-training", "workflow", "optimizers"),
    "histogram": ("affine", "insight", "workflow", "quantize-a-model"),
    "mxfp8 convolution": ("recipes", "blocks", "products", "low-precision-training"),
    "kv cache mismatch": ("engines",),
    "gradient all reduce bf16": ("collectives",),
    "stochastic rounding key": ("rounding", "low-precision-training"),
    "gguf": ("bring-in", "take-out"),
    "muon fp8": ("optimizers",),
    "adam 8 bit": ("optimizers",),
    "custom format": ("own-formats", "tutorials/design-a-format"),
    "posit": ("formats",),
    "systemverilog": ("chip-designers", "verification"),
    "qpytorch": ("from-others",),
    "accumulator width": ("products", "chip-designers", "verification", "machines"),
    "exp in fp8": ("arithmetic",),
}


def test_search_answers(searched, page):
    """18 of 20 questions have their page among the first three."""
    page.goto(f"{searched}/index.html")
    box, items = page.locator(".md-search__input"), page.locator(".md-search-result__item")
    box.fill("format")
    items.first.wait_for(timeout=60_000)  # the index is read
    missed = []
    for question, names in QUESTIONS.items():
        box.fill("")
        box.fill(question)
        box.press("End")  # Material listens to keys
        page.wait_for_timeout(900)
        links = items.evaluate_all("all => all.slice(0, 3).map(one => one.querySelector('a').pathname)")
        found = [link.strip("/").removesuffix(".html") for link in links]
        if not set(found) & set(names):
            missed.append((question, found))
    assert len(missed) <= 2, missed


def test_the_reference_shows_functions_whole(site):
    """Also those of the reproducible rooms, which are bound methods."""
    for name in ("qcore", "qtorch.quantization", "qjax.nnx", "qtorch.reproducible", "qjax.reproducible"):
        pages = reference.modules()[name]
        text = "".join((site / "reference" / f"{page}.html").read_text() for page in pages)
        described = re.findall(rf"^::: {name}\.(\w+)$", "\n".join(pages.values()), re.M)
        functions = [one for one in described if inspect.isroutine(getattr(importlib.import_module(name), one))]
        for heading in ("Source code in", "Returns:", "Examples:"):
            assert text.count(heading) >= len(functions) > 7, (name, heading)


def test_tutorials_show_what_they_print(site):
    page = (site / "tutorials" / "find-the-layer.html").read_text()
    assert "2:output    e4m3fn" in page
    assert (site / "tutorials" / "find-the-layer-1.svg").is_file()
