"""All programs of the README and of the pages in docs run, from the first one of a page to its last."""

import sys
from types import ModuleType

import pytest
from documents import NAMES, programs


@pytest.mark.parametrize("name", [name for name in NAMES if programs(name) and not name.endswith(".ipynb")])
def test_the_programs_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("program_of_a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where pickle finds a page's classes
    for program in programs(name):
        exec(compile(program, name, "exec"), vars(module))
