"""States in containers are momenta; other methods of the inner optimizer leave weights on the grid."""

import copy
import io
from collections import deque
from dataclasses import dataclass

import pytest
import torch
from support import assert_same_bits
from torch_optim_support import F, H, give_gradients, parameters, quantizer_for, rounded_by_law

import qcore
import qtorch
from qtorch.optim import OptimLP
from qtorch.quant import quantizer

KEY = 11
DELAYED = "scaled(e4m3fn,{...:None},scale=float32,history=2)"


class Shampoo(torch.optim.Optimizer):
    """A momentum, and factors in a container."""

    def __init__(self, params, container):
        super().__init__(params, {"lr": 0.1})
        self.container = container

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p] |= {"momentum": torch.zeros_like(p), "steps": [0], "GG": self.container(p)}
            for x in tensors_in(self.state[p]):
                x.mul_(0.9).add_(0.3)
            p.sub_(0.1 * p.grad)


def tensors_in(value):
    """The tensors of a state in the order of names."""
    if isinstance(value, torch.Tensor):
        return [value] if value.dim() else []
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in tensors_in(value[key])]
    return [x for one in value for x in tensors_in(one)] if isinstance(value, list | tuple | deque) else []


def twelve(p):
    """More than ten, whose names are not in the order of letters."""
    return [torch.full_like(p, 1 / (3 + number)) for number in range(12)]


CONTAINERS = {
    "list": twelve,
    "tuple": lambda p: tuple(twelve(p)[:2]),
    "deque": lambda p: deque(twelve(p)[:2]),
    "dictionary": lambda p: {"right": twelve(p)[1], "left": [twelve(p)[0], torch.tensor(1 / 3), None, "text"]},
    "nested": lambda p: {"Q": [(twelve(p)[0],), {"x": {"y": twelve(p)[1]}}]},
}


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", CONTAINERS)
def test_states_in_containers_are_rounded_with_keys_of_their_own(name, mode):
    params, by_hand = parameters([(4, 3), (5,), (2, 2)]), parameters([(4, 3), (5,), (2, 2)])
    optimizer = OptimLP(Shampoo(params, CONTAINERS[name]), momentum_quant=quantizer_for(H, mode), key=KEY)
    inner = Shampoo(by_hand, CONTAINERS[name])
    for step in range(2):
        for given in (params, by_hand):
            give_gradients(given, step)
        optimizer.step()
        inner.step()
        for j, (p, q) in enumerate(zip(params, by_hand, strict=True)):
            found, expected = tensors_in(optimizer.state[p]), tensors_in(inner.state[q])
            assert len(found) > 1
            for role, (x, y) in enumerate(zip(found, expected, strict=True), 3):
                y.copy_(rounded_by_law(y, H, role, j, qcore.fold_in(KEY, step), mode))
                assert_same_bits(x, y)
    if name == "dictionary":
        assert optimizer.state[params[0]]["GG"]["left"][1] == torch.tensor(1 / 3)  # a scalar is no momentum


def test_checkpoints_have_delayed_scales_of_states_in_containers():
    whole, halves = parameters([(4, 3), (5,), (2, 2)]), parameters([(4, 3), (5,), (2, 2)])
    first = OptimLP(Shampoo(whole, CONTAINERS["nested"]), momentum_quant=DELAYED)
    second = OptimLP(Shampoo(halves, CONTAINERS["nested"]), momentum_quant=DELAYED)
    for step in range(4):
        if step == 2:
            file = io.BytesIO()
            torch.save(second.state_dict(), file)
            file.seek(0)
            second = OptimLP(Shampoo(halves, CONTAINERS["nested"]), momentum_quant=DELAYED)
            second.load_state_dict(torch.load(file, weights_only=False))
        for given, optimizer in ((whole, first), (halves, second)):
            give_gradients(given, step)
            optimizer.step()
    for p, q in zip(whole, halves, strict=True):
        for x, y in zip(tensors_in(first.state[p]), tensors_in(second.state[q]), strict=True):
            assert_same_bits(x, y)
        assert "low_precision_scaling_of_state_GG.Q.1.x.y" in first.state[p]


@dataclass
class Factors:
    left: torch.Tensor


def test_other_objects_in_the_state_are_named():
    params = parameters([(4, 3), (5,), (2, 2)])
    optimizer = OptimLP(Shampoo(params, Factors), momentum_quant=H)
    give_gradients(params, 0)
    with pytest.warns(UserWarning, match="momentum_quant leaves GG of the state, a Factors, as it is"):
        optimizer.step()


