"""The program of docs/workflow.md runs."""

import re
from pathlib import Path

from qtorch.nn.intrinsic import quantized


def test_the_program_runs(capsys):
    text = (Path(__file__).parents[3] / "docs/workflow.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names = {}
    exec(compile(program, "docs/workflow.md", "exec"), names)
    assert type(names["converted"].module[0]) is quantized.ConvReLU2d
    assert "module.4" in capsys.readouterr().out
