"""OptimLP against steps written out by hand; what it keeps, saves and leaves alone; many tensors in few calls."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from support import assert_same_bits, to_torch

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
    (embedding(torch.tensor([4, 1, 4, 4])) * 0.7).sum().backward()
    optimizer.step()
    gradient = embedding.weight.grad
    assert gradient.is_sparse
    assert_same_bits(gradient.coalesce().indices(), torch.tensor([[1, 4]]))
    summed = torch.tensor([[0.7] * 3, [0.7 + 0.7 + 0.7] * 3]) * 0.5
    assert_same_bits(gradient.coalesce().values(), to_torch(qcore.quantize(summed.numpy(), F, "nearest")))
    assert_same_bits(embedding.weight[0], to_torch(qcore.quantize(before[0].numpy(), H, "nearest")))


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
    monkeypatch.setattr(
        qtorch.optim.many, "quantize", lambda *args, **kw: calls.append(args) or qtorch.quantize(*args, **kw)
    )
    params = parameters([(16, 3, 3, 3)] * 20 + [(16,)] * 40 + [(300, 300)])
    optimizer = OptimLP(sgd(params), weight_quant=F, grad_quant=F, momentum_quant=F, acc_quant=H)
    give_gradients(params, 0)
    if without is not None:
        params[without].grad = None
    optimizer.step()
    assert len(calls) == 8  # the small ones together, and the large one: gradient, accumulator, weight, momentum


@pytest.mark.parametrize("change", ["replace", "in place", "load"])
def test_momenta_lie_side_by_side_and_may_be_changed_by_others(change):
    """Against an optimizer whose momenta are rounded by a function, each for itself."""
    results, storages = [], []
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
        storages.append({optimizer.state[p]["momentum_buffer"].untyped_storage().data_ptr() for p in params})
    assert_all_same_bits(*results)
    assert [len(pointers) for pointers in storages] == [2, len(params)]  # the largest lies by itself


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


# Keys


def test_keys_drawn_from_the_default_generator():
    stochastic = Quantizer(F)
    for options, draws in (
        ({"weight_quant": stochastic, "grad_quant": stochastic, "acc_quant": stochastic}, 1),
        ({"weight_quant": stochastic, "key": KEY}, 0),
        ({"weight_quant": F, "grad_quant": F, "acc_quant": F, "momentum_quant": F}, 0),
    ):
        results = []
        for _ in range(2):
            params = parameters()
            give_gradients(params, 0)
            torch.manual_seed(5)
            OptimLP(sgd(params), **options).step()
            results.append(torch.get_rng_state())
        torch.manual_seed(5)
        for _ in range(draws):
            words = torch.empty(2, dtype=torch.int32).random_()
        assert all(torch.equal(state, torch.get_rng_state()) for state in results)
        if draws:
            key = tuple(words.tolist())
            gradient = parameters()
            give_gradients(gradient, 0)
            expected = [by_numpy(p.grad, F, 0, j, key) for j, p in enumerate(gradient)]
            assert_all_same_bits([p.grad for p in params], expected)


@pytest.mark.parametrize("key", [KEY, (0, KEY), torch.tensor([0, KEY]), torch.tensor([0, KEY], dtype=torch.uint32)])
def test_keys_of_all_kinds(key):
    params, same = parameters(), parameters()
    train(OptimLP(sgd(params), weight_quant=Quantizer(F), key=key), params, range(2))
    train(OptimLP(sgd(same), weight_quant=Quantizer(F), key=KEY), same, range(2))
    assert_all_same_bits(params, same)


def test_numbers_count_all_parameters_over_the_groups():
    params = parameters([(8,)] * 5)
    params[0].requires_grad_(False)
    inner = torch.optim.SGD([{"params": params[:2]}, {"params": params[2:4], "lr": 0.5}], lr=0.1)
    optimizer = OptimLP(inner, weight_quant=Quantizer(F), key=KEY)
    optimizer.add_param_group({"params": params[4:], "lr": 0.25})
    before = [p.detach().clone() for p in params]
    give_gradients(params[1:2] + params[3:], 0)
    optimizer.step()
    for j, lr in ((1, 0.1), (3, 0.5), (4, 0.25)):
        stepped = before[j].sub(params[j].grad, alpha=lr)
        assert_same_bits(params[j], by_numpy(stepped, F, 2, j, qcore.fold_in(KEY, 0)))
    assert_all_same_bits([params[0], params[2]], [before[0], before[2]])


# What is left alone


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_parameters_without_gradients_and_frozen_ones_are_untouched(mode):
    params = parameters()
    quantizer = quantizer_for(F, mode)
    options = dict.fromkeys(("weight_quant", "grad_quant", "momentum_quant", "acc_quant"), quantizer)
    optimizer = OptimLP(sgd(params), **options, key=KEY)
    train(optimizer, params, range(1))
    params[1].requires_grad_(False)  # its gradient is left over
    params[3].grad = None
    with torch.no_grad():
        optimizer.state[params[3]]["momentum_buffer"] += 0.01  # no number of the format
    watched = [params[1], params[3]]
    before = tensors_of(optimizer, watched)
    left_over = params[1].grad
    others = [params[0].detach().clone(), params[5].detach().clone()]
    optimizer.step()
    assert_all_same_bits(tensors_of(optimizer, watched), before)
    assert params[1].grad is left_over
    assert not torch.equal(params[0], others[0])
    assert not torch.equal(params[5], others[1])


def test_a_parameter_that_is_frozen_for_a_while_keeps_its_accumulator():
    params = parameters()
    optimizer = OptimLP(sgd(params), weight_quant=F, acc_quant=H)
    train(optimizer, params, range(1))
    before = optimizer.weight_acc[params[0]].clone()
    params[0].requires_grad_(False)
    give_gradients(params[1:], 1)
    params[0].grad = None
    optimizer.step()
    params[0].requires_grad_(True)
    assert_same_bits(optimizer.weight_acc[params[0]], before)
    assert not torch.equal(before, params[0])


def test_frozen_parameters_have_no_accumulators_until_they_are_trained():
    params = parameters()
    params[0].requires_grad_(False)
    optimizer = OptimLP(sgd(params), weight_quant=F, acc_quant=H)
    train(optimizer, params[1:], range(1))
    assert params[0] not in optimizer.weight_acc
    params[0].requires_grad_(True)
    assert_same_bits(optimizer.weight_acc[params[0]], params[0])


# Weights that others write


def trained(steps=2, **options):
    params = parameters()
    optimizer = OptimLP(sgd(params), **{"weight_quant": F, "acc_quant": H} | options)
    train(optimizer, params, range(steps))
    return optimizer, params


def test_accumulators_follow_loaded_weights():
    for write in (lambda p, new: p.data.copy_(new), lambda p, new: setattr(p, "data", new.clone())):
        optimizer, params = trained()
        new = [p.detach() for p in parameters(seed=1)]
        for p, x in zip(params, new, strict=True):
            write(p, x)
        give_gradients(params, 7)
        fresh = parameters(seed=1)
        again = OptimLP(sgd(fresh), weight_quant=F, acc_quant=H)
        again.optim.load_state_dict(copy.deepcopy(optimizer.optim.state_dict()))  # momenta
        give_gradients(fresh, 7)
        optimizer.step()
        again.step()
        assert_all_same_bits(tensors_of(optimizer, params), tensors_of(again, fresh))


def test_accumulators_that_are_read_have_followed():
    optimizer, params = trained()
    params[0].data = torch.full(SHAPES[0], 0.3)
    assert_same_bits(optimizer.weight_acc[params[0]], params[0])


def test_only_elements_that_were_changed_are_followed():
    optimizer, params = trained()
    before = [acc.clone() for acc in optimizer.weight_acc.values()]
    changed = [p.detach().abs() > 0.5 for p in params]
    for p in params:
        p.data.clamp_(-0.5, 0.5)
    for p, acc, mask in zip(params, before, changed, strict=True):
        assert_same_bits(optimizer.weight_acc[p], torch.where(mask, p.detach(), acc))
    zeros = torch.nn.Parameter(torch.tensor([0.0, -0.0, 0.0]))
    optimizer = OptimLP(sgd([zeros]), acc_quant=H)
    zeros.data.neg_()  # equal, but not the same
    assert_same_bits(optimizer.weight_acc[zeros], torch.tensor([-0.0, 0.0, -0.0]))


def test_weights_that_are_put_aside_and_back_keep_their_accumulators():
    optimizer, params = trained()
    twin, same = trained()
    saved = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, x in zip(params, saved, strict=True):
            p.fill_(3).copy_(x)
    train(optimizer, params, [7])
    train(twin, same, [7])
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(twin, same))


def test_a_model_may_change_dtype_before_training():
    params, doubles = parameters(), parameters(dtype=torch.float64)
    optimizer = OptimLP(sgd(params), weight_quant=F, acc_quant=H)
    for p in params:
        p.data = p.data.double()
    assert_all_same_bits(list(optimizer.weight_acc.values()), params)
    train(optimizer, params, range(1))
    train(twin := OptimLP(sgd(doubles), weight_quant=F, acc_quant=H), doubles, range(1))
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(twin, doubles))


# Closures


def test_a_closure_sees_rounded_weights_and_its_gradients_are_rounded():
    weight = torch.nn.Parameter(torch.tensor([0.3, 1.1, -2.6]))
    optimizer = OptimLP(torch.optim.SGD([weight], lr=0.1), weight_quant=F, grad_quant=F, acc_quant=H)
    seen = []

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        seen.append(weight.detach().clone())
        loss = (weight.exp() + weight).sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure) for _ in range(3)]
    assert len(seen) == 3
    for x, loss in zip(seen, losses, strict=True):
        assert_same_bits(loss, (x.exp() + x).sum())
    for x in (*seen[1:], weight.grad):
        assert_same_bits(x, to_torch(qcore.quantize(x.numpy(), F, "nearest")))
    assert not torch.equal(optimizer.weight_acc[weight], weight)


def test_lbfgs_evaluates_several_times_and_rounds_every_gradient():
    target = torch.tensor([0.3, 1.1, -2.6])
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(()))]
    inner = torch.optim.LBFGS(weights, max_iter=4, line_search_fn="strong_wolfe")
    optimizer = OptimLP(inner, grad_quant=H, weight_quant=H, acc_quant="float16", momentum_quant=H)
    seen, memory = [], [p.data_ptr() for p in weights]

    def closure():
        optimizer.zero_grad()
        loss = (weights[0] - target).pow(2).sum() + (weights[1] - 5).pow(4)
        loss.backward()
        return loss

    def evaluate():
        seen.append([p.grad for p in weights])
        return closure()

    for _ in range(8):
        optimizer.step(evaluate)
    assert len(seen) > 8
    assert [p.data_ptr() for p in weights] == memory
    for gradient in seen[-1]:
        assert_same_bits(gradient, to_torch(qcore.quantize(gradient.numpy(), H, "nearest")).view(gradient.shape))
    state = inner.state[weights[0]]
    for name in ("d", "prev_flat_grad"):
        assert_same_bits(state[name], to_torch(qcore.quantize(state[name].numpy(), H, "nearest")))
    assert torch.allclose(weights[0], target, atol=0.01)
    assert abs(weights[1] - 5) < 0.3


def test_after_an_error_weights_are_as_before():
    optimizer, params = trained()
    before = [p.detach().clone() for p in params]
    memory = [p.data_ptr() for p in params]
    give_gradients(params, 7)
    optimizer.param_groups[0]["lr"] = "no number"
    with pytest.raises(TypeError):
        optimizer.step()
    assert_all_same_bits(params, before)
    assert [p.data_ptr() for p in params] == memory
    assert optimizer.steps == 2


# Checkpoints


MODEL_PROGRAM = """
import sys, torch
from test_optim import checkpointed, gradients_of_model
first = sys.argv[2]
saved = torch.load(sys.argv[1], weights_only=True)
model, optimizer, scheduler = checkpointed(saved["mode"], None if saved["key"] is None else 12345)
loads = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
for name in sorted(loads, key=lambda name: name != first):
    loads[name].load_state_dict(saved[name])
