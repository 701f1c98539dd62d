"""All programs of the README and of the pages and notebooks in docs run, from the first one of a page to its last."""

import pytest
from documents import NAMES, programs

# What a page leaves out.
BEFORE = {
    "docs/products.md": "import numpy as np; import torch\nx, w = torch.ones(2, 64), torch.ones(3, 64)\n",
    "docs/recipes.md": (
        "import torch; import qjax, qtorch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(2, 2)); model.add_module('head', torch.nn.Linear(2, 2))\n"
        "fn = lambda w, x: x @ w\n"
    ),
}


@pytest.mark.parametrize("name", [name for name in NAMES if programs(name)])
def test_the_programs_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for program in (BEFORE.get(name, ""), *programs(name)):
        exec(compile(program, name, "exec"), names)
