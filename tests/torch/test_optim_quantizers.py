"""What OptimLP rounds with: any quantizer, on copies, and many tensors in few calls with the bits of one call each."""

import copy

import pytest
import torch
from support import assert_all_same_bits, assert_same_bits, to_torch
from torch_optim_support import F, H, give_gradients, inner_with_acc, parameters, sgd, tensors_of, train

import qcore
import qtorch.optim.many
from qcore import BlockFloatingPoint, Quantization
from qtorch.optim import OptimLP
from qtorch.optim.many import quantize_many
from qtorch.quant import Quantizer, float_quantize

# Many tensors in few calls


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("number", [F, BlockFloatingPoint(4)], ids=str)
def test_many_tensors_have_the_bits_of_one_call_each(number, mode):
    tensors = [p.detach() for p in parameters()] + [torch.empty(0, 3), torch.tensor([-0.0, float("nan"), 1e-45])]
    tensors += [torch.randn(6, 4).T, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    tensors += [torch.randn(70).double(), torch.randn(7, 2).double()]
    tensors += [torch.randn(8).bfloat16(), torch.randn(7, 2).bfloat16()] if mode == "nearest" else []
    keys = torch.arange(2 * len(tensors), dtype=torch.int32).view(-1, 2) if mode == "stochastic" else None
    results = quantize_many(tensors, Quantization(number, forward_rounding=mode), keys)
    assert len(results) == len(tensors)
    for i, (x, y) in enumerate(zip(tensors, results, strict=True)):
        expected = qtorch.quantize(x, number, mode, key=None if keys is None else keys[i])
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        assert_same_bits(y, expected)


def test_blocks_do_not_run_into_each_other():
    tensors = [torch.tensor([[1.0, 0.01], [100.0, 1.0]]), torch.tensor([[1e-3, 1e-4]])]
    number = BlockFloatingPoint(4)
    for x, y in zip(tensors, quantize_many(tensors, Quantization(number, forward_rounding="nearest")), strict=True):
        assert_same_bits(y, to_torch(qcore.quantize(x.numpy(), number, "nearest")))


@pytest.mark.parametrize("without", [None, 3], ids=["all", "one without a gradient"])
def test_many_small_parameters_take_few_calls(without, monkeypatch):
    calls = []
    for name in ("quantize", "round_onto", "round_each"):
        function = getattr(qtorch.optim.many, name)
        count = lambda *args, function=function, **kw: calls.append(args) or function(*args, **kw)  # noqa: E731
        monkeypatch.setattr(qtorch.optim.many, name, count)
    params = parameters([(16, 3, 3, 3)] * 20 + [(16,)] * 40 + [(300, 300)])
    optimizer = OptimLP(sgd(params), weight_quant=F, grad_quant=F, momentum_quant=F, acc_quant=H)
    give_gradients(params, 0)
    if without is not None:
        params[without].grad = None
    optimizer.step()
    assert len(calls) == 7  # all gradients; then the small ones and the large one: accumulator, weight, momentum


@pytest.mark.parametrize("change", ["replace", "in place", "load"])
def test_momenta_lie_side_by_side_and_may_be_changed_by_others(change):
    """Against an optimizer whose momenta are rounded by a function, each for itself."""
    results, homes = [], []
    for quantizer in (Quantizer(F, forward_rounding="nearest"), lambda x: float_quantize(x, 5, 2, "nearest")):
        params = parameters()
        optimizer = OptimLP(sgd(params), momentum_quant=quantizer)
        train(optimizer, params, [0, 1])
        momentum = optimizer.state[params[0]]["momentum_buffer"]
        if change == "replace":
            optimizer.state[params[0]]["momentum_buffer"] = momentum * 3 + 0.1
        elif change == "in place":
            momentum.mul_(3)
        else:
            saved = copy.deepcopy(optimizer.state_dict())
            train(optimizer, params, [2])
            optimizer.load_state_dict(saved)
        train(optimizer, params, [3, 4])
        results.append(tensors_of(optimizer, params))
        momenta = [optimizer.state[p]["momentum_buffer"] for p in params]
        homes.append([not x.untyped_storage().resizable() for x in momenta])
    assert_all_same_bits(*results)
    assert homes == [[True] * (len(params) - 1) + [False], [False] * len(params)]  # the largest lies by itself


# What quantizers may be


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
