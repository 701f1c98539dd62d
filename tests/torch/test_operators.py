"""Programs on disk hold operators by name: a process that imports qtorch and none of its rooms runs them all."""

import subprocess
import sys

import pytest
import torch

import qtorch
from qtorch.reproducible import log_softmax

RUN = """
import sys, torch, qtorch
folder = sys.argv[1]
for path, x, y in torch.load(f"{folder}/calls"):
    program = torch.export.load(f"{folder}/{path}.pt2")
    for one in (program.run_decompositions() if path == "product" else program, program):
        assert torch.equal(one.module()(x).view(torch.int32), y.view(torch.int32)), path
"""


class Scores(torch.nn.Module):
    def forward(self, x):
        return log_softmax(x, -1)


class Last(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


NAMES = "recurrent", "product", "round_delayed", "sums"


@pytest.mark.parametrize("names", [NAMES[:1], pytest.param(NAMES, marks=pytest.mark.heavy)], ids=["one", "all"])
def test_loaded_programs(names, tmp_path):
    """Of operators whose rooms come late; shapes are asked for before anything has run."""
    lstm = qtorch.quantization.quantize_dynamic(Last(torch.nn.LSTM(4, 3)), {torch.nn.LSTM})
    delayed = qtorch.quant.Quantizer("scaled(e4m3fn,{...:None},scale=float32,history=2)", forward_rounding="nearest")
    models = {
        "product": qtorch.linalg.Linear(4, 3, operands=("e4m3fn", "e4m3fn")),
        "recurrent": lstm,
        "round_delayed": delayed.eval(),
        "sums": Scores(),
    }
    x, calls = torch.randn(2, 5, 4), []
    for name in names:
        model = models[name]
        program = torch.export.export(model.eval(), (x,))
        assert f"torch.ops.qtorch.{name}." in program.graph_module.code
        torch.export.save(program, tmp_path / f"{name}.pt2")
        calls.append((name, x, model(x).detach()))
    torch.save(calls, tmp_path / "calls")
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], check=True)
