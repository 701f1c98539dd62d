"""Commands of the pages name modules and options that exist; `test_transcript.py` runs those of a newcomer."""

import importlib.util
import re
from pathlib import Path

import pytest
from documents import NAMES, ROOT, text_of

from qcore.__main__ import COMMANDS

PAGES = [*(name for name in NAMES if name != "CHANGELOG.md"), "CONTRIBUTING.md", "SECURITY.md"]
COMMAND = re.compile(r"python -m ((?:qcore|benchmarks|examples|website)\b[\w.]*)([^`\n]*)")
QBITS = re.compile(r"(?:`|^)qbits ([\w-]+)([^`\n]*)", re.M)
FOUND = sorted({(module, options) for name in PAGES for module, options in COMMAND.findall(text_of(name))})


def source_of(module):
    """The file that `python -m` runs, and those of its package or beside it that may add options."""
    spec = importlib.util.find_spec(module)
    assert spec, module
    if spec.submodule_search_locations:
        assert importlib.util.find_spec(f"{module}.__main__"), module
    path = Path(spec.origin)
    files = [path, *path.parent.glob("*.py"), *(ROOT / "benchmarks/support").glob("*.py")]
    return "".join(file.read_text() for file in files)


@pytest.mark.parametrize(("module", "options"), FOUND, ids=lambda part: part.strip() or None)
def test_they_exist(module, options):
    source = source_of(module)
    assert [one for one in re.findall(r"(?<!\S)--[\w-]+", options) if f'"{one}"' not in source] == []


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_qbits_exist(name):
    found = QBITS.findall(text_of(name))
    assert {command for command, _ in found} <= {*COMMANDS, "--help", "--version"}
    source = source_of("qcore")
    options = [one for _, options in found for one in re.findall(r"(?<!\S)--[\w-]+", options)]
    assert [one for one in options if f'"{one}"' not in source] == []


def test_they_are_found():
    assert len(FOUND) > 30
    assert len(QBITS.findall("".join(map(text_of, PAGES)))) > 9
