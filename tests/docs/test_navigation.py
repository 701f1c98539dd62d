"""The navigation in a browser: few links in sight, and a way on from every page."""

import pytest

from website import reference

pytestmark = pytest.mark.heavy
MOST_LINKS = 25
# Links of the tabs and of the list beside the page that are in sight and can be clicked; the page's own contents apart.
IN_SIGHT = """
[...document.querySelectorAll(".md-tabs__link, .md-sidebar--primary .md-nav__link")]
    .filter(one => one.checkVisibility({visibilityProperty: true}) && one.getBoundingClientRect().height > 0)
    .filter(one => getComputedStyle(one).pointerEvents !== "none")
    .map(one => one.textContent.trim())
"""


def names(site):
    return [path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html"]


def test_few_links_are_in_sight(site, address, page):
    for name in names(site):
        page.goto(f"{address}/{name}")
        assert 5 < len(page.evaluate(IN_SIGHT)) <= MOST_LINKS, name


def test_every_page_leads_on(site, address, page):
    """From the first page, "next" leads to every page but parts of modules, to which the module's page has links, and
    files of the repository, to which pages link; "previous" leads back."""
    page.goto(f"{address}/index.html")
    seen = [page.url]
    while (following := page.locator("a.md-footer__link--next")).count():
        page.goto(following.evaluate("one => one.href"))
        assert page.locator("a.md-footer__link--prev").evaluate("one => one.href") == seen[-1]
        seen.append(page.url)
    parts = {f"reference/{part}.html" for name, pages in reference.modules().items() for part in pages if part != name}
    files = {name for name in names(site) if name.startswith("files/")}
    assert {url.removeprefix(f"{address}/") for url in seen} == set(names(site)) - parts - files
