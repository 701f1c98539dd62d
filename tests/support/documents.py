"""The pages of the documentation, and the programs in them."""

import re
from pathlib import Path

from website import notebooks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")])
COLUMN = 100  # letters of code that fit a page on a desk's screen
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}  # screens that pages are looked at on
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Pages whose commands tests/docs/test_walks.py runs in fresh environments: what each imports, and does not need.
WALKS = {
    "start-pytorch": ("qtorch", ["jax", "flax"]),
    "start-jax": ("qjax", ["torch"]),
    "chip-designers": ("qcore", ["torch", "jax"]),
}


def text_of(name):
    page = ROOT / name
    return notebooks.markdown(page) if page.suffix == ".ipynb" else page.read_text()


def blocks(name):
    """The fenced blocks of a page, as (language, text)."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text_of(name), re.S | re.M)


def programs(name):
    return [text for language, text in blocks(name) if language == "python"]


def in_shell(text):
    """A statement of Python that runs commands of a shell, as a reader types them between programs."""
    return f"__import__('subprocess').run(['bash', '-euo', 'pipefail', '-c', {text!r}], check=True)\n"
