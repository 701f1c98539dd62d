"""All programs of the README and of the pages in docs run, from the first of a page to its last, each tab by itself.

Shell blocks that begin with `qbits` run between them. `test_walks.py` runs the commands that make environments.
"""

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documents import NAMES, ROOT, WALKS, blocks, in_shell, programs, tabs, text_of


def steps(name, tab):
    """What runs: programs as they are, commands of qbits as programs that call a shell."""
    for language, text in blocks(name, tab):
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


# Quantized models, of which XLA compiles a hundred programs and more, and GCC many kernels; pages whose commands are
# processes of some seconds each. CI runs them beside its other steps.
LONG = {("quantize-a-model", "JAX"), ("quantize-a-model", "PyTorch"), ("workflow", "JAX")}
LONG |= {("low-precision-training", ""), ("take-out", ""), ("verification", "")}
# These compile much, too: tabs whose other tab is quick, and pages whose functions have quick tests in both frameworks.
LONG |= {("collectives", "JAX"), ("check-your-kernel", "JAX"), ("optimizers", ""), ("insight", "")}


def pages():
    """Pages with programs, and their tabs; LONG ones are heavy, and those that a walk of test_walks.py runs in CI."""
    for name in NAMES:
        for tab in tabs(name):
            if list(steps(name, tab)) and not name.endswith(".ipynb"):
                marks = [pytest.mark.heavy] if (Path(name).stem, tab) in WALKS.keys() | LONG else []
                yield pytest.param(name, tab, marks=marks, id=f"{name}-{tab}" if tab else name)


@pytest.mark.usefixtures("qbits")
@pytest.mark.parametrize(("name", "tab"), [*pages()])
def test_the_programs_run(name, tab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("program_of_a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where pickle finds a page's classes
    for program in steps(name, tab):
        exec(compile(program, name, "exec"), vars(module))


@pytest.mark.parametrize("name", [name for name in NAMES if tabs(name) != [""]])
def test_each_program_of_a_tab_is_found(name):
    """A page has a tab for each framework, the first one for NumPy too; no program stands elsewhere in the text."""
    assert tabs(name) == ["PyTorch", "JAX", "NumPy"][: 3 if name == "docs/index.md" else 2]
    assert all(programs(name, tab) for tab in tabs(name))
    assert len(programs(name)) == len(re.findall("^ *```python$", text_of(name), re.M))


@pytest.mark.parametrize("program", programs("README.md"), ids=["PyTorch", "JAX", "NumPy"])
def test_programs_of_the_readme_run_alone(program, capsys):
    """Each prints what its comments say, in at most five lines."""
    exec(compile(program, "README.md", "exec"), {})
    said = re.findall(r"print\(.*\)  # (.*)", program)
    assert capsys.readouterr().out.splitlines() == said
    assert len([line for line in program.splitlines() if line]) <= 5
