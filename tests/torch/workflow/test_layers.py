"""Every type of layer that convert knows, and the layers of torch that integers go through."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from qtorch.nn import intrinsic
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    QConfig,
    QuantStub,
    convert,
    default_dynamic_qconfig,
    float16_dynamic_qconfig,
    get_default_qconfig,
    get_default_static_quant_module_mappings,
    prepare,
    quantize_model,
)

IMAGE, VOLUME, ROW = (4, 4, 6, 6), (4, 4, 4, 4, 4), (4, 4, 9)
LAYERS = [
    (nn.Linear(6, 5), IMAGE),
    (nn.Conv1d(4, 3, 3, padding=1), ROW),
    (nn.Conv2d(4, 4, 3, stride=2, groups=2), IMAGE),
    (nn.Conv3d(4, 3, 2), VOLUME),
    (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), IMAGE),
    (
        intrinsic.ConvBnReLU2d(nn.Conv2d(4, 3, 3, padding=2, padding_mode="reflect"), nn.BatchNorm2d(3), nn.ReLU()),
        IMAGE,
    ),
    (intrinsic.LinearReLU(nn.Linear(6, 5), nn.ReLU()), IMAGE),
    (intrinsic.ConvReLU1d(nn.Conv1d(4, 3, 3), nn.ReLU()), ROW),
    (intrinsic.ConvReLU2d(nn.Conv2d(4, 3, 3), nn.ReLU()), IMAGE),
    (intrinsic.ConvReLU3d(nn.Conv3d(4, 3, 3), nn.ReLU()), VOLUME),
    (intrinsic.ConvBn2d(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3)), IMAGE),
    (intrinsic.ConvBnReLU1d(nn.Conv1d(4, 3, 3), nn.BatchNorm1d(3), nn.ReLU()), ROW),
    (intrinsic.BNReLU2d(nn.BatchNorm2d(4), nn.ReLU()), IMAGE),
    (intrinsic.BNReLU3d(nn.BatchNorm3d(4), nn.ReLU()), VOLUME),
    (nn.BatchNorm2d(4), IMAGE),
    (nn.BatchNorm3d(4), VOLUME),
    (nn.LayerNorm(6), IMAGE),
    (nn.GroupNorm(2, 4), IMAGE),
    (nn.InstanceNorm1d(4, affine=True), ROW),
    (nn.InstanceNorm2d(4, affine=True), IMAGE),
    (nn.InstanceNorm3d(4, affine=True), VOLUME),
    (nn.ELU(), IMAGE),
    (nn.Hardswish(), IMAGE),
    (nn.LeakyReLU(0.1), IMAGE),
    (nn.Sigmoid(), IMAGE),
]
THROUGH = [
    (nn.ReLU(), IMAGE),
    (nn.ReLU(inplace=True), IMAGE),
    (nn.ReLU6(), IMAGE),
    (nn.Hardtanh(), IMAGE),
    (nn.Identity(), IMAGE),
    (nn.Flatten(), IMAGE),
    (nn.Dropout(), IMAGE),
    (nn.MaxPool1d(2), ROW),
    (nn.MaxPool2d(3, 2, 1), IMAGE),
    (nn.AvgPool2d(2), IMAGE),
    (nn.AvgPool3d(2), VOLUME),
    (nn.AdaptiveAvgPool2d(1), IMAGE),
    (nn.AdaptiveAvgPool3d(2), VOLUME),
    (nn.Upsample(scale_factor=2), IMAGE),
]


def name(case):
    return type(case).__name__ if isinstance(case, nn.Module) else ""


@pytest.mark.parametrize(("layer", "shape"), [*LAYERS, *THROUGH], ids=name)
def test_a_layer_between_stubs(layer, shape):
    torch.manual_seed(0)
    model = nn.Sequential(QuantStub(), layer, DeQuantStub()).eval()
    model.qconfig = get_default_qconfig("qnnpack")
    prepared, x = prepare(model), torch.randn(shape)
    expected = prepared(x)
    converted = convert(prepared)
    result = converted(x)
    assert result.shape == expected.shape
    error = (result - expected).abs().max().item()
    assert error < 0.02 * (1 + expected.abs().max().item())
    swapped = type(converted[1]) is get_default_static_quant_module_mappings().get(type(layer))
    assert swapped == any(layer is one for one, _ in LAYERS)


RUN = """
import sys, torch
for place, (name, x, y) in enumerate(torch.load(f"{sys.argv[1]}/calls")):
    found = torch.jit.load(f"{sys.argv[1]}/{place}")(x)
    found = found[0] if isinstance(found, tuple) else found
    assert torch.equal(found.view(torch.int32), y.view(torch.int32)), name
assert "qtorch" not in sys.modules
"""


def traced(layer, shape):
    """A converted model of a layer, and its program of torch.jit.trace."""
    torch.manual_seed(0)
    model = nn.Sequential(QuantStub(), layer, DeQuantStub()).eval()
    model.qconfig = get_default_qconfig("qnnpack")
    prepared, x = prepare(model), torch.randn(shape)
    prepared(x)
    converted = convert(prepared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch names each size that the program keeps, and deprecates TorchScript
        return converted, torch.jit.trace(converted, x, check_trace=False)


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.add, self.mul, self.cat, self.fc = FloatFunctional(), FloatFunctional(), FloatFunctional(), nn.Linear(9, 9)

    def forward(self, x):
        y = self.fc(x)
        return self.cat.cat([self.add.add_relu(x, y), self.mul.mul(x, y)], 1)


class First(nn.Module):
    """The outputs of a recurrent layer, whose first axis is the batch."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


