"""Commands of the pages name modules and options that exist; `test_walks.py` runs those of newcomers."""

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from documents import NAMES, ROOT, blocks, text_of

from qcore import __main__ as command_line
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


SHELL = ("sh", "")  # languages of blocks; other texts have the language text


@pytest.mark.parametrize("name", [name for name in PAGES if {*SHELL} & {*dict(blocks(name))}])
def test_blocks_of_commands_are_read_by_a_shell_and_by_qbits(name, monkeypatch):
    """Formats, accumulators and numbers of a command are checked too; nothing runs."""
    monkeypatch.setattr(command_line.argparse.ArgumentParser, "error", lambda parser, message: pytest.fail(message))
    for language, text in blocks(name):
        if language in SHELL:
            subprocess.run(["bash", "-n", "-c", text], check=True)
            for line in re.findall(r"^qbits .*", text.replace("\\\n", ""), re.M):
                command_line._parser("qbits").parse_args(shlex.split(line)[1:])


def test_they_are_found():
    assert len(FOUND) > 30
    assert len(QBITS.findall("".join(map(text_of, PAGES)))) > 9
