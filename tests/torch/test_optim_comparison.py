"""What tells whether others have written to the weights."""

import pytest
import torch

from qtorch.optim import comparison
from qtorch.optim.comparison import same_bits
from qtorch.optim.many import lie_apart


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


def test_what_lies_apart():
    x, y = torch.randn(6, 6), torch.randn(6)
    assert lie_apart([x, y])
    assert not lie_apart([x, x])
    assert not lie_apart([x, x.view(-1)])
    assert not lie_apart([x.view(-1)[:10], x.view(-1)[5:15]])
    assert lie_apart([x.view(-1)[10:], x.view(-1)[:10]])
    assert not lie_apart([x, y.double()])
    assert not lie_apart([x.t(), y])
    assert not lie_apart([y, x[:, 0]])
    assert not lie_apart([y, torch.empty(6, device="meta")])
    assert not lie_apart([y, torch._neg_view(x)])
    assert not lie_apart([y, torch._efficientzerotensor(6)])
    assert not lie_apart([y, torch.randn(6).to_sparse()])
