"""A step of OptimLP is what the laws say: every rounding and its key, written out by hand, for every optimizer."""

import pytest
import torch
from support import assert_all_same_bits, assert_same_bits, to_torch
from torch_optim_support import (
    KEY,
    F,
    H,
    give_gradients,
    inner_with_acc,
    parameters,
    quantizer_for,
    rounded_by_law,
    sgd,
    tensors_of,
    train,
)

import qcore
from qcore import FixedPoint
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer

FIXED = FixedPoint(8, 4)

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
                p.grad = rounded_by_law(p.grad * (1 / 3), F, 0, j, key, mode)
                if accumulate:
                    p.copy_(accumulators[j])
            inner.step()
            for j, p in enumerate(by_hand):
                if accumulate:
                    accumulators[j] = rounded_by_law(p, H, 1, j, key, mode)
                    p.copy_(accumulators[j])
                p.copy_(rounded_by_law(p, FIXED, 2, j, key, mode))
                momentum = inner.state[p]["momentum_buffer"]
                momentum.copy_(rounded_by_law(momentum, H, 3, j, key, mode))
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
                rounded = rounded_by_law(inner.state[p][momentum], H, 3 + i, j, key, mode)
                inner.state[p][momentum].copy_(rounded)
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(inner_with_acc(inner), by_hand))


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


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.heavy)])
def test_a_step_in_a_compiled_program_has_the_same_bits(backend):
    results = []
    for compiled in (False, True):
        params = parameters([(3, 4), (5,)])
        options = dict.fromkeys(("weight_quant", "grad_quant", "momentum_quant", "acc_quant"), Quantizer(H))
        optimizer = OptimLP(torch.optim.Adam(params, lr=0.1), **options)
        torch.compiler.reset()
        program = torch.compile(lambda optimizer=optimizer: optimizer.step(), backend=backend) if compiled else None
        torch.manual_seed(0)
        for step in range(3):
            give_gradients(params, step)
            program() if program else optimizer.step()
        results.append(tensors_of(optimizer, params))
    assert_all_same_bits(*results)


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
            expected = [rounded_by_law(p.grad, F, 0, j, key) for j, p in enumerate(gradient)]
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
        assert_same_bits(params[j], rounded_by_law(stepped, F, 2, j, qcore.fold_in(KEY, 0)))
    assert_all_same_bits([params[0], params[2]], [before[0], before[2]])
