"""OptimLP is a torch optimizer like others: schedulers, groups, hooks and text; what is wrong raises."""

import pytest
import torch
from support import assert_all_same_bits, assert_same_bits, to_torch
from torch_optim_support import KEY, SHAPES, F, H, give_gradients, parameters, sgd, train, trained

import qcore
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer, float_quantize


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
    with pytest.raises(TypeError, match="state_dict is a NoneType; allowed is a dict"):
        optimizer.load_state_dict(None)
    with pytest.raises(ValueError, match="low_precision"):
        optimizer.load_state_dict(sgd(parameters()).state_dict())
    optimizer.optim.load_state_dict(optimizer.state_dict())  # a plain optimizer takes what it knows
    with pytest.raises(ValueError, match="accumulators"):
        optimizer.load_state_dict(trained(acc_quant=None)[0].state_dict())
    with pytest.raises(ValueError, match="accumulators"):
        OptimLP(sgd(parameters())).load_state_dict(optimizer.state_dict())
    others = OptimLP(sgd(parameters([(2, 2), *SHAPES[1:]])), acc_quant=H)
    before = others.optim.state_dict()
    with pytest.raises(ValueError, match=r"shape \(4, 3, 3, 3\) for parameter 0; allowed is \(2, 2\)"):
        others.load_state_dict(optimizer.state_dict())
    assert others.optim.state_dict() == before  # nothing was loaded
