"""The pages: their figures are those of result files, their links lead somewhere, and they are short."""

import re

import pytest
from documents import COLUMN, DOCS, NAMES, PHONE, ROOT, text_of

from benchmarks import coded_states, many_ranks, published, rollouts
from examples import choosing_report, pictures, recipes_report
from website import landing, same_bits
from website.figures import FIGURES, with_figures
from website.plots import PICTURES
from website.records import results

MOST_WORDS, MOST_LINES_OF_README = 1500, 120
# Measured, with units; times a number that is no format's, such as "3x" or "2 times".
MEASURED = re.compile(r"\b\d[\d.,]* ?(?:[nµm]?s\b|GB/s|GiB|%|(?:times|copies)\b)")
UNCHECKED = {
    "docs/recipes.md": "from papers; its tables are checked in tests/examples/test_recipes.py",
}
PROSE = re.compile(r"```.*?```|<!-- (?!end)[\w-]+ -->.*?<!-- end -->", re.S)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(#[^)]*)?\)")


def prose(name):
    """A page without its programs and figures."""
    return PROSE.sub("", text_of(name))


@pytest.mark.parametrize("name", [name for name in NAMES if "<!-- " in text_of(name)])
def test_figures_are_those_of_the_results(name):
    """If they are not: `python -m website`."""
    assert text_of(name) == with_figures(text_of(name))


def test_all_figures_are_on_pages():
    used = {figure for name in NAMES for figure in re.findall(r"<!-- ([\w-]+) -->", text_of(name))} - {"end"}
    assert used == set(FIGURES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNCHECKED])
def test_nothing_measured_is_written_by_hand(name):
    assert MEASURED.findall(re.sub(r"`[^`]*`", "", prose(name))) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CHANGELOG.md"])  # which only grows
def test_pages_are_short(name):
    """Words of prose and of tables written by hand; programs and generated figures do not count."""
    words = [word for word in prose(name).split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md", "SECURITY.md"])
def test_code_fits_the_column(name):
    """Longer lines are cut on a screen of 1280 pixels. Commands (`sh`) and the repository's C wrap."""
    blocks = re.findall(r"^ *```(.*?)\n(.*?)^ *```", text_of(name), re.S | re.M)
    lines = [line for kind, code in blocks if kind not in ("c", "sh") for line in code.splitlines()]
    assert [line for line in lines if len(line) > COLUMN] == []


def test_the_readme_is_one_page():
    """First why, the picture, how to install it, and a program for each package; the claims, and the commands."""
    text = text_of("README.md")
    assert len(text.splitlines()) <= MOST_LINES_OF_README
    parts = ["![", "\npip install", "In PyTorch:", "In JAX:", "In NumPy:", "<!-- in-numbers -->", "\npython3 -m venv"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_each_claim_of_the_readme_has_its_command():
    claims = re.findall(r"^- \*\*.*$", text_of("README.md"), re.M)
    assert len(claims) == 7
    for claim in claims:
        assert re.search(r"\d", claim)
        assert re.search(r"\(`(?:qbits|(?:QPYTORCH=FOLDER )?python -m) ?[^`]*`\)\.$", claim), claim


# What a newcomer meets on the first pages.
TERMS = """
accumulator, affine, block, calibrate, chunk, code, convert, design, dynamic, exponent, fake quantization, fixed
point, format, fuse, high precision, key, law, lower, mantissa, MX, nearest, NVFP4, observer, overflow, posit, prepare,
product, QAT,
QTensor, quantizer, quantum, recipe, report, saturate, scale, significand, simulate, site, SQNR, static, stochastic
rounding, stub, subnormal, test vectors, tie, tile, underflow, zero point
"""


def test_the_glossary_has_the_words_of_the_first_pages():
    """Also all that stand in italics, which marks a word where it is explained."""
    rows = re.findall(r"^\| ([^|]+) \|", text_of("docs/glossary.md"), re.M)
    words = {word.strip("`") for row in rows for word in row.split(", ")}
    first = [
        name for name in NAMES if re.fullmatch(r"README.md|docs/(start|choose-.*|chip-.*|quantize-.*|formats).md", name)
    ]
    italics = {word for name in first for word in re.findall(r"(?<![*\w])\*([a-zA-Z][\w -]*)\*(?![*\w])", prose(name))}
    assert len(first) == 6
    assert {*TERMS.replace("\n", " ").strip().split(", ")} | italics <= words


def test_the_test_command_is_found_by_ci():
    commands = re.findall(r"^python3 -m venv .*pytest$", text_of("README.md"), re.M)
    assert len(commands) == 1
    assert commands[0] in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(name):
    page = ROOT / name
    for target, heading in LINK.findall(PROSE.sub(lambda part: part[0] if part[0][0] == "<" else "", text_of(name))):
        path = (page.parent / target).resolve() if target else page
        assert path.is_file(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in headings}
            assert heading[1:] in slugs, heading


@pytest.mark.heavy
def test_pictures_are_those_of_the_results(tmp_path):
    """If they are not: `python -m website`, `python -m examples.pictures`, `recipes_report` and `choosing_report`
    there, and `python -m benchmarks.published --draw docs`, of `many_ranks`, `rollouts` and `coded_states` too.

    Those of formats, which no result makes, have a test in tests/core/cli/test_plots.py.
    """
    pictures.main(["--pictures", str(tmp_path)])
    recipes_report.main(["--pictures", str(tmp_path)])
    choosing_report.main(["--picture", str(tmp_path / "choices.svg")])
    published.main(["--draw", str(tmp_path)])
    coded_states.main(["--draw", str(tmp_path)])
    many_ranks.main(["--draw", str(tmp_path)])
    rollouts.main(["--draw", str(tmp_path)])
    same_bits.draw(tmp_path / same_bits.NAME)
    names = {path.name for path in tmp_path.iterdir()}
    of_formats = {*PICTURES} | {name.replace(".", "-narrow.") for name in PICTURES}
    assert names | of_formats == {path.name for path in DOCS.glob("*.svg")}
    assert [name for name in names if (tmp_path / name).read_text() != (DOCS / name).read_text()] == []


def test_figures_of_the_first_page_are_those_of_the_results(tmp_path):
    """If they are not: `python -m website`."""
    landing.draw(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 4
    assert [name for name in names if (tmp_path / name).read_text() != (DOCS / "assets" / name).read_text()] == []
    first = next(row["keys"] for row in results("first-page")["positions"] if row["differing"])
    assert f"same bits up to key {first - 1}, and part at key {first}" in text_of("docs/index.md")


def test_words_in_pictures_are_legible_on_a_phone():
    """Pictures are as wide as the column of a phone: words are 8 of its pixels high at least."""
    column = PHONE["width"] - 32
    for path in DOCS.glob("*.svg"):
        text = path.read_text()
        width = float(re.search(r'viewBox="0 0 ([\d.]+) ', text)[1])
        # Glyphs are drawn in units of a hundredth of the size of their words; exponents and indices are smaller.
        glyphs = re.findall(r"<g style=[^>]* transform=\"[^\"]*scale\(([\d.]+) -", text)
        sizes = [100 * float(size) for size in glyphs] + [float(size) for size in re.findall(r"font: (\d+)px", text)]
        sizes += [float(size) for size in re.findall(r"font: ([\d.]+)px", text)]
        assert min(sizes) * column / width >= 8, path.name


def test_pictures_have_alternative_texts():
    texts = [text for name in NAMES for text in re.findall(r"!\[(.*?)\]\(", text_of(name))]
    assert len(texts) > 5
    assert all(len(text) > 10 for text in texts)
