"""DistributedDataParallel over two processes: the bits of one process that steps on the mean of their gradients."""

import os

import pytest
from processes import run_processes

IMPORTS = """
import torch
from torch.nn.parallel import DistributedDataParallel

from qtorch import FloatingPoint
from qtorch.recipes import lower
from qtorch.recipes.layers import is_lowered
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer
"""

PROGRAM = """
low, high = FloatingPoint(5, 2), FloatingPoint(6, 9)


def make():
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3)
    model = lower(torch.nn.Sequential(*layers), ["linear", "activation"], low, low)
    assert [is_lowered(layer) for layer in model] == [True] * 3
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    quantizers = [Quantizer(low), 0.5, Quantizer(low), Quantizer(high), Quantizer(high)]
    return model, OptimLP(inner, *quantizers, key=7)


def backward(model, step, part):
    data = torch.Generator().manual_seed(2 * step + part)
    torch.manual_seed(100 * step + part)  # where stochastic layers draw their keys from
    model(torch.randn(8, 6, generator=data)).square().mean().backward()


def tensors_of(optimizer):
    for p, accumulator in optimizer.weight_acc.items():
        yield from (p.detach(), p.grad, accumulator, optimizer.state[p]["momentum_buffer"])


for as_views in (False, True):
    model, optimizer = make()
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=as_views)
    alone, expected = make()
    for step in range(4):
        optimizer.zero_grad()
        backward(parallel, step, rank)
        optimizer.step()
        expected.zero_grad()
        gradients = []
        for part in range(2):
            alone.zero_grad()
            backward(alone, step, part)
            gradients.append([p.grad / 2 for p in alone.parameters()])
        for p, *parts in zip(alone.parameters(), *gradients, strict=True):
            p.grad = sum(parts)
        expected.step()
        pairs = list(zip(tensors_of(optimizer), tensors_of(expected), strict=True))
        assert len(pairs) == 16
        for i, (x, y) in enumerate(pairs):
            assert torch.equal(x.view(torch.int32), y.view(torch.int32)), (as_views, step, i)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_the_bits_of_one_process(tmp_path):
    run_processes(IMPORTS, PROGRAM, 2, tmp_path / "store")
