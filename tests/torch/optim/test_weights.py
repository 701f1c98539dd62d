"""Which weights, gradients and accumulators OptimLP writes, and that it follows weights that others write."""

import copy

import pytest
import torch
from support import assert_all_same_bits, assert_same_bits, to_torch
from torch_optim_support import (
    KEY,
    SHAPES,
    F,
    H,
    give_gradients,
    parameters,
    quantizer_for,
    sgd,
    tensors_of,
    train,
    trained,
)

import qcore
from qtorch.optim import OptimLP

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
    seen: list[list[torch.Tensor]] = []

    def closure():
        optimizer.zero_grad()
        loss = (weights[0] - target).pow(2).sum() + (weights[1] - 5).pow(4)
        loss.backward()
        return loss

    def evaluate():
        seen.append([p.grad for p in weights])
        return closure()

    optimizer.step(evaluate)
    memory = [p.data_ptr() for p in weights]
    for _ in range(7):
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


def cannot_begin(optimizer):
    optimizer.param_groups[0]["lr"] = "no number"


def cannot_end(optimizer):
    def stop(*_):
        raise TypeError("all weights have been stepped")

    optimizer.optim.register_step_post_hook(stop)


@pytest.mark.parametrize("fails", [cannot_begin, cannot_end])
def test_after_an_error_weights_are_as_before(fails):
    optimizer, params = trained()
    before = [x.detach().clone() for x in (*params, *optimizer.weight_acc.values())]
    memory = [p.data_ptr() for p in params]
    give_gradients(params, 7)
    fails(optimizer)
    with pytest.raises(TypeError):
        optimizer.step()
    assert_all_same_bits([*params, *optimizer.weight_acc.values()], before)
    assert [p.data_ptr() for p in params] == memory
    assert optimizer.steps == 2


class Assigning(torch.optim.Optimizer):
    """Steps by giving weights other memory."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = torch.sub(p.data, p.grad, alpha=group["lr"])


@pytest.mark.parametrize("without", [(), (2,)])
def test_an_optimizer_may_assign_data(without):
    results = []
    for make in (Assigning, lambda params, defaults: torch.optim.SGD(params, **defaults)):
        params = parameters([(6, 6), (300, 300), (5,)])
        optimizer = OptimLP(make(params, {"lr": 0.1}), weight_quant=F, acc_quant=H)
        for step in range(3):
            give_gradients(params, step)
            for i in without:
                params[i].grad = None
            optimizer.step()
        results.append([*params, *optimizer.weight_acc.values()])
    assert_all_same_bits(*results)
