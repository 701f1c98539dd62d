"""The README's program runs, and its commands are those that CI and contributors use."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_programs_run():
    names = {}
    for program in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
        exec(compile(program, "README.md", "exec"), names)
    assert {"codes", "qjax", "x"} <= names.keys()


def test_the_test_command_is_found_by_ci():
    commands = re.findall(r"^python3 -m venv .*pytest$", (ROOT / "README.md").read_text(), re.M)
    assert len(commands) == 1
    assert commands[0] in (ROOT / "CONTRIBUTING.md").read_text()
