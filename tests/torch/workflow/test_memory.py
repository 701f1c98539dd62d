"""What converted models take: bytes in memory and on disk, beside the weights in float32."""

import io

import pytest
import torch
from record_torch_ao import Recurrent
from torch import nn
from workflow_support import with_qconfig

from qcore import parse
from qcore.affine import AffineInteger
from qtorch.nn.rounded import CodedWeight
from qtorch.quantization import (
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigDynamic,
    QuantWrapper,
    convert,
    prepare,
    quantize_dynamic,
)


def cnn():
    torch.manual_seed(0)
    return QuantWrapper(
        nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(1024, 256))
    ).eval()


def in_memory(model):
    """Bytes of all storages that the tensors of a model's modules keep, whatever their names."""
    storages = {}
    for module in model.modules():
        for value in (*vars(module).values(), *module._parameters.values(), *module._buffers.values()):
            if isinstance(value, torch.Tensor):
                storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(storages.values())


def on_disk(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return len(file.getvalue())


def weight(bits):
    return PerChannelMinMaxObserver.with_args(dtype=AffineInteger.of_width(bits), qscheme="symmetric")


@pytest.mark.parametrize(("bits", "share"), [(2, 1 / 8), (3, 1 / 8), (4, 1 / 8), (8, 1 / 4), (12, 1 / 2)])
def test_calibrated_weights_take_their_width(bits, share):
    """Up to 4 bits two share a byte, in convolutions of 3 columns too; 5 to 8 take one byte, others two."""
    model = cnn()
    prepared = prepare(with_qconfig(model, QConfig(MinMaxObserver, weight(bits))))
    prepared(torch.randn(8, 16, 8, 8))
    result = convert(prepared)
    numbers = sum(value.numel() for value in model.parameters() if value.dim() > 1)
    rest = sum(4 * value.numel() for value in model.parameters() if value.dim() == 1) * 3  # biases, scales, zero points
    for measure in (in_memory, on_disk):
        assert 4 * numbers <= measure(model)
        assert 4 * numbers * share <= measure(result) <= 4 * numbers * share + rest + 8000, measure


@pytest.mark.parametrize(("bits", "share"), [(4, 1 / 8), (8, 1 / 4)])
def test_dynamic_weights_take_their_width(bits, share):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LSTM(64, 128, 2), nn.Identity())
    small = quantize_dynamic(model, {nn.LSTM: QConfigDynamic(weight=weight(bits))})
    numbers = sum(value.numel() for value in model.parameters() if value.dim() > 1)
    for measure in (in_memory, on_disk):
        assert 4 * numbers * share <= measure(small) <= 4 * numbers * share + 40000
    assert in_memory(quantize_dynamic(Recurrent(), dtype=torch.float16)) < 0.6 * in_memory(Recurrent())


def test_packed_weights_are_those_that_were_quantized():
    layer = with_qconfig(nn.Conv2d(3, 5, 3), QConfig(MinMaxObserver, weight(4)))
    prepared = prepare(layer)
    prepared(torch.randn(1, 3, 5, 5))
    packed = convert(prepared).weight
    observer = weight(4)()
    observer(layer.weight)
    scale = observer.calculate_qparams()[0].reshape(-1, 1, 1, 1)
    expected = (layer.weight * (1 / scale)).round().clamp(-8, 7)
    assert packed.packed.shape == (5, 14)
    assert torch.equal(packed().int_repr().float(), expected)


@pytest.mark.parametrize("number", ["mx6", "e3m2fn", "nvfp4"])
def test_codes_are_no_part_of_a_larger_tensor(number):
    """As safetensors wants them, which refuses views of torch's and writes other bytes for NumPy's."""
    weight = CodedWeight(torch.randn(5, 45), parse(number))
    for one in weight.state_dict().values():
        assert one.is_contiguous()
        assert one.untyped_storage().nbytes() == one.nbytes