class Averaging(torch.optim.SGD):
    """Swaps weights for others and back, as schedule-free optimizers do."""

    scale = 3

    @torch.no_grad()
    def eval(self, by=0.3):
        for p in self.param_groups[0]["params"][:-1]:
            p.data.mul_(by)
        return "evaluated"

    def train(self):
        self.eval(1 / 0.3)

    def nothing(self):
        return self.scale


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_methods_of_the_inner_optimizer_leave_weights_on_the_grid(mode, accumulate, dtype):
    params = [torch.nn.Parameter(p.detach().to(dtype)) for p in parameters([(4, 3), (5,), (2, 2)])]
    options = {"weight_quant": quantizer_for(F, mode), "acc_quant": quantizer_for(H, mode) if accumulate else None}
    optimizer = OptimLP(Averaging(params, lr=0.1), **options, key=KEY)
    give_gradients(params, 0)
    optimizer.step()
    before = [p.detach().clone() for p in params]
    exact = [optimizer.weight_acc[p].clone() for p in params] if accumulate else [p.float() for p in before]
    for p in params:
        p.grad = None  # as zero_grad leaves it
    assert optimizer.eval() == "evaluated"
    key = qcore.fold_in(qcore.fold_in(KEY, 1), 0xFFFFFFFF)
    for j, (p, x) in enumerate(zip(params[:-1], exact[:-1], strict=True)):
        x = x * 0.3
        if accumulate:
            x = rounded_by_law(x, H, 1, j, key, mode)
            assert_same_bits(optimizer.weight_acc[p], x)
        assert_same_bits(p.detach().float(), rounded_by_law(x, F, 2, j, key, mode))
    assert_same_bits(params[-1].detach(), before[-1])  # which the method did not change
    assert optimizer.steps == 1


def test_attributes_of_the_inner_optimizer():
    params = parameters([(4, 3), (5,), (2, 2)])
    optimizer = OptimLP(Averaging(params, lr=0.1), weight_quant=quantizer(F), momentum_quant=H)
    assert (optimizer.scale, optimizer.nothing(), optimizer.eval.__name__) == (3, 3, "eval")
    assert not hasattr(optimizer, "missing")
    assert not hasattr(optimizer, "_step_supports_amp_scaling")  # private: it says what the inner step can do
    again = copy.deepcopy(optimizer)
    assert again.scale == 3
    state = torch.get_rng_state()
    before = [p.detach().clone() for p in params]
    optimizer.nothing()
    for p, q in zip(params, before, strict=True):
        assert_same_bits(p.detach(), q)
    assert not torch.equal(state, torch.get_rng_state())  # a stochastic quantizer has a key, drawn as in a step


def test_methods_do_not_change_delayed_scales():
    params = parameters([(4, 3), (5,), (2, 2)])
    optimizer = OptimLP(Averaging(params, lr=0.1), weight_quant=DELAYED)
    give_gradients(params, 0)
    optimizer.step()
    rows = [optimizer.state[p]["low_precision_scaling_of_weight"].clone() for p in params]
    optimizer.eval()
    for p, row in zip(params, rows, strict=True):
        assert_same_bits(optimizer.state[p]["low_precision_scaling_of_weight"], row)


def test_complex_parameters_are_refused_before_any_step():
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    real = torch.nn.Parameter(torch.ones(2))
    for name in ("weight_quant", "grad_quant", "momentum_quant", "acc_quant"):
        with pytest.raises(TypeError, match=r"parameter 1 of torch.complex64; allowed are real ones"):
            OptimLP(torch.optim.SGD([real, p], lr=0.1), **{name: F})
    optimizer = OptimLP(torch.optim.SGD([real], lr=0.1), weight_quant=F)
    with pytest.raises(TypeError, match=r"parameter 1 of torch.complex64"):
        optimizer.add_param_group({"params": [p]})
    assert len(optimizer.param_groups) == 1
    OptimLP(torch.optim.SGD([torch.nn.Parameter(torch.view_as_real(p.detach()))], lr=0.1), weight_quant=F)
    OptimLP(torch.optim.SGD([p], lr=0.1), grad_scaling=2.0)  # which rounds nothing


def test_lbfgs_has_a_history_of_rounded_tensors():
    p = torch.nn.Parameter(torch.randn(5))
    optimizer = OptimLP(torch.optim.LBFGS([p], history_size=3, max_iter=2), momentum_quant="bfloat16")

    def closure():
        optimizer.zero_grad()
        loss = (p**4).sum() + p.sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    state = optimizer.state[p]
    assert state["old_dirs"]
    for x in (*state["old_dirs"], *state["old_stps"], state["d"]):
        assert_same_bits(x, qtorch.quantize(x, "bfloat16", "nearest"))
