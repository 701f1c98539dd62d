"""All programs of the README and of the pages in docs run, from the first one of a page to its last.

Shell blocks that begin with `qbits` run between them. `test_walks.py` runs the commands that make environments.
"""

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documents import NAMES, ROOT, WALKS, blocks, in_shell, programs


def steps(name):
    """What runs: programs as they are, commands of qbits as programs that call a shell."""
    for language, text in blocks(name):
        if language == "python":
            yield text
        elif language == "sh" and text.startswith("qbits "):
            yield in_shell(text)


@pytest.fixture
def qbits(tmp_path, monkeypatch):
    """A command `qbits` that runs these packages, whatever is installed."""
    folder = tmp_path / "commands"
    folder.mkdir()
    command = folder / "qbits"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m qcore "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def pages():
    """Pages with programs; those that a walk of tests/docs/test_walks.py runs in CI are heavy here."""
    for name in NAMES:
        if list(steps(name)) and not name.endswith(".ipynb"):
            yield pytest.param(name, marks=[pytest.mark.heavy] if Path(name).stem in WALKS else [])


@pytest.mark.usefixtures("qbits")
@pytest.mark.parametrize("name", [*pages()])
def test_the_programs_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("program_of_a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where pickle finds a page's classes
    for program in steps(name):
        exec(compile(program, name, "exec"), vars(module))


@pytest.mark.parametrize("program", programs("README.md"), ids=["PyTorch", "JAX", "NumPy"])
def test_programs_of_the_readme_run_alone(program, capsys):
    """Each prints what its comments say, in at most five lines."""
    exec(compile(program, "README.md", "exec"), {})
    said = re.findall(r"print\(.*\)  # (.*)", program)
    assert capsys.readouterr().out.splitlines() == said
    assert len([line for line in program.splitlines() if line]) <= 5
