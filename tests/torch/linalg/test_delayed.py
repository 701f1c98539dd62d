"""States of delayed scales: a backward pass advances each once, however often and wherever its layer is used."""

import copy
import os

import numpy as np
import pytest
import torch
from processes import run_processes
from support import assert_all_same_bits, assert_same_bits
from torch import nn
from torch.utils.checkpoint import checkpoint

from qtorch import Entry, Product, Recipe, linalg
from qtorch import _torch_internals as internals
from qtorch.recipes import lower

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
KEPT, GRADIENT = (
    f"operand(binary({bits},specials=fn,overflow=saturate),scale=scale(history=3))" for bits in ("4,3", "5,2")
)
PRODUCTS = {"operands": (KEPT, KEPT), "grad_input": f"product({GRADIENT},{KEPT})"}
PRODUCTS["grad_weight"] = PRODUCTS["grad_input"]


def recomputed(model, x):
    return checkpoint(model, x, use_reentrant=False)


def reentrant(model, x):
    return checkpoint(model, x, use_reentrant=True)


def nested(model, x):
    return reentrant(lambda x: reentrant(model, x), x)


WAYS = [lambda model, x: model(x), recomputed, reentrant, nested]


def make():
    torch.manual_seed(0)
    return nn.Sequential(linalg.Linear(8, 8, **PRODUCTS), nn.Tanh(), linalg.Linear(8, 2, **PRODUCTS))


def steps(model, call):
    """Gradients and states of three steps that use the model twice."""
    found = []
    for factor in (1.0, 100.0, 0.01):
        model.zero_grad()
        uses = [call(model, (factor * x).requires_grad_()).square().mean() for x in (X, 3 * X)]
        sum(uses).backward()
        found += [p.grad.clone() for p in model.parameters()] + [model[i].scaling.clone() for i in (0, 2)]
    return found


EXPECTED = steps(make(), WAYS[0])


@pytest.mark.parametrize("call", WAYS[1:])
def test_what_checkpointing_computes_again_has_the_scales_of_before(call):
    assert_all_same_bits(steps(make(), call), EXPECTED)


@pytest.mark.parametrize("call", [reentrant, *(pytest.param(way, marks=pytest.mark.heavy) for way in WAYS[:2])])
def test_compiled_programs_agree(call):
    torch._dynamo.reset()
    assert_all_same_bits(steps(make(), lambda model, x: call(compiled(model), x)), EXPECTED)


def compiled(model):
    return torch.compile(model, backend="aot_eager", fullgraph=True)


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_programs_that_use_a_layer_twice_agree(backend):
    torch._dynamo.reset()
    layer, other = make()[0], make()[0]
    program = torch.compile(lambda x: other(other(x)).square().sum(), backend=backend, fullgraph=True)
    for factor in (1.0, 100.0, 0.01):
        layer(layer(factor * X)).square().sum().backward()
        program(factor * X).backward()
        assert_same_bits(layer.scaling, other.scaling)
        assert_same_bits(layer.weight.grad, other.weight.grad)


@pytest.mark.parametrize("values", [(2.0, 5.0, 3.0), (np.inf, 5.0, 3.0), (1.0, np.nan, 3.0), (0.0, 0.0, 0.0)])
def test_the_law_of_several_uses(values):
    """A pass adds the largest magnitude of all uses, once, to the history; that of X is every fourth number's."""
    state = linalg.first_scaling(3)
    weight = torch.ones(1, 1, requires_grad=True)
    scale, past = 1.0, [0.0, 0.0, 0.0]
    for passes in range(1, 3):
        each = [passes * torch.tensor([[value]]) for value in values]
        uses = [linalg.linear(x, weight, **PRODUCTS, scaling=state) for x in each]
        assert state[0].tolist() == pytest.approx([scale, *past], rel=1e-6, nan_ok=True)
        sum(y.sum() for y in uses).backward()
        past = [np.nan if np.isnan(values).any() else passes * max(values), *past[:2]]
        if 0.0 < max(past) < np.inf and not np.isnan(past).any():
            scale = 448.0 / max(past)
        assert state[0].tolist() == pytest.approx([scale, *past], rel=1e-6, nan_ok=True)


