"""Parameters of 16 bits are stepped in float32: the bits of float32 parameters, rounded to the parameters' dtype."""

import copy

import pytest
import torch
from support import assert_all_same_bits, assert_same_bits
from torch_optim_support import KEY, F, H, give_gradients, parameters, sgd

from qtorch.optim import OptimLP
from qtorch.quant import Quantizer, quantizer

B = Quantizer("bfloat16")
OPTIONS = {
    "weights": {"weight_quant": B},
    "coarse weights": {"weight_quant": Quantizer(F), "grad_quant": Quantizer(F), "grad_scaling": 1 / 3},
    "accumulators": {"weight_quant": B, "acc_quant": "float(8,23)"},
    "wide accumulators": {"weight_quant": Quantizer(F), "acc_quant": quantizer()},
    "momenta": {"momentum_quant": Quantizer(H), "acc_quant": quantizer()},
    "function": {"weight_quant": lambda x: x.mul_(1024).round_().div_(1024), "acc_quant": quantizer()},
}
INNER = {
    "SGD": sgd,
    "Adam": lambda ps: torch.optim.Adam(ps, 0.01),
    "fused": lambda ps: torch.optim.AdamW(ps, fused=True),
}


def twins(dtype):
    narrow = parameters(dtype=dtype)
    return narrow, [torch.nn.Parameter(p.detach().float()) for p in narrow]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("name", OPTIONS)
def test_they_step_as_float32_does(name, inner, dtype):
    """With weights that their dtype holds, or that continue from accumulators, nothing is rounded but what is said."""
    if dtype is torch.float16 and name == "weights":
        pytest.skip("weights of bfloat16 below 2^-24 are no float16")
    narrow, wide = twins(dtype)
    first, second = (OptimLP(INNER[inner](ps), **OPTIONS[name], key=KEY) for ps in (narrow, wide))
    places = [p.data_ptr() for p in narrow]
    for step in range(4):
        give_gradients(narrow, step)
        for p, w in zip(narrow, wide, strict=True):
            w.grad = p.grad.float()
        first.step()
        second.step()
        for p, w in zip(narrow, wide, strict=True):
            assert_same_bits(p, w.to(dtype))
            assert_same_bits(p.grad, w.grad.to(dtype))
            assert first.state[p].keys() == second.state[w].keys()
            for entry in first.state[p].keys() - {"low_precision_weight"}:
                assert_same_bits(first.state[p][entry], second.state[w][entry])
    assert [p.data_ptr() for p in narrow] == places
    assert all(group["params"] == narrow for group in first.param_groups)


@pytest.mark.parametrize("acc_quant", [None, "float(8,23)"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_updates_are_not_lost(dtype, acc_quant):
    p = torch.nn.Parameter(torch.ones(10000, dtype=dtype))
    optimizer = OptimLP(torch.optim.SGD([p], lr=1.0), weight_quant=B, acc_quant=acc_quant, key=1)
    for _ in range(20):
        p.grad = torch.full_like(p, -1e-4)
        optimizer.step()
    assert abs(p.float().mean() - 1.002) < 1e-4


def test_without_rounding_nothing_changes():
    """Gradients that are rounded are no reason to keep other numbers."""
    params, others = parameters(dtype=torch.bfloat16), parameters(dtype=torch.bfloat16)
    optimizer, plain = OptimLP(sgd(params), grad_quant="float(8,23)"), sgd(others)
    for step in range(2):
        give_gradients(params, step)
        give_gradients(others, step)
        optimizer.step()
        plain.step()
    assert_all_same_bits(params, others)
    assert optimizer.state[params[0]]["momentum_buffer"].dtype == torch.bfloat16


def test_a_state_dict_keeps_float32():
    narrow, _ = twins(torch.bfloat16)
    options = {"weight_quant": B, "momentum_quant": Quantizer(H), "acc_quant": quantizer(), "key": KEY}
    first = OptimLP(torch.optim.Adam(narrow), **options)
    for step in range(2):
        give_gradients(narrow, step)
        first.step()
    again = [torch.nn.Parameter(p.detach().clone()) for p in narrow]
    second = OptimLP(torch.optim.Adam(again), **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for ps, optimizer in ((narrow, first), (again, second)):
        give_gradients(ps, 7)
        optimizer.step()
    assert_all_same_bits(again, narrow)
    for p, q in zip(narrow, again, strict=True):
        assert_all_same_bits(list(second.state[q].values()), list(first.state[p].values()))
        assert first.state[p]["exp_avg"].dtype == torch.float32


def test_closures_see_the_parameters():
    """LBFGS evaluates again: its own points, rounded to nearest; `zero_grad` clears what the model has."""
    target, weight = torch.tensor([0.3, 1.1, -2.6]), torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    inner = torch.optim.LBFGS([weight], max_iter=4, line_search_fn="strong_wolfe")
    optimizer = OptimLP(inner, weight_quant=B, acc_quant=quantizer(), key=KEY)
    seen = []

    def closure():
        optimizer.zero_grad()
        seen.append(weight.detach().clone())
        assert weight.dtype == torch.bfloat16
        assert len(optimizer.weight_acc) == 1
        loss = (weight.float() - target).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert len(seen) > 4
    assert torch.allclose(optimizer.weight_acc[weight], target, atol=0.02)
    assert inner.param_groups[0]["params"][0] is weight
    assert set(inner.state) == {weight}


def test_after_an_error_parameters_are_in_their_places():
    narrow, _ = twins(torch.bfloat16)
    optimizer = OptimLP(sgd(narrow), weight_quant=B, acc_quant=H, key=KEY)
    give_gradients(narrow, 0)
    optimizer.step()
    before = [x.detach().clone() for x in (*narrow, *optimizer.weight_acc.values())]

    def stop(*_):
        raise TypeError("all weights have been stepped")

    optimizer.optim.register_step_post_hook(stop)
    with pytest.raises(TypeError):
        optimizer.step()
    assert_all_same_bits([*narrow, *optimizer.weight_acc.values()], before)
    assert optimizer.param_groups[0]["params"] == narrow
    assert all("momentum_buffer" in optimizer.state[p] for p in narrow)
