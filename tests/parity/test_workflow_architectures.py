"""Networks that are trained with fake quantization, saved and exported."""

import copy
import io

import numpy as np
import pytest
import torch
from carrying_support import calibrated, jax_calls, torch_calls
from covering import usually
from module_packages import Flax, Torch
from networks import NETWORKS
from support import assert_same_bits

import qtorch.quantization as tq

NETS = ["ShuffleNet", "U-Net"]


def batch(name):
    return NETWORKS[name].inputs(8)


def floats_of(name):
    """In PyTorch, with statistics as of some training."""
    torch.manual_seed(1)
    model = NETWORKS[name].make(Torch)()
    for _ in range(3):
        model(torch.from_numpy(batch(name)))
    return model.eval()


@pytest.mark.parametrize("name", usually(("U-Net",), NETS))
def test_copies_files_and_exports(name):
    """All have the bits of the converted model; nothing between the stubs is in floats."""
    floats, settings = floats_of(name), tq.get_default_qconfig("fbgemm")
    fused = tq.fuse_modules(floats, floats.rows)
    small, x = tq.convert(calibrated(fused, settings, batch(name))), torch.from_numpy(batch(name))
    expected = small(x)
    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    loaded = tq.load_converted(fused, torch.load(file, weights_only=True))
    exported = torch.export.export(small, (x,)).module()
    for model in (copy.deepcopy(small), loaded, exported):
        assert_same_bits(model(x), expected)
    assert not [row.path for row in tq.report(small) if row.state == "float" and row.name not in ("Identity",)]


def numbers(argument):
    """What a layer in floats gets for what one in integers got."""
    if isinstance(argument, (list, tuple)):
        return [numbers(one) for one in argument]
    return argument.dequantize() if hasattr(argument, "q_scale") else argument


@pytest.mark.heavy
@pytest.mark.parametrize("of", [Torch, Flax])
@pytest.mark.parametrize("name", ["digits", "paddings", *NETS])
def test_trained_networks(of, name):
    """Each layer, given the same integers, is within one step of what it was trained for, and so is the result."""
    network, settings = NETWORKS[name], of.package.get_default_qat_qconfig("fbgemm")
    model = of.made(network.make(of))
    rows = [row for row in model.rows if row[0] != "up"]  # whose batch norm is folded in evaluation only
    model.train()
    prepared = of.prepared(of.fuse_modules(model, rows), settings, True)
    x = network.inputs(16)
    losses = [of.step(prepared, of.images(x)) for _ in range(2)]
    assert losses[-1] < losses[0]
    prepared.eval()
    simulated = of.numbers(of.run(prepared, of.images(x)))
    again = of.numbers(of.run(prepared, of.images(x)))
    assert_same_bits(again, simulated)  # evaluation moves no range
    made = of.convert(prepared)
    calls, y = torch_calls(made, x) if of is Torch else jax_calls(made, of.images(x))
    step = of.report(made)[[*calls][-1]].scale
    few = 3 * step * np.sqrt(y.size if of is Flax else y.numel())  # of a result that covers a small part of its range
    assert np.linalg.norm(of.numbers(y) - simulated) < max(0.1 * np.linalg.norm(simulated), few)
    assert len(calls) >= 4
    for path, (method, arguments, result) in calls.items():
        layer = of.module(prepared, path)
        expected = getattr(layer, method)(*map(numbers, arguments))
        apart = of.numbers(expected - result.dequantize()) / float(result.q_scale())
        assert np.abs(apart).max() <= 1.001, path
        assert of.report(prepared)[path].scale == of.report(made)[path].scale
        if hasattr(layer, "weight_fake_quant"):
            fake, weight = layer.weight_fake_quant, of.module(made, path).weight()
            assert_same_bits(weight.qparams.scale, fake.scale if of is Torch else fake.qparams().scale)
        assert len(np.unique(of.numbers(result.int_repr()))) > 8, path
