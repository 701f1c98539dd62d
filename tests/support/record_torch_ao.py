"""Writes tests/torch/workflow/recorded: state_dicts of torch.ao's models, inputs and outputs.

Run by a Python whose torch has torch.ao: `python tests/support/record_torch_ao.py`.
"""

import copy
import warnings
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).parent.parent / "torch" / "workflow" / "recorded"
ROWS = [["conv", "bn", "relu"]]


class Net(nn.Module):
    """A convolution with batch norm, a sum, and a linear layer."""

    def __init__(self, functional, quant, dequant):
        super().__init__()
        self.quant, self.dequant, self.add = quant(), dequant(), functional()
        self.conv, self.bn, self.relu = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.side, self.fc = nn.Conv2d(1, 4, 1, bias=False), nn.Linear(64, 5)

    def forward(self, x):
        x = self.quant(x)
        x = self.add.add(self.relu(self.bn(self.conv(x))), self.side(x))
        return self.dequant(self.fc(torch.flatten(x, 1)))


class Recurrent(nn.Module):
    """Recurrent layers in a row, and cells."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 3, 2, bidirectional=True), nn.GRU(6, 4)
        self.cells = nn.ModuleDict({"lstm": nn.LSTMCell(4, 4), "gru": nn.GRUCell(4, 4), "rnn": nn.RNNCell(4, 4)})

    def forward(self, x):
        x = self.gru(self.lstm(x)[0])[0]
        x = torch.stack([self.cells["lstm"](one)[0] for one in x])
        return self.cells["rnn"](self.cells["gru"](x[-1]))


def record():
    import torch.ao.quantization as ao

    torch.manual_seed(0)
    torch.backends.quantized.engine = "fbgemm"
    x = torch.randn(8, 1, 4, 4)
    net = Net(torch.ao.nn.quantized.FloatFunctional, ao.QuantStub, ao.DeQuantStub)
    for _ in range(4):
        net(x)
    files = {}
    for backend in ("fbgemm", "qnnpack"):
        fused = ao.fuse_modules(copy.deepcopy(net).eval(), ROWS)
        fused.qconfig = ao.get_default_qconfig(backend)
        prepared = ao.prepare(fused)
        prepared(x)
        converted = ao.convert(prepared)
        if backend == "qnnpack":
            files["prepared"] = prepared.state_dict(), prepared(x)
        files[f"quantized_{backend}"] = converted.state_dict(), converted(x)
    trained = ao.fuse_modules_qat(copy.deepcopy(net).train(), ROWS)
    trained.qconfig = ao.get_default_qat_qconfig("fbgemm", version=0)
    trained = ao.prepare_qat(trained)
    for _ in range(3):
        trained(x)
    trained.eval().apply(ao.disable_observer)
    files["qat"] = trained.state_dict(), trained(x)
    head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))
    flat = x.flatten(1)
    for name, dtype in (("int8", torch.qint8), ("float16", torch.float16)):
        small = ao.quantize_dynamic(head, {nn.Linear}, dtype)
        files[f"dynamic_{name}"] = small.state_dict(), small(flat)
    torch.manual_seed(1)
    rows = torch.randn(5, 3, 4)
    for name, dtype in (("int8", torch.qint8), ("float16", torch.float16)):
        small = ao.quantize_dynamic(Recurrent(), None, dtype)
        files[f"recurrent_{name}"] = small.state_dict(), small(rows), rows
    for name, (state, result, *others) in files.items():
        saved = {"state": dict(state), "input": others[0] if others else x, "output": result.detach()}
        torch.save(saved, FOLDER / f"{name}.pt")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record()
