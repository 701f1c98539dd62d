"""The document's C is what is generated, and its files are there."""

import re
from pathlib import Path

import torch

from qcore import FloatingPoint
from qtorch._kernels import laws
from qtorch._rounding.plan import make_plan

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "how-it-works.md").read_text()


def test_the_excerpt_is_generated():
    plan = make_plan(FloatingPoint(5, 2), "nearest", torch.float32, None, False)
    source = laws.rounding_kernel(plan.program, "flat").source().rpartition("FOR_RUNS {")[2]
    generated = [line.strip() for line in source.splitlines()]
    (excerpt,) = re.findall(r"```c\n(.*?)```", TEXT, re.S)
    lines = [line.partition("//")[0].strip() for line in excerpt.splitlines()]
    assert len(lines) == 10
    assert [line for line in generated if line in lines] == lines


def test_the_files_exist():
    paths = set(re.findall(r"`((?:qcore|qtorch|qjax|tests)/[\w/.]+\.\w+)`", TEXT))
    assert len(paths) > 15
    assert not [path for path in paths if not (ROOT / path).exists()]
