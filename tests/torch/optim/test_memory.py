"""OptimLP writes in place: nothing moves, and what shares memory with a weight, or needed it as it was, notices."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from support import assert_all_same_bits, assert_same_bits
from torch_optim_support import F, H, give_gradients, parameters, quantizer_for, sgd, tensors_of, train

from qtorch import quantize
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer

SHAPES = [(4, 3, 2, 2), (5,), (), (6, 6), (1, 7), (0, 2), (300, 300)]


def optimizer_of(params, **options):
    return OptimLP(sgd(params), **{"weight_quant": F, "grad_quant": F, "momentum_quant": H, "acc_quant": H} | options)


def trained(steps=2, **options):
    params = parameters(SHAPES)
    optimizer = optimizer_of(params, **options)
    train(optimizer, params, range(steps))
    return optimizer, params


def places(tensors):
    return [(x.data_ptr(), x.untyped_storage().data_ptr(), x.untyped_storage().nbytes(), x.stride()) for x in tensors]


# Nothing moves

OPTIONS = {
    "nearest": {},
    "stochastic": dict.fromkeys(("weight_quant", "grad_quant", "momentum_quant", "acc_quant"), Quantizer(H)),
    "without accumulators": {"acc_quant": None},
    "scaled": {"grad_scaling": 0.5},
    "blocks": {"weight_quant": quantizer_for("mxfp8_e4m3", "nearest"), "momentum_quant": None},
    "functions": {"weight_quant": lambda x: quantize(x, F, "nearest"), "grad_quant": lambda x: x * 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_parameters_gradients_and_momenta_stay_where_they_are(name):
    params = [p for p in parameters(SHAPES) if p.dim() or name != "blocks"]
    whole = torch.zeros(2, 3)
    params += [
        torch.nn.Parameter(whole[1]),
        torch.nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
    ]
    before = places(params)
    optimizer = optimizer_of(params, **OPTIONS[name])
    assert places(params) == before
    for step in range(3):
        give_gradients(params, step)
        gradients = [p.grad for p in params]
        addresses = places(gradients)
        momenta = [optimizer.state[p]["momentum_buffer"] for p in params] if step else []
        of_momenta = places(momenta)
        optimizer.step()
        assert places(params) == before
        assert all(p.grad is gradient for p, gradient in zip(params, gradients, strict=True))
        assert places(gradients) == addresses
        assert places(momenta) == of_momenta
        if step:
            assert all(optimizer.state[p]["momentum_buffer"] is x for p, x in zip(params, momenta, strict=True))
    assert_same_bits(whole[1], params[-2])
    accumulators = places(optimizer.weight_acc.values())
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert places(params) == before
    assert places(optimizer.weight_acc.values()) == accumulators


def test_nothing_is_saved_or_copied_with_its_neighbours():
    params = parameters([(16,)] * 50)
    optimizer = optimizer_of(params)
    train(optimizer, params, range(2))
    for x in (params[0], optimizer.state[params[0]]["momentum_buffer"], optimizer.weight_acc[params[0]]):
        file = io.BytesIO()
        torch.save(x.detach(), file)
        assert file.tell() < 3000
        assert copy.deepcopy(x.detach()).untyped_storage().nbytes() == x.nbytes
    optimizer.zero_grad()
    assert len(pickle.dumps(optimizer)) < 150_000


def test_a_model_in_a_compiled_program_is_not_compiled_again():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    optimizer = optimizer_of(model.parameters())
    x, compilations = torch.ones(2, 4), []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph

    torch.compiler.reset()
    program = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        optimizer.zero_grad()
        y = program(x)
        assert_same_bits(y.detach(), model(x).detach())
        y.sum().backward()
        optimizer.step()
    assert len(compilations) == 1


# What shares memory with a weight


def of_a_copy_in_numpy(p):
    array = p.detach().numpy().copy()
    p.data = torch.from_numpy(array)
    return array


ALIASES = {
    "data": lambda p: p.data,
    "view": lambda p: p.detach().view(-1),
    "array": lambda p: p.detach().numpy(),
    "from an array": of_a_copy_in_numpy,
    "another parameter": lambda p: torch.nn.Parameter(p.data),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_see_what_is_written(alias):
    params = parameters(SHAPES)
    optimizer = optimizer_of(params)
    kept = ALIASES[alias](params[0])
    train(optimizer, params, range(2))
    seen = torch.from_numpy(kept) if isinstance(kept, np.ndarray) else kept
    assert_same_bits(seen.detach().view(params[0].shape), params[0])
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(*trained()))


def transposed(optimizer, params):
    params[3].data = params[3].data.t()


def replaced(optimizer, params):
    for p in params[1:3]:
        p.data = p.data * 3


def in_shared_memory(optimizer, params):
    for p in params:
        p.share_memory_()
        optimizer.state[p]["momentum_buffer"].share_memory_()


@pytest.mark.parametrize("change", [transposed, replaced, in_shared_memory])
def test_weights_may_get_other_memory(change):
    (optimizer, params), (twin, same) = trained(), trained()
    change(optimizer, params)
    before = places(params)
    with torch.no_grad():
        for p, x in zip(same, params, strict=True):
            p.copy_(x)
    train(optimizer, params, [2, 3])
    train(twin, same, [2, 3])
    assert places(params) == before
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(twin, same))


def test_memory_that_was_a_weights_is_left_alone():
    optimizer, params = trained()
    saved = [p.data for p in params]
    expected = [x.clone() for x in saved]
    for p, x in zip(params, parameters(SHAPES, seed=1), strict=True):
        p.data = x.detach()
    train(optimizer, params, [5])
    assert_all_same_bits(saved, expected)


# What backward passes have saved


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_a_backward_pass_notices_that_weights_and_gradients_were_written(mode):
    params = parameters([(6, 6)])
    options = {name: quantizer_for(H, mode) for name in ("weight_quant", "grad_quant")}
    optimizer = optimizer_of(params, **options)
    train(optimizer, params, range(1))
    factor = torch.ones(6, 6, requires_grad=True)
    give_gradients(params, 1)
    for saved in (params[0], params[0].grad):
        product = (saved * factor).sum()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_a_backward_pass_goes_on_where_a_weight_took_no_step():
    params = parameters([(3,), (6, 6)])
    optimizer = optimizer_of(params)
    train(optimizer, params, range(1))
    factor = torch.ones(6, 6, requires_grad=True)
    product = (params[1] * factor).sum()
    params[1].grad = None
    optimizer.step()
    product.backward()
    assert_same_bits(factor.grad, params[1])


# What is not contiguous, and what is read during a step


def test_tensors_may_have_any_strides():
    results = []
    for transpose in (True, False):
        params = parameters([(30, 20), (26, 30)])
        optimizer = optimizer_of(params)
        if transpose:
            params[1].data = params[1].data.t().contiguous().t()
        for step in range(2):
            give_gradients(params, step)
            if transpose:
                for p in params:
                    p.grad = p.grad.t().contiguous().t()
            optimizer.step()
        results.append(tensors_of(optimizer, params))
    assert_all_same_bits(*results)


def test_a_gradient_that_two_parameters_share_is_scaled_once():
    params = parameters([(5,), (5,)])
    shared = torch.full((5,), 0.75)
    params[0].grad = params[1].grad = shared
    OptimLP(sgd(params), grad_scaling=0.5, grad_quant=H).step()
    assert_same_bits(shared, torch.full((5,), 0.375))


def test_accumulators_may_be_read_while_they_are_in_the_place_of_the_weights():
    results = []
    for reads in (True, False):
        weights = parameters([(3,), (4,)])
        inner = torch.optim.LBFGS(weights, max_iter=3)
        optimizer = OptimLP(inner, weight_quant=F, acc_quant=H)

        def closure(reads=reads, optimizer=optimizer, weights=weights):
            optimizer.zero_grad()
            loss = sum((p - 0.3).pow(2).sum() for p in weights)
            loss.backward()
            if reads:
                assert len(optimizer.weight_acc) == 2
            return loss

        for _ in range(3):
            optimizer.step(closure)
        results.append(tensors_of(optimizer, weights))
    assert_all_same_bits(*results)


def test_steps_in_inference_mode_and_outside():
    """Memory that is made in one is written in the other."""
    results = []
    for inside in (True, False):
        params = parameters()
        inner = torch.optim.SGD(params, lr=0.1)  # without momenta, which torch would not write outside
        optimizer = OptimLP(inner, grad_quant=Quantizer(F), weight_quant=Quantizer(F), acc_quant=H, key=5)
        for seed in (0, 1):
            give_gradients(params, seed)
            with torch.inference_mode(inside and seed == 0):
                optimizer.step()
        results.append(tensors_of(optimizer, params))
    assert_all_same_bits(*results)