WORDS = torch.randint(0, 5, (4, 3), generator=torch.Generator().manual_seed(0))
MODELS = [
    *((layer, None, ROW) for layer in (nn.ConvTranspose1d(4, 3, 3), nn.PReLU(4), Sums())),
    (nn.ConvTranspose2d(4, 3, 3), None, IMAGE),
    (nn.ConvTranspose3d(4, 3, 2), None, VOLUME),
    (nn.TransformerEncoderLayer(9, 3, 6, batch_first=True), None, ROW),
    (nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), None, WORDS),
    (nn.Linear(9, 2), default_dynamic_qconfig, ROW),
    (nn.Linear(9, 2), QConfig("mxfp8_e4m3", "mxfp4"), ROW),
    (nn.Conv2d(4, 3, 3), QConfig(None, "e4m3fn"), IMAGE),
    (First(nn.LSTM(9, 3, batch_first=True)), default_dynamic_qconfig, ROW),
    (First(nn.GRU(9, 3, batch_first=True)), float16_dynamic_qconfig, ROW),
    (nn.LSTMCell(9, 3), default_dynamic_qconfig, (4, 9)),
    (nn.GRUCell(9, 3), default_dynamic_qconfig, (4, 9)),
    (nn.RNNCell(9, 3), default_dynamic_qconfig, (4, 9)),
]


def programs():
    """Converted models with their programs of torch.jit.trace, and an input of another batch."""
    for layer, shape in [*LAYERS, *THROUGH]:
        yield type(layer).__name__, *traced(layer, shape), torch.randn(7, *shape[1:])
    for model, qconfig, shape in MODELS:
        x = shape if isinstance(shape, torch.Tensor) else torch.randn(shape)
        data = {"calibrate": [x]} if qconfig is None else {}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = quantize_model(model.eval(), *([] if qconfig is None else [qconfig]), **data)
            program = torch.jit.trace(converted, x, check_trace=False)
            yield type(model).__name__, converted, program, torch.cat([x, x.flip(0)])


@pytest.mark.heavy
def test_traced_programs_run_without_qtorch(tmp_path):
    """Of all layers, with the bits of the model for another batch."""
    torch.manual_seed(0)
    calls = []
    for place, (name, converted, program, x) in enumerate(programs()):
        torch.jit.save(program, tmp_path / str(place))
        y = converted(x)
        calls.append((name, x, (y[0] if isinstance(y, tuple) else y).detach()))
    torch.save(calls, tmp_path / "calls")
    subprocess.run([sys.executable, "-W", "ignore", "-c", RUN, str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(2, 4), IMAGE),
        (nn.AdaptiveAvgPool2d(2), IMAGE),
        (nn.Upsample(scale_factor=2), IMAGE),
        (nn.Conv2d(4, 3, 3), IMAGE),
    ],
    ids=name,
)
def test_traced_programs_refuse_other_sizes(layer, shape):
    """They would count the elements of the trace."""
    converted, program = traced(layer, shape)
    larger = torch.randn(*shape[:-1], 2 * shape[-1])
    assert converted(larger).shape[0] == shape[0]
    with pytest.raises(RuntimeError, match="expand"):
        program(larger)


class Moved(nn.Module):
    """Reads the batch as something else."""

    def __init__(self, move):
        super().__init__()
        self.move = move

    def forward(self, x):
        return self.move(x)


@pytest.mark.parametrize(
    ("move", "is_free"),
    [
        (lambda q: q.mean(0), False),
        (lambda q: q.mean(1), True),
        (lambda q: q.permute(1, 0, 2).mean(1), False),
        (lambda q: q.reshape(q.shape[0], -1), True),
        (lambda q: q.reshape(-1, 9), True),
        (lambda q: nn.functional.adaptive_avg_pool2d(q.permute(1, 2, 0)[None], 2), False),
    ],
)
def test_traced_programs_take_any_batch_that_stays_first(move, is_free):
    model = nn.Sequential(QuantStub(), DeQuantStub()).eval()
    model.qconfig = get_default_qconfig("qnnpack")
    prepared, x = prepare(model), torch.randn(ROW)
    prepared(x)
    converted = convert(prepared)
    converted.insert(1, Moved(move))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.jit.trace(converted, x, check_trace=False)
    assert torch.equal(program(-x).view(torch.int32), converted(-x).view(torch.int32))
    more = torch.randn(6, *ROW[1:])
    if is_free:
        assert torch.equal(program(more).view(torch.int32), converted(more).view(torch.int32))
    else:
        with pytest.raises(RuntimeError, match="expand"):
            program(more)


def test_script_names_the_alternatives():
    converted, _ = traced(nn.Linear(6, 5), IMAGE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"torch\.jit\.script of a Quantize; allowed are torch\.export"):
            torch.jit.script(converted)
