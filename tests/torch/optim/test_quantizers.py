"""What OptimLP rounds with: numbers, names, modules, and functions, which get copies."""

import pytest
import torch
from support import assert_all_same_bits, assert_same_bits
from torch_optim_support import F, H, give_gradients, inner_with_acc, parameters, sgd, tensors_of, train

import qcore
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer, float_quantize


def test_quantizers_are_functions_modules_numbers_and_names():
    def function(x):
        return float_quantize(x, 5, 2, "nearest")

    results = []
    for quantizer in (function, Quantizer(F, forward_rounding="nearest"), F, "qpytorch8"):
        params = parameters()
        options = dict.fromkeys(("weight_quant", "grad_quant", "momentum_quant", "acc_quant"), quantizer)
        optimizer = OptimLP(sgd(params), **options)
        train(optimizer, params, range(2))
        results.append(tensors_of(optimizer, params))
    for result in results[1:]:
        assert_all_same_bits(result, results[0])


def test_none_of_them_is_the_inner_optimizer():
    params, plain = parameters(), parameters()
    train(optimizer := OptimLP(sgd(params), weight_quant=Quantizer()), params, range(3))
    train(inner := inner_with_acc(sgd(plain)), plain, range(3))
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(inner, plain))
    params = parameters()  # with accumulators that are not rounded, and weights that are theirs
    train(optimizer := OptimLP(sgd(params), acc_quant=lambda x: x), params, range(3))
    assert_all_same_bits(params, plain)
    assert_all_same_bits(list(optimizer.weight_acc.values()), plain)


def test_functions_get_copies():
    params = parameters()
    optimizer = OptimLP(sgd(params), weight_quant=lambda x: x.zero_(), acc_quant=H)
    train(optimizer, params, range(1))
    assert all(p.eq(0).all() for p in params)
    assert all(acc.ne(0).any() for acc in optimizer.weight_acc.values())


def test_gradients_are_scaled_with_and_without_a_quantizer():
    for grad_quant in (None, F, lambda x: float_quantize(x, 5, 2, "nearest")):
        params, plain = parameters(), parameters()
        give_gradients(params, 0)
        give_gradients(plain, 0)
        gradients = [p.grad for p in params]
        OptimLP(sgd(params), grad_scaling=0.25, grad_quant=grad_quant).step()
        for p, q, gradient in zip(params, plain, gradients, strict=True):
            expected = (q.grad / 4).numpy()
            expected = expected if grad_quant is None else qcore.quantize(expected, F, "nearest")
            assert_same_bits(p.grad, expected)
            assert p.grad is gradient  # as QPyTorch's users print it


def test_momenta_that_others_replace_or_write_are_rounded():
    results = []
    for replace in (True, False):
        params = parameters()
        optimizer = OptimLP(sgd(params), momentum_quant=F)
        train(optimizer, params, [0, 1])
        momentum = optimizer.state[params[0]]["momentum_buffer"]
        if replace:
            optimizer.state[params[0]]["momentum_buffer"] = momentum * 3 + 0.1
        else:
            momentum.mul_(3).add_(0.1)
        train(optimizer, params, [2])
        results.append(tensors_of(optimizer, params))
    assert_all_same_bits(*results)


@pytest.mark.parametrize("storage", [None, "codes"])
def test_a_number_without_dimensions_is_a_block(storage):
    found = []
    for shape in ((), (1,)):
        p = torch.nn.Parameter(torch.full(shape, 1.5))
        inner = torch.optim.SGD([p], lr=1.0, momentum=0.9)
        optimizer = OptimLP(
            inner, weight_quant="mxfp4", grad_quant="mxfp4", momentum_quant="nvfp4", state_storage=storage
        )
        for _ in range(3):
            p.grad = torch.full(shape, 0.7)
            optimizer.step()
        found.append(p.item())
    assert found[0] == found[1]