torch.set_rng_state(saved["rng"])
for step in range(3, 6):
    gradients_of_model(model, step)
    optimizer.step()
    scheduler.step()
torch.save([model.state_dict(), optimizer.state_dict()], sys.argv[1] + ".out")
"""


def checkpointed(mode, key):
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    quantizers = {name: quantizer_for(F, mode) for name in ("weight_quant", "grad_quant", "momentum_quant")}
    inner = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = OptimLP(inner, **quantizers, acc_quant=quantizer_for(H, mode), key=key)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)


def gradients_of_model(model, step):
    generator = torch.Generator().manual_seed(step)
    model.zero_grad()
    model(torch.randn(8, 5, generator=generator)).pow(2).mean().backward()


@pytest.mark.parametrize(
    ("mode", "key", "first"),
    [("stochastic", KEY, "model"), ("stochastic", None, "optimizer")],
)
def test_a_fresh_process_continues_with_the_same_bits(mode, key, first, tmp_path):
    torch.manual_seed(0)
    model, optimizer, scheduler = checkpointed(mode, key)
    for step in range(6):
        if step == 3:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state | {"mode": mode, "key": key, "rng": torch.get_rng_state()}, tmp_path / "saved")
        gradients_of_model(model, step)
        optimizer.step()
        scheduler.step()
    arguments = [str(tmp_path / "saved"), first]
    path = {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    subprocess.run([sys.executable, "-c", MODEL_PROGRAM, *arguments], check=True, env=os.environ | path)
    weights, state = torch.load(tmp_path / "saved.out", weights_only=True)
    assert_all_same_bits(list(weights.values()), list(model.state_dict().values()))
    expected = optimizer.state_dict()
    assert state["low_precision"].keys() == expected["low_precision"].keys()
    assert state["low_precision"]["key"] == expected["low_precision"]["key"]
    assert state["low_precision"]["steps"] == 6
    assert state["param_groups"] == expected["param_groups"]
    for number, pair in expected["low_precision"]["accumulators"].items():
        assert_all_same_bits(state["low_precision"]["accumulators"][number], pair)
    for number, entries in expected["state"].items():
        assert_all_same_bits(list(state["state"][number].values()), list(entries.values()))


def test_a_state_dict_is_a_snapshot_and_does_not_share_memory():
    optimizer, params = trained()
    saved = optimizer.state_dict()["low_precision"]["accumulators"]
    before = copy.deepcopy(saved)
    train(optimizer, params, [5])
    for number, pair in before.items():
        assert_all_same_bits(saved[number], pair)
        assert saved[number][0].untyped_storage().nbytes() == params[number].nbytes


def test_weights_changed_after_the_last_step_survive_a_checkpoint():
    optimizer, params = trained()
    params[0].data.mul_(3)
    twin = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = OptimLP(sgd(twin), weight_quant=F, acc_quant=H)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, [5])
    train(again, twin, [5])
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(again, twin))


def test_pickle_and_deepcopy_are_independent_and_continue():
    optimizer, params = trained(weight_quant=Quantizer(F), key=KEY)
    optimizer.zero_grad()  # gradients are not pickled
    copies = [pickle.loads(pickle.dumps((optimizer, params))), copy.deepcopy((optimizer, params))]
    file = io.BytesIO()
    torch.save((optimizer, params), file)
    copies.append(torch.load(io.BytesIO(file.getvalue()), weights_only=False))
    before = tensors_of(optimizer, params)
    results = []
    for other, others in copies:
        assert_all_same_bits(tensors_of(other, others), before)
        train(other, others, [5])
        results.append(tensors_of(other, others))
        assert_all_same_bits(tensors_of(optimizer, params), before)
        assert all(x is not y for x, y in zip(others, params, strict=True))
    train(optimizer, params, [5])
    for result in results:
        assert_all_same_bits(result, tensors_of(optimizer, params))
    assert len(pickle.dumps(optimizer)) < 10 * sum(p.nbytes for p in params)  # no memory is pickled many times


# Optimizer's other habits


def test_schedulers_before_and_after_a_load():
    params = parameters()
    inner = sgd(params)
    of_inner = torch.optim.lr_scheduler.ExponentialLR(inner, 0.1)
    optimizer = OptimLP(inner, weight_quant=F)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    for scheduler, lr in ((schedule, 0.05), (of_inner, 0.005)):
        train(optimizer, params, [0])
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == inner.param_groups[0]["lr"] == pytest.approx(lr)
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups is inner.param_groups
    train(optimizer, params, [1])
    schedule.step()
    assert inner.param_groups[0]["lr"] == pytest.approx(0.025)
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = params[0].detach().clone()
    train(optimizer, params, [2])
    late.step()
    assert not torch.equal(params[0], before)
    assert inner.param_groups[0]["lr"] == pytest.approx(0.0125)


def test_add_param_group_in_the_middle():
    params, new = parameters(), parameters([(3, 2)], seed=5)
    optimizer = OptimLP(sgd(params), weight_quant=F, acc_quant=H)
    train(optimizer, params, range(2))
    before = [optimizer.weight_acc[p].clone() for p in params]
    optimizer.add_param_group({"params": new})
    assert_all_same_bits([optimizer.weight_acc[p] for p in params], before)
    assert_same_bits(optimizer.weight_acc[new[0]], new[0])
    train(optimizer, params + new, range(2, 4))
    assert_same_bits(new[0], to_torch(qcore.quantize(new[0].detach().numpy(), F, "nearest")))
    assert optimizer.optim.param_groups[1]["params"][0] is new[0]


def test_hooks_and_zero_grad():
    optimizer, params = trained()
    calls = []
    optimizer.register_step_pre_hook(lambda it, args, kwargs: calls.append(("before", it)))
    optimizer.register_step_post_hook(lambda it, args, kwargs: calls.append(("after", it)))
    optimizer.optim.register_step_post_hook(lambda it, args, kwargs: calls.append(("inner", it)))
    train(optimizer, params, [5])
    assert calls == [("before", optimizer), ("inner", optimizer.optim), ("after", optimizer)]
    optimizer.register_state_dict_pre_hook(lambda it: calls.append("saving"))
    optimizer.register_state_dict_post_hook(lambda it, state: state | {"more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda it, state: calls.append(state.pop("more")))
    optimizer.register_load_state_dict_post_hook(lambda it: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls[3:] == ["saving", 1, "loaded"]
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad.eq(0).all() for p in params)
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


def test_gradients_are_unscaled_by_a_grad_scaler_before_they_are_rounded():
    params, plain = parameters(), parameters()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    optimizer = OptimLP(sgd(params), grad_quant=F)
    scaler.scale(sum((p * 0.3).sum() for p in params)).backward()
    scaler.step(optimizer)
    train_by = [torch.full(p.shape, 0.3) for p in plain]
    for p, x in zip(params, train_by, strict=True):
        assert_same_bits(p.grad, qcore.quantize(x.numpy(), F, "nearest"))


def test_repr():
    optimizer = OptimLP(
        sgd(parameters()), weight_quant=F, grad_quant=Quantizer(H), acc_quant=float_quantize, grad_scaling=0.5, key=KEY
    )
    for words in (
        "OptimLP",
        "weight_quant: FloatingPoint (exponent=5, mantissa=2), nearest",
        "grad_quant: Quantizer(forward_number=FloatingPoint (exponent=6, mantissa=9), forward_rounding=stochastic)",
        "acc_quant: float_quantize",
        "grad_scaling: 0.5",
        "key: (0, 7)",
        "SGD (",
        "momentum: 0.9",
    ):
        assert words in repr(optimizer)
    assert "momentum_quant" not in repr(optimizer)


@pytest.mark.parametrize(
    ("options", "exception", "words"),
    [
        ({"weight_quant": 8}, TypeError, ["weight_quant", "8", "function", "Quantizer", "Number"]),
        ({"acc_quant": "e5m9"}, ValueError, ["acc_quant", "'e5m9'", "e5m2"]),
        ({"grad_scaling": "1"}, TypeError, ["grad_scaling", "'1'", "number"]),
        ({"grad_scaling": True}, TypeError, ["grad_scaling", "True", "number"]),
        ({"key": -1}, ValueError, ["key", "-1", "int from 0"]),
        ({"key": 1.5}, TypeError, ["key", "1.5", "int from 0"]),
        ({"optim": [torch.zeros(1)]}, TypeError, ["optim", "list", "torch.optim.Optimizer"]),
    ],
)
def test_wrong_arguments(options, exception, words):
    with pytest.raises(exception) as caught:
        OptimLP(**{"optim": sgd(parameters())} | options)
    assert all(word in str(caught.value) for word in words)


def test_wrong_results_and_states():
    params = parameters()
    give_gradients(params, 0)
    for result, words in ((lambda x: x.sum(), "shape ()"), (lambda x: None, "NoneType")):
        with pytest.raises(ValueError, match="weight_quant returned") as caught:
            OptimLP(sgd(params), weight_quant=result).step()
        assert words in str(caught.value)
    optimizer, params = trained()
    with pytest.raises(ValueError, match="low_precision"):
        optimizer.load_state_dict(optimizer.optim.state_dict())
    optimizer.optim.load_state_dict(optimizer.state_dict())  # a plain optimizer takes what it knows
    with pytest.raises(ValueError, match="accumulators"):
        optimizer.load_state_dict(OptimLP(sgd(parameters())).state_dict())
    with pytest.raises(ValueError, match="accumulators"):
        OptimLP(sgd(parameters())).load_state_dict(optimizer.state_dict())
    others = OptimLP(sgd(parameters([(2, 2), *SHAPES[1:]])), acc_quant=H)
    before = others.optim.state_dict()
    with pytest.raises(ValueError, match=r"shape \(4, 3, 3, 3\) for parameter 0; allowed is \(2, 2\)"):
        others.load_state_dict(optimizer.state_dict())
    assert others.optim.state_dict() == before  # nothing was loaded
