"""Tensors sharded over four processes: the bits of the whole tensor, whatever lies where."""

import os
import sys
import types

import pytest
import torch
from processes import run_processes

import qtorch

IMPORTS = """
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import qtorch
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer
"""

PROGRAM = """
line, square = (init_device_mesh("cpu", shape) for shape in ((4,), (2, 2)))
x = torch.randn(6, 8, 10, generator=torch.Generator().manual_seed(0)) ** 5


def same(actual, expected, what):
    actual = actual.full_tensor() if isinstance(actual, DTensor) else actual
    assert actual.dtype == expected.dtype, what
    assert torch.equal(actual.contiguous().view(torch.int16), expected.contiguous().view(torch.int16)), what


def one_first(compute):  # kernels are compiled once, and not by each process
    if rank:
        dist.barrier()
    result = compute()
    if not rank:
        dist.barrier()
    return result


# Placements: of equal and of unequal parts, of none, along one dimension twice and along two.
PLACED = [(line, [Shard(dim)]) for dim in range(3)] + [(line, [Replicate()])]
PLACED += [(square, list(two)) for two in ((Shard(0), Shard(0)), (Shard(0), Shard(2)), (Replicate(), Shard(1)))]
NUMBERS = [
    "e5m2",
    "posit16",
    qtorch.FixedPoint(8, 4),
    *(qtorch.BlockFloatingPoint(6, dim) for dim in (-1, 0, 2)),
    qtorch.BlockScaled("e2m1fn", {-1: 4}),
    qtorch.NVFP4({-1: 5}),
]
if not {whole}:  # every second place; blocks along the first and the last dimension, with one scale and with two
    PLACED, NUMBERS = PLACED[::2], [NUMBERS[place] for place in (0, 3, 4, 7)]
MODES = [("nearest", {}), ("stochastic", {"key": 5, "start": 2**32 - 7})] * (len(NUMBERS) // 2)  # in turns
VALUES = [(x[:5], NUMBERS), (x[:3, :1].mT.to(torch.bfloat16), NUMBERS[::3])]  # 5 rows over 2 x 2 are 2, 1, 1 and 1
for place, (mesh, placements) in enumerate(PLACED):
    for values, numbers in VALUES:
        numbers = numbers[place % 2 :: 2]
        sharded = distribute_tensor(values, mesh, placements)
        for number, (mode, options) in zip(numbers, MODES):
            expected = one_first(lambda: qtorch.quantize(values, number, mode, **options))
            y = qtorch.quantize(sharded, number, mode, **options)
            assert y.placements == tuple(placements)
            same(y, expected, f"{number} {mode} {placements} {values.shape}")
    MODES.reverse()
few = qtorch.quantize(distribute_tensor(x, DeviceMesh("cpu", [0, 1]), [Shard(0)]), "e5m2", "stochastic", key=5)
if rank < 2:  # the others have no part
    same(few, qtorch.quantize(x, "e5m2", "stochastic", key=5), "fewer processes")
ones = DTensor.from_local(torch.full((5,), 0.3), line, [Partial()])
same(qtorch.quantize(ones, "e5m2", "nearest"), torch.full((5,), 1.25), "a sum")


# Statistics

for place, (mesh, placements) in enumerate(PLACED):
    for number in ("e4m3fn", "scaled(e2m1fn,{-1:4})", "nvfp4")[place % 3 :][:1]:
        of_whole = one_first(lambda: qtorch.insight.statistics_of(x, number, "stochastic", key=5))
        of_parts = qtorch.insight.statistics_of(distribute_tensor(x, mesh, placements), number, "stochastic", key=5)
        assert of_parts.differing(of_whole) == [], f"statistics {number} {placements}"


# Gradients, and where they are masked

for mode, key in (("nearest", None), ("stochastic", 3)):
    quantizer = Quantizer("int4", "e5m2", mode, mode, clamping_grad_zero=True)
    leaf, whole = distribute_tensor(x, line, [Shard(0)]).requires_grad_(), x.clone().requires_grad_()
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    one_first(lambda: quantizer(whole, key).backward(gradient))
    quantizer(leaf, key).backward(distribute_tensor(gradient, line, [Shard(0)]))
    same(leaf.grad, whole.grad, mode)


# What has no place for parts says so

def mapped(x, number):
    return torch.vmap(lambda row: qtorch.quantize(row, number, "nearest"))(x)


for function in (qtorch.encode, lambda x, number: qtorch.decode(x.to(torch.uint8), number), mapped):
    try:
        function(distribute_tensor(x, line, [Shard(0)]), "e5m2")
    except TypeError as error:
        assert "is a DTensor" in str(error) and "is a tensor of one process" in str(error), error
    else:
        raise AssertionError(function)


# Products: sharded results, and sums that are gathered first

def results_of(kind, *tensors, **options):
    y = getattr(qtorch.linalg, kind)(*(t.requires_grad_() for t in tensors), key=5, **options)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    y.backward(distribute_tensor(gradient, line, [Shard(0)]) if isinstance(y, DTensor) else gradient)
    return y, *(t.grad for t in tensors)


def products(kind, a, b, placed, **options):
    expected = one_first(lambda: results_of(kind, a.clone(), b.clone(), **options))
    found = results_of(kind, *(distribute_tensor(t, line, [p]) for t, p in zip((a, b), placed)), **options)
    for actual, one in zip(found, expected):
        same(actual.detach(), one.detach(), f"{kind} {placed} {options}")
    return found[0].placements[0]


a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((2, 6, 8), (5, 8)))
half = qtorch.Accumulator("float(6,9)", chunk=2)
words = qtorch.Accumulator("float(6,9)", chunk=4, rounding="stochastic")
low = {"operands": ("e4m3fn", "block(6,dim=0)"), "accumulator": half}
assert products("linear", a, b, (Shard(1), Replicate()), **low) == Shard(1)
assert products("linear", a, b, (Shard(2), Shard(1))) == Replicate()
assert products("matmul", a, b.T.contiguous(), (Replicate(), Shard(1)), **low) == Shard(2)
images, taps = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(2)), b.reshape(5, 2, 4)[..., :3]
assert products("conv1d", images, taps, (Shard(0), Replicate()), **low) == Shard(0)
if {whole}:
    assert products("linear", a, b, (Replicate(), Shard(0)), **low) == Shard(2)
    assert products("linear", a, b, (Shard(0), Shard(1)), accumulator=words) == Replicate()
    assert products("bmm", a, a.mT.contiguous(), (Replicate(), Shard(0)), **low) == Shard(0)
    assert products("conv1d", images, taps, (Replicate(), Shard(0)), **low) == Shard(1)
layer = qtorch.linalg.linear(*(distribute_tensor(t, line, [Shard(0)]) for t in (a, b, b[:, 0])))
same(layer, qtorch.linalg.linear(a, b, b[:, 0]), "bias")
try:
    qtorch.linalg.linear(a, distribute_tensor(b, line, [Shard(0)]))
except TypeError as error:
    assert "input and weight lie on None and" in str(error), error
else:
    raise AssertionError("a tensor beside a DTensor")
for operand in ("operand(e4m3fn,scale=scale())", "operand(e4m3fn,scale=scale(outer=1,terms=4))"):
    try:
        pair = [distribute_tensor(t, line, [Shard(0)]) for t in (a, b)]
        qtorch.linalg.linear(*pair, operands=(operand, operand), accumulator="accumulator(chunk=4)")
    except TypeError as error:
        assert "input or weight is a DTensor; allowed are operands without scales there" in str(error), error
    else:
        raise AssertionError(f"a DTensor with {operand}")


# Steps of training, after the second of which others have changed a weight that has no gradient then

def steps(wrap):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 30), torch.nn.ReLU(), torch.nn.Linear(30, 12))
    if wrap:
        model = fully_shard(model, mesh=line)
    parameters = [torch.nn.Parameter(torch.ones(3)), *model.parameters()]  # the first one is whole everywhere
    rounding = [Quantizer(number) for number in ("e5m2", "e5m2", "bfloat16", "bfloat16")]
    inner = torch.optim.SGD(parameters, lr=0.25, momentum=0.5)
    optimizer = OptimLP(inner, rounding[0], 0.5, rounding[1], *rounding[2:], key=7)
    for step in range(3):
        data = torch.Generator().manual_seed(step)
        for p in parameters:
            gradient = torch.randn(p.shape, generator=data)
            p.grad = distribute_tensor(gradient, line, p.placements) if isinstance(p, DTensor) else gradient
        if step == 1:
            p.data.mul_(0.5)
            p.grad = None
        version = p._version
        optimizer.step()
        assert step != 1 or p._version == version  # autograd need not know
        states = [optimizer.state[p]["momentum_buffer"] for p in parameters]
        accumulators = [optimizer.weight_acc[p] for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        yield from (x.detach().clone() for x in (*parameters, *states, *accumulators, *gradients))
    optimizer.load_state_dict(optimizer.state_dict())
    if not rank:  # which must not wait for the others
        assert len(optimizer.weight_acc) == len(parameters)
    yield from optimizer.weight_acc.values()


whole = one_first(lambda: [*steps(False)])
for i, (actual, expected) in enumerate(zip(steps(True), whole, strict=True)):
    same(actual, expected, f"tensor {i}")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_the_bits_of_the_whole_tensor(whole, tmp_path):
    run_processes(IMPORTS, PROGRAM.replace("{whole}", str(whole)), 4, tmp_path / "store")


def test_while_another_thread_imports_distributed_tensors(monkeypatch):
    """Half imported, the module is in the table of modules and has no class yet."""
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", types.ModuleType("torch.distributed.tensor"))
    a = torch.ones(2, 2)
    assert torch.equal(qtorch.linalg.matmul(a, a), 2 * a)
    assert torch.equal(qtorch.decode(qtorch.encode(a, "e5m2"), "e5m2"), a)
