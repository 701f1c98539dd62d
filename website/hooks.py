"""mkdocs's hooks: pages of the repository's root, the API reference, notebooks, and links to other files."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from website import notebooks, reference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# What the site has from the root, and under which name.
FROM_ROOT = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
ROOM = 3  # modules of a room that has a section of its own in the reference's navigation
# Rooms of all packages that are one section.
TOGETHER = {
    (".exchange", ".export"): "exchange",
    (".arithmetic", ".distributed", ".engines"): "whole systems",
}
SOURCES = {uri: ROOT / name for name, uri in FROM_ROOT.items()}  # of pages, by their names on the site
_NAMES = "reference/names.md"
_PICTURE = re.compile(r"^!\[[^\]]*\]\((\S+)\.svg\)$", re.M)  # on a line of its own
_PHONE = "(max-width: 43.75em)"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation gets pages that it does not name, and the modules of the reference."""
    SOURCES.update({_uri(path): path for path in sorted(DOCS.rglob("*")) if path.suffix in (".md", ".ipynb")})
    assert config.nav is not None
    named = set(_leaves(config.nav))
    more = [uri for uri in SOURCES if uri not in named]
    config.nav += [
        *([{"More": more}] if more else []),
        {"API reference": _reference_sections()},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are no Markdown in docs, and the files outside of docs that pages link to."""
    for uri, path in SOURCES.items():
        if path.suffix == ".ipynb":
            content, pictures = notebooks.with_outputs(path)
            files.append(File.generated(config, uri, content=content))
            for name, picture in pictures.items():
                files.append(File.generated(config, f"{posixpath.dirname(uri)}/{name}", content=picture))
        elif path.parent == ROOT:
            files.append(File.generated(config, uri, content=path.read_text(encoding="utf-8")))
        for target in _linked_files(path):
            if DOCS not in target.parents and target.parent != ROOT and files.get_file_from_path(_uri(target)) is None:
                found = File.generated(config, _uri(target), abs_src_path=str(target))
                found.inclusion = InclusionLevel.NOT_IN_NAV  # of Markdown, which is a page
                files.append(found)
    for name, text in reference.pages().items():
        # The page of a module has links to its parts, so the navigation is shorter without them.
        inclusion = InclusionLevel.INCLUDED if name in reference.modules() else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, f"reference/{name}.md", content=text, inclusion=inclusion))
    files.append(File.generated(config, _NAMES, content=reference.names()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to files of the repository become links within the site; searches find guides before the reference.

    A picture that is drawn for phones, too, has both files.
    """
    if page.file.src_uri.startswith("reference/") or page.file.src_uri in ("changelog.md", "contributing.md"):
        page.meta["search"] = {"boost": 0.2}
    path = SOURCES.get(page.file.src_uri)
    if path is None:
        return markdown

    def linked(match: re.Match[str]) -> str:
        target = (path.parent / match[1]).resolve()
        return posixpath.relpath(_uri(target), posixpath.dirname(page.file.src_uri)) if target.is_file() else match[1]

    def pictured(match: re.Match[str]) -> str:
        narrow = f"{match[1]}-narrow.svg"
        source = f'<source media="{_PHONE}" srcset="{narrow}">'
        return f"<picture>{source}{match[0]}</picture>" if (path.parent / narrow).is_file() else match[0]

    return _LINK.sub(linked, _PICTURE.sub(pictured, markdown))


def _reference_sections() -> list[Any]:
    """The reference's part of the navigation: sections for packages, for rooms together, and for large rooms."""
    names = list(reference.modules())
    rooms = Counter(".".join(name.split(".")[:2]) for name in names)
    sections: dict[str, list[Any]] = {}
    for name in names:
        package, _, rest = name.partition(".")
        room = f"{package}.{rest.partition('.')[0]}"
        together = (section for endings, section in TOGETHER.items() if room.endswith(endings))
        section = next(together, room if rooms[room] >= ROOM else package)
        sections.setdefault(section, []).append({name: f"reference/{name}.md"})
    return [{section: found} for section, found in sections.items()]


def _text(path: Path) -> str:
    return notebooks.markdown(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")


def _linked_files(path: Path) -> Iterator[Path]:
    for target in _LINK.findall(_text(path)):
        if (found := (path.parent / target).resolve()).is_file():
            yield found


def _uri(path: Path) -> str:
    """Where the site has a file of the repository."""
    if path.parent == ROOT and path.name in FROM_ROOT:
        return FROM_ROOT[path.name]
    if DOCS in path.parents:
        return path.relative_to(DOCS).with_suffix(".md" if path.suffix == ".ipynb" else path.suffix).as_posix()
    return f"files/{path.relative_to(ROOT).as_posix()}"


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for inner in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(inner)
