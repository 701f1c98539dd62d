"""What tells whether others have written to the weights."""

import pytest
import torch
from support import assert_same_bits

from qtorch import quantize
from qtorch.optim import OptimLP, comparison
from qtorch.optim.comparison import same_bits
from qtorch.optim.many import lie_apart, overlap


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 7, 20_000, 20_002, 300_001])
def test_a_bit_anywhere_tells(size, dtype):
    x = torch.randn(size).to(dtype)
    x[::7] = torch.nan
    x[1::7] = 0.0
    assert same_bits(x, x.clone())
    for place in {0, 1, size // 2, size - 1} & set(range(size)):
        y = x.clone()
        y[place] = -y[place] if y[place] == 0 else 3.5
        assert not same_bits(x, y)
        assert not same_bits(y, x)


def test_large_tensors_are_compared_by_a_kernel(monkeypatch):
    x, y = torch.randn(1 << 16), torch.zeros(1 << 16)
    monkeypatch.setattr(torch, "equal", None)
    assert same_bits(x, x.clone())
    assert not same_bits(x, y)
    assert not same_bits(x.view(256, 256), y.view(256, 256))


def test_without_a_kernel_and_in_other_orders(monkeypatch):
    x = torch.randn(256, 256)
    y = x.clone()
    y[255, 255] = -0.0
    assert same_bits(x.t(), x.clone().t())
    assert not same_bits(x.t(), y.t())
    monkeypatch.setattr(comparison, "_load", lambda: None)
    assert same_bits(x, x.clone())
    assert not same_bits(x, y)


def test_gradients_that_overlap_are_scaled_once():
    room = torch.arange(1.0, 17)
    params = [torch.nn.Parameter(torch.zeros(10)) for _ in range(2)]
    params[0].grad, params[1].grad = room[:10], room[5:15]
    assert overlap([params[0].grad, params[1].grad])
    assert not overlap([room[10:], room[:10]])
    OptimLP(torch.optim.SGD(params, lr=0.1), grad_quant="e5m2", grad_scaling=0.5).step()
    assert_same_bits(room[:15], quantize(torch.arange(1.0, 16) / 2, "e5m2", "nearest"))


def test_what_lies_apart():
    x, y = torch.randn(6, 6), torch.randn(6)
    assert lie_apart([x, y])
    assert not lie_apart([x, x])
    assert not lie_apart([x, x.view(-1)])
    assert not lie_apart([x, y.double()])
    assert not lie_apart([x.t(), y])
    assert not lie_apart([y, x[:, 0]])
    assert not lie_apart([y, torch.empty(6, device="meta")])
    assert not lie_apart([y, torch._neg_view(x)])
    assert not lie_apart([y, torch._efficientzerotensor(6)])
    assert not lie_apart([y, torch.randn(6).to_sparse()])
