"""The pages of the documentation, and the programs in them."""

import re
import textwrap
from pathlib import Path

from website import notebooks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")])
COLUMN = 100  # letters of code that fit a page on a desk's screen
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}  # screens that pages are looked at on
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Walks that tests/docs/test_walks.py runs in fresh environments: (page, tab), what each imports and does not need.
WALKS = {
    ("start", "PyTorch"): ("qtorch", ["jax", "flax"]),
    ("start", "JAX"): ("qjax", ["torch"]),
    ("chip-designers", ""): ("qcore", ["torch", "jax"]),
}
TAB = re.compile(r'^=== "(.+)"\n((?:(?: {4}.*)?\n)+)', re.M)


def text_of(name):
    page = ROOT / name
    return notebooks.markdown(page) if page.suffix == ".ipynb" else page.read_text()


def tabs(name):
    """The labels of a page's tabs, each once; "" for a page without."""
    return list(dict.fromkeys(label for label, _ in TAB.findall(text_of(name)))) or [""]


def blocks(name, tab=""):
    """The fenced blocks of a page, as (language, text): what stands in other tabs than the named one is left out."""

    def chosen(found):
        return textwrap.dedent(found[2]) if tab in ("", found[1]) else ""

    return re.findall(r"^```(\w*)\n(.*?)^```", TAB.sub(chosen, text_of(name)), re.S | re.M)


def programs(name, tab=""):
    return [text for language, text in blocks(name, tab) if language == "python"]


def in_shell(text):
    """A statement of Python that runs commands of a shell, as a reader types them between programs."""
    return f"__import__('subprocess').run(['bash', '-euo', 'pipefail', '-c', {text!r}], check=True)\n"
