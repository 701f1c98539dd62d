"""Where weights, momenta and gradients lie: moved side by side if nobody can miss them, left where somebody would."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from support import assert_all_same_bits, assert_same_bits
from torch_optim_support import F, H, give_gradients, parameters, sgd, tensors_of, train

from qtorch import quantize
from qtorch.lanes import ROW
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
SHAPES = [(4, 3, 2, 2), (5,), (), (6, 6), (1, 7), (0, 2)]


def optimizer_of(params, **options):
    return OptimLP(sgd(params), **{"weight_quant": F, "grad_quant": F, "momentum_quant": H, "acc_quant": H} | options)


def trained(steps=2, **options):
    params = parameters(SHAPES)
    optimizer = optimizer_of(params, **options)
    train(optimizer, params, range(steps))
    return optimizer, params


def left_alone(steps=2):
    """The same, but nothing was moved, and momenta are rounded one by one."""
    params = parameters(SHAPES)
    kept = [p.data for p in params]
    optimizer = optimizer_of(params, momentum_quant=lambda x: quantize(x, H, "nearest"))
    train(optimizer, params, range(steps))
    assert [p.data_ptr() for p in params] == [x.data_ptr() for x in kept]
    return optimizer, params


def lie_side_by_side(tensors):
    """In whole rows."""
    filled = [x for x in tensors if x.numel()]
    ends = [x.data_ptr() + -(-x.numel() // ROW) * ROW * x.element_size() for x in filled]
    return ends[:-1] == [x.data_ptr() for x in filled[1:]]


# What is moved


@pytest.mark.parametrize("acc_quant", [H, None], ids=["accumulators", "none"])
def test_weights_and_momenta_are_moved_once(acc_quant):
    optimizer, params = trained(1, acc_quant=acc_quant)
    momenta = [optimizer.state[p]["momentum_buffer"] for p in params]
    assert lie_side_by_side(params)
    assert lie_side_by_side(momenta)
    before = [p.data_ptr() for p in params]
    train(optimizer, params, [1, 2])
    assert [p.data_ptr() for p in params] == before
    assert all(optimizer.state[p]["momentum_buffer"] is x for p, x in zip(params, momenta, strict=True))


def test_layers_are_moved_after_a_backward_pass():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    optimizer = optimizer_of(layers.parameters())
    loss = layers(torch.ones(2, 3, 8, 8)).pow(2).sum()
    loss.backward()
    optimizer.step()
    assert lie_side_by_side(list(layers.parameters()))


def test_each_dtype_lies_by_itself():
    results = []
    for movable in (True, False):
        mixed = [p for shape in SHAPES for dtype in DTYPES for p in parameters([shape], dtype=dtype)]
        kept = [] if movable else [p.data for p in mixed]
        optimizer = optimizer_of(mixed)
        train(optimizer, mixed, range(2))
        assert [lie_side_by_side(mixed[n :: len(DTYPES)]) for n in range(len(DTYPES))] == [not kept] * len(DTYPES)
        results.append(tensors_of(optimizer, mixed))
    assert_all_same_bits(*results)


def test_nothing_is_saved_or_copied_with_its_neighbours():
    params = parameters([(16,)] * 50)
    optimizer = optimizer_of(params)
    train(optimizer, params, range(2))
    momentum = optimizer.state[params[0]]["momentum_buffer"]
    for x in (params[0], momentum):
        file = io.BytesIO()
        torch.save(x.detach(), file)
        assert file.tell() < 3000
        assert len(pickle.dumps(x.detach())) < 1000
        assert copy.deepcopy(x.detach()).untyped_storage().nbytes() == x.nbytes
    optimizer.zero_grad()
    assert len(pickle.dumps(params)) < 50_000
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
    assert lie_side_by_side(list(model.parameters()))


# What is left where it is


def of_a_view(p):
    base = torch.zeros(2, *p.shape)
    p.data = base[1].copy_(p.data)
    return base[1]


def of_a_copy_in_numpy(p):
    array = p.detach().numpy().copy()
    p.data = torch.from_numpy(array)
    return array


def of_shared_memory(p):
    p.share_memory_()
    return p.data_ptr


ALIASES = {
    "data": lambda p: p.data,
    "view": lambda p: p.detach().view(-1),
    "array": lambda p: p.detach().numpy(),
    "storage": lambda p: p.untyped_storage(),
    "state dict": lambda p: torch.nn.ParameterList([p]).state_dict(),
    "a part of more": of_a_view,
    "from an array": of_a_copy_in_numpy,
    "shared memory": of_shared_memory,
    "channels last": lambda p: setattr(p, "data", p.data.to(memory_format=torch.channels_last)),
    "another parameter": lambda p: torch.nn.Parameter(p.data),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_what_somebody_else_refers_to_stays_and_is_written_there(alias):
    params = parameters(SHAPES)
    optimizer = optimizer_of(params)
    kept = ALIASES[alias](params[0])
    before, strides = params[0].data_ptr(), params[0].stride()
    train(optimizer, params, range(2))
    assert (params[0].data_ptr(), params[0].stride()) == (before, strides)
    assert lie_side_by_side(params[1:])
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(*trained()))
    if isinstance(kept, np.ndarray | torch.Tensor):
        assert_same_bits(torch.as_tensor(kept).detach().view(params[0].shape), params[0])


# Tensors that leave


def with_aliases(optimizer, params):
    """Weights kept aside by reference, others in their place for a step, and the former put back."""
    saved = [p.data for p in params]
    expected = [x.clone() for x in saved]
    for p, x in zip(params, parameters(SHAPES, seed=1), strict=True):
        p.data = x.detach()
    train(optimizer, params, [5])
    assert_all_same_bits(saved, expected)
    for p, x in zip(params, saved, strict=True):
        p.data = x


def transposed(optimizer, params):
    params[3].data = params[3].data.t()


def replaced(optimizer, params):
    for p in params[1:3]:
        p.data = p.data * 3


def in_shared_memory(optimizer, params):
    for p in params:
        p.share_memory_()
        optimizer.state[p]["momentum_buffer"].share_memory_()


def tied(optimizer, params):
    params[1].data = params[3].data[1:, -5:][0]


def loaded(optimizer, params):
    torch.nn.ParameterList(params).load_state_dict(torch.nn.ParameterList(parameters(SHAPES, seed=1)).state_dict())


@pytest.mark.parametrize("change", [with_aliases, transposed, replaced, in_shared_memory, tied, loaded])
def test_those_that_leave_are_followed(change):
    results = []
    for make in (trained, left_alone):
        optimizer, params = make()
        change(optimizer, params)
        train(optimizer, params, [2, 3])
        results.append(tensors_of(optimizer, params))
    assert_all_same_bits(*results)


def test_a_layout_that_is_made_anew_leaves_weights_where_they_are():
    optimizer, params = trained()
    twin, same = left_alone()
    before = [p.data_ptr() for p in params]
    for it, all_params in ((optimizer, params), (twin, same)):
        all_params += parameters([(3, 2)], seed=5)
        it.add_param_group({"params": all_params[-1:]})
        train(it, all_params, [2, 3])
    assert [p.data_ptr() for p in params[:-1]] == before
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(twin, same))


# What backward passes have saved


@pytest.mark.parametrize("shape", [(6, 6), (300, 300)], ids=["small", "large"])
def test_a_backward_pass_notices_that_weights_and_gradients_were_written(shape):
    params = parameters([shape])
    optimizer = optimizer_of(params)
    train(optimizer, params, range(1))
    factor = torch.ones(shape, requires_grad=True)
    give_gradients(params, 1)
    for saved in (params[0], params[0].grad):
        product = (saved * factor).sum()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.parametrize("shape", [(6, 6), (300, 300)], ids=["small", "large"])
def test_a_backward_pass_goes_on_where_a_weight_took_no_step(shape):
    params = parameters([(3,), shape])
    optimizer = optimizer_of(params)
    train(optimizer, params, range(1))
    factor = torch.ones(shape, requires_grad=True)
    product = (params[1] * factor).sum()
    params[1].grad = None
    optimizer.step()
    product.backward()
    assert_same_bits(factor.grad, params[1])


# What is not contiguous, and what is read during a step


def test_large_tensors_may_have_any_strides():
    results = []
    for transpose in (True, False):
        params = parameters([(300, 300), (260, 300)])
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
