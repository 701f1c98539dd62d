"""report: what is quantized, to what, with which scale, and what is in floats and why."""

import copy
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn
from workflow_support import ROWS, Residual, digits, with_qconfig

from qtorch.quantization import (
    convert,
    default_qat_qconfig,
    default_qconfig,
    fuse_modules,
    get_default_qconfig,
    prepare,
    prepare_qat,
    propagate_qconfig_,
    quantize_model,
    report,
)


def test_a_model_at_each_step():
    model = with_qconfig(fuse_modules(Residual().eval(), ROWS), get_default_qconfig("fbgemm"))
    model.fc.qconfig = None
    prepared = prepare(model)
    assert report(prepared)["conv1"].reason == "it has seen nothing yet"
    prepared(digits()[0][:64])
    rows = report(prepared)
    assert [row.path for row in rows] == ["quant", "dequant", "conv1", "conv2", "add", "pool", "fc"]
    conv = rows["conv1"]
    assert (conv.layer, conv.state, conv.observer) == ("ConvReLU2d", "observed", "HistogramObserver")
    assert (conv.weight, conv.output) == ("affine(-128,127) per channel", "affine(0,127)")
    assert rows["fc"].reason == "its qconfig is None"
    assert (rows["pool"].state, rows["pool"].reason) == ("passing", "its result has the scale of its input")
    converted = report(convert(prepared))
    made = converted["conv1"]
    assert (made.state, made.observer, made.weight) == ("quantized", "HistogramObserver", conv.weight)
    assert (made.scale, made.zero_point) == (conv.scale, conv.zero_point)
    assert converted["fc"].state == "float"
    assert converted["fc"].reason == "its qconfig is None"
    assert report(model)["conv1"].reason == "it has no qconfig"
    propagate_qconfig_(model)
    assert report(model)["conv1"].reason == "it is not prepared"


def test_why_layers_are_in_floats():
    model = nn.ModuleDict({"linear": nn.Linear(2, 2), "tanh": nn.Tanh()})
    model["attention"] = nn.MultiheadAttention(2, 1)
    assert {row.reason for row in report(model)} == {"it has no qconfig"}
    rows = report(prepare(with_qconfig(model, default_qconfig)))
    assert rows["tanh"].reason == "there is no quantized Tanh"
    assert rows["attention"].reason.startswith("attention is not quantized: nn.Linear layers")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_fits_the_terminal(width, monkeypatch):
    """No line is longer, in rich no more than in print, and no cell is lost."""
    monkeypatch.setenv("COLUMNS", str(width))
    layers = OrderedDict(attention_norm=nn.LayerNorm(4), query_projection=nn.Linear(4, 4), own=nn.Bilinear(2, 2, 2))
    layers["own"].forward = lambda x: x
    inner = nn.Sequential(nn.Sequential(layers))
    model = nn.Sequential(OrderedDict(encoder_with_a_name_that_is_longer_than_a_line=inner)).eval()
    with pytest.warns(UserWarning, match="there is no quantized Bilinear"):
        small = quantize_model(model, calibrate=[torch.randn(3, 4)])
    found = report(small)
    text = str(found)
    assert max(map(len, text.splitlines())) <= width
    console = pytest.importorskip("rich.console").Console(width=width)
    with console.capture() as capture:
        console.print(found)
    assert [line.rstrip() for line in capture.get().splitlines()] == text.splitlines()
    words = "".join(text.split())
    for layer in found:
        cells = layer.path, layer.layer, layer.state, layer.weight, layer.output, layer.observer, layer.reason
        assert all("".join(cell.split()) in words for cell in cells)
        assert layer.scale is None or f"{layer.scale:.6g}" in words


def test_it_prints(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    model = with_qconfig(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), default_qconfig)
    prepared = prepare(model)
    prepared(torch.ones(1, 2))
    text = str(report(prepared))
    assert [line.split()[0] for line in text.splitlines()] == ["path", "0", "1"]
    assert "MinMaxObserver" in text
    console = pytest.importorskip("rich.console").Console(width=250)
    with console.capture() as capture:
        console.print(report(prepared))
    assert "MinMaxObserver" in capture.get()
    assert "(model)" in str(report(nn.Linear(1, 1)))


@pytest.mark.heavy
def test_rich_is_imported_when_a_table_is_asked_for():
    code = "import sys, torch, qtorch.quantization as q; str(q.report(torch.nn.ReLU())); print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_reports_do_not_touch_the_model():
    model = prepare_qat(with_qconfig(nn.Sequential(nn.Linear(2, 2)), default_qat_qconfig))
    model(torch.randn(4, 2))
    before = copy.deepcopy(model.state_dict())
    report(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
