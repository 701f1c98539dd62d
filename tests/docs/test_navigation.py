"""The navigation: a way on from every page."""

import re

import pytest

from website import reference

pytestmark = pytest.mark.heavy


def names(site):
    return [path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html"]


def neighbour(path, which):
    """The file that a page's link to the next or the previous page names, or None."""
    found = re.search(f'<a href="([^"]+)" class="md-footer__link md-footer__link--{which}"', path.read_text("utf-8"))
    return (path.parent / found[1]).resolve() if found else None


def test_every_page_leads_on(site):
    """From the first page, "next" leads to every page but parts of modules, to which the module's page has links, and
    files of the repository, to which pages link; "previous" leads back."""
    site = site.resolve()
    seen = [site / "index.html"]
    while following := neighbour(seen[-1], "next"):
        assert neighbour(following, "prev") == seen[-1]
        seen.append(following)
    parts = {f"reference/{part}.html" for name, pages in reference.modules().items() for part in pages if part != name}
    files = {name for name in names(site) if name.startswith("files/")}
    assert {path.relative_to(site).as_posix() for path in seen} == set(names(site)) - parts - files
