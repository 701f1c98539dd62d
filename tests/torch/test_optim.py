"""OptimLP against steps written out by hand; what it keeps, saves and leaves alone; many tensors in few calls."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from support import assert_same_bits, bits, to_torch

import qcore
import qtorch.optim.many
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Quantization
from qtorch.optim import OptimLP
from qtorch.optim.many import quantize_many
from qtorch.quant import Quantizer, float_quantize

F, H, FIXED = FloatingPoint(5, 2), FloatingPoint(6, 9), FixedPoint(8, 4)
KEY = 7
SHAPES = [(4, 3, 3, 3), (4,), (), (5, 4), (1,), (300, 300)]  # the last is rounded by itself


def parameters(shapes=SHAPES, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def give_gradients(params, step):
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def sgd(params, **options):
    return torch.optim.SGD(params, **{"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3} | options)


def train(optimizer, params, steps):
    for step in steps:
        give_gradients(params, step)
        optimizer.step()


def tensors_of(optimizer, params):
    """All that a step changes."""
    found = [p.detach().clone() for p in params] + [p.grad.clone() for p in params if p.grad is not None]
    for p in params:
        found += [value.clone() for _, value in sorted(optimizer.state.get(p, {}).items()) if torch.is_tensor(value)]
        found += [optimizer.weight_acc[p].clone()] if optimizer.weight_acc else []
    return found


def assert_all_same_bits(actual, expected):
    assert len(actual) == len(expected)
    for i, (x, y) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(x, y, f"tensor {i}")


def by_numpy(x, number, role, j, step_key, mode="stochastic"):
    """The law of keys, in NumPy."""
    key = qcore.fold_in(qcore.fold_in(step_key, role), j) if mode == "stochastic" else None
    return to_torch(qcore.quantize(x.detach().numpy(), number, mode, key=key)).view(x.shape)


def quantizer_for(number, mode):
    return Quantizer(forward_number=number, forward_rounding=mode)


# The definition


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("accumulate", [True, False])
def test_a_step_is_what_the_laws_say(accumulate, mode):
    params, by_hand = parameters(), parameters()
    inner = sgd(by_hand)
    accumulators = [p.detach().clone() for p in by_hand]
    options = {name: quantizer_for(number, mode) for name, number in (("grad_quant", F), ("momentum_quant", H))}
    options |= {"weight_quant": quantizer_for(FIXED, mode), "acc_quant": quantizer_for(H, mode) if accumulate else None}
    optimizer = OptimLP(sgd(params), **options, grad_scaling=1 / 3, key=KEY)
    for step in range(3):
        key = qcore.fold_in(KEY, step)
        give_gradients(params, step)
        give_gradients(by_hand, step)
        optimizer.step()
        with torch.no_grad():
            for j, p in enumerate(by_hand):
                p.grad = by_numpy(p.grad * (1 / 3), F, 0, j, key, mode)
                if accumulate:
                    p.copy_(accumulators[j])
            inner.step()
            for j, p in enumerate(by_hand):
                if accumulate:
                    accumulators[j] = by_numpy(p, H, 1, j, key, mode)
                    p.copy_(accumulators[j])
                p.copy_(by_numpy(p, FIXED, 2, j, key, mode))
                momentum = inner.state[p]["momentum_buffer"]
                momentum.copy_(by_numpy(momentum, H, 3, j, key, mode))
        assert_all_same_bits([p.grad for p in params], [p.grad for p in by_hand])
        assert_all_same_bits(params, by_hand)
        for p, q in zip(params, by_hand, strict=True):
            assert_same_bits(optimizer.state[p]["momentum_buffer"], inner.state[q]["momentum_buffer"])
        if accumulate:
            assert_all_same_bits([optimizer.weight_acc[p] for p in params], accumulators)
    assert optimizer.steps == 3


OPTIMIZERS = {
    "SGD nesterov foreach": lambda ps: sgd(ps, nesterov=True, foreach=True),
    "SGD fused": lambda ps: sgd(ps, fused=True),
    "SGD plain": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "Adam amsgrad": lambda ps: torch.optim.Adam(ps, amsgrad=True),
    "Adam foreach": lambda ps: torch.optim.Adam(ps, foreach=True),
    "Adam fused": lambda ps: torch.optim.Adam(ps, fused=True),
    "AdamW": lambda ps: torch.optim.AdamW(ps),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, centered=True, momentum=0.5),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps),
    "Adadelta": lambda ps: torch.optim.Adadelta(ps),
    "Adamax": lambda ps: torch.optim.Adamax(ps),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps),
    "NAdam": lambda ps: torch.optim.NAdam(ps),
    "RAdam": lambda ps: torch.optim.RAdam(ps),
    "Rprop": lambda ps: torch.optim.Rprop(ps),
    "ASGD": lambda ps: torch.optim.ASGD(ps),
}
MOMENTA = {
    "SGD nesterov foreach": {"momentum_buffer"},
    "SGD fused": {"momentum_buffer"},
    "SGD plain": set(),
    "Adam amsgrad": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "Adam foreach": {"exp_avg", "exp_avg_sq"},
    "Adam fused": {"exp_avg", "exp_avg_sq"},
    "AdamW": {"exp_avg", "exp_avg_sq"},
    "RMSprop": {"grad_avg", "momentum_buffer", "square_avg"},
    "Adagrad": {"sum"},
    "Adadelta": {"acc_delta", "square_avg"},
    "Adamax": {"exp_avg", "exp_inf"},
    "Adafactor": {"col_var", "row_var", "variance"},
    "NAdam": {"exp_avg", "exp_avg_sq"},
    "RAdam": {"exp_avg", "exp_avg_sq"},
    "Rprop": {"prev", "step_size"},
    "ASGD": {"ax"},
}


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_keeps_its_momenta_in_low_precision(name, mode):
    shapes = [(3, 4), (5,), ()]
    params, by_hand = parameters(shapes), parameters(shapes)
    optimizer = OptimLP(OPTIMIZERS[name](params), momentum_quant=quantizer_for(H, mode), key=KEY)
    inner = OPTIMIZERS[name](by_hand)
    for step in range(3):
        give_gradients(params, step)
        give_gradients(by_hand, step)
        optimizer.step()
        inner.step()
        key = qcore.fold_in(KEY, step)
        for j, p in enumerate(by_hand):
            momenta = sorted(MOMENTA[name] & inner.state[p].keys())
            for i, momentum in enumerate(momenta):
                rounded = by_numpy(inner.state[p][momentum], H, 3 + i, j, key, mode)
                inner.state[p][momentum].copy_(rounded)
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(inner_with_acc(inner), by_hand))


def inner_with_acc(inner):
    inner.weight_acc = {}
    return inner


def test_muon_and_sparse_adam():
    params = parameters([(4, 3)])
    optimizer = OptimLP(torch.optim.Muon(params), weight_quant=F, momentum_quant=F)
    train(optimizer, params, range(2))
    for x in (params[0], optimizer.state[params[0]]["momentum_buffer"]):
        assert_same_bits(x, to_torch(qcore.quantize(x.detach().numpy(), F, "nearest")))

    embedding = torch.nn.Embedding(6, 3, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = OptimLP(torch.optim.SparseAdam(embedding.parameters()), grad_quant=F, grad_scaling=0.5, weight_quant=H)
    (embedding(torch.tensor([4, 1, 4])) * 0.7).sum().backward()
    optimizer.step()
    gradient = embedding.weight.grad
    assert gradient.is_sparse
    assert_same_bits(gradient.coalesce().indices(), torch.tensor([[1, 4]]))
    summed = torch.tensor([[0.7] * 3, [0.7 + 0.7] * 3]) * 0.5
    assert_same_bits(gradient.coalesce().values(), to_torch(qcore.quantize(summed.numpy(), F, "nearest")))
    assert_same_bits(embedding.weight[0], to_torch(qcore.quantize(before[0].numpy(), H, "nearest")))