def test_each_backward_pass_is_one_step_and_a_failed_one_is_none():
    layer = make()[0]
    one, other = layer(X).sum(), layer(3 * X).sum()
    one.backward()
    other.backward()
    largest = X.abs().max()
    assert layer.scaling[0, 1:3].tolist() == [3 * largest, largest]
    before = layer.scaling.clone()
    x = (7 * X).requires_grad_()
    y = layer(x)
    x.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    assert_same_bits(layer.scaling, before)
    layer(5 * X).sum().backward()
    assert layer.scaling[0, 1] == (5 * X).abs().max()


def test_torch_func_grad_is_a_backward_pass():
    layer, other = make()[0], make()[0]
    weights = {name: p.detach() for name, p in layer.named_parameters()}
    for factor in (1, 3):
        other.zero_grad()
        other(factor * X).square().sum().backward()
        found = torch.func.grad(lambda w, x=factor * X: torch.func.functional_call(layer, w, (x,)).square().sum())(
            weights
        )
        assert_same_bits(found["weight"], other.weight.grad)
        assert_same_bits(layer.scaling, other.scaling)
    with pytest.raises(NotImplementedError, match="products with delayed scales have no forward-mode derivatives"):
        torch.func.jvp(layer, (X,), (X,))


def test_one_state_of_two_formats_is_refused():
    state, weight = linalg.first_scaling(3), torch.ones(2, 8, requires_grad=True)
    coarse = PRODUCTS | {"operands": (GRADIENT, KEPT), "grad_weight": f"product({GRADIENT},{GRADIENT})"}
    y = linalg.linear(X, weight, **PRODUCTS, scaling=state) + linalg.linear(X, weight, **coarse, scaling=state)
    with pytest.raises(ValueError, match=r"scaling is the state of .* and of .*; allowed is a state of its own"):
        y.sum().backward()


@pytest.mark.parametrize("part", ["_graph_task", "_queue_callback"])
def test_a_torch_without_ends_of_passes_is_refused(part, monkeypatch):
    monkeypatch.setattr(internals, part, None)
    with pytest.raises(RuntimeError, match="does not say when a backward pass ends"):
        make()(X)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, 8))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


@pytest.mark.parametrize("make_layer", [lambda: nn.Linear(8, 2), Block])
def test_reset_parameters_resets_what_to_empty_leaves(make_layer):
    product = Product(KEPT, KEPT)
    backward = Product(GRADIENT, KEPT)
    with torch.device("meta"):
        model = lower(nn.Sequential(make_layer()), Recipe([Entry("*", None, product, backward, backward)]))
    layer = copy.deepcopy(model).to_empty(device="cpu")[0]
    (state,) = layer.buffers()
    state.fill_(-1.0)
    layer.reset_parameters()
    assert_same_bits(state, linalg.first_scaling(3))


IMPORTS = """
import torch
from torch.nn.parallel import DistributedDataParallel

from qtorch import linalg
from qtorch.quant import Quantizer
"""

PROGRAM = """
kept = "operand(e4m3fn,scale=scale(history=3{}))"


def make(more):
    torch.manual_seed(0)
    said = {"operands": [kept.format(more)] * 2} | dict.fromkeys(
        ("grad_input", "grad_weight"), "product({0},{0})".format(kept.format(more))
    )
    rounded = "scaled(e5m2,{{...:None}},scale=float32,history=3{0})".format(more)
    rounding = Quantizer(rounded, rounded, "nearest", "nearest")
    return torch.nn.Sequential(linalg.Linear(4, 4, **said), rounding, linalg.Linear(4, 2, **said))


def inputs(step, part):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + part))
    return x.fill_(torch.nan) if (step, part) == (3, 1) else x


def same(x, y):
    assert torch.equal(x.view(torch.int32), y.view(torch.int32)), (rank, x, y)


for more in ("", ",reduce_amax=False"):
    model, alone = make(more), make(",reduce_amax=False")
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    for step in range(4):
        parallel(inputs(step, rank)).square().sum().backward()
        # One process that uses its layers for both parts has the largest magnitudes of both.
        sum(alone(inputs(step, part)).square().sum() for part in ([rank] if more else range(2))).backward()
        for i in range(3):
            same(model[i].scaling, alone[i].scaling)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_processes_have_the_largest_magnitudes_of_all(tmp_path):
    run_processes(IMPORTS, PROGRAM, 2, tmp_path / "store")
