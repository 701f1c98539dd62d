"""Optimizers with states in codes under FSDP2: each process steps its shard; checkpoints keep codes and scales."""

import os

import pytest
import torch
import torch.distributed.tensor
from processes import run_processes
from support import assert_same_bits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard

from qtorch.optim import Adam8bit, AdamW4bit, AdamW8bit, FlashAdamW, Muon

IMPORTS = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from qtorch.optim import AdamW4bit, AdamW8bit, AdamWFp8, FlashAdamW
"""

PROGRAM = """
mesh = init_device_mesh("cpu", (2,))
KINDS = [
    (AdamW8bit, torch.float32, {}),
    (AdamW4bit, torch.bfloat16, {"bf16_stochastic_round": True, "key": 7}),
    (AdamW8bit, torch.bfloat16, {"store_param_remainders": True, "amsgrad": True}),
    (AdamWFp8, torch.float32, {}),
    (FlashAdamW, torch.bfloat16, {}),
]


def make(dtype):
    # Of two shards: codes; floats, as a shard has fewer than 4,096 numbers; shards of several sizes
    torch.manual_seed(0)
    shapes = [(64, 128), (64, 64), (33, 256), (6,)]
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes])
    return model


def slopes(model, step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator).to(p.dtype) for p in model]


def step(model, optimizer, steps):
    for number in steps:
        for p, slope in zip(model, slopes(model, number)):
            p.grad = torch.distributed.tensor.distribute_tensor(slope, mesh) if hasattr(p, "to_local") else slope
        optimizer.step()


def equal(a, b):
    return a.dtype is b.dtype and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def local(x):
    return x.to_local() if hasattr(x, "to_local") else x


for kind, dtype, options in KINDS:
    model = fully_shard(make(dtype), mesh=mesh)
    optimizer = kind(model.parameters(), **options)
    step(model, optimizer, range(2))

    # The step of each shard alone; where shards have several sizes, states are floats instead.
    alone = [torch.nn.Parameter(x.chunk(2)[rank].clone()) for x in make(dtype)]
    others = kind(alone, **options)
    for number in range(2):
        for p, slope in zip(alone, slopes(make(dtype), number)):
            p.grad = slope.chunk(2)[rank].clone()
        others.step()
    for place, (p, q) in enumerate(zip(model, alone)):
        if place == 2:
            assert "exp_avg_scale" not in optimizer.state[p] and optimizer.state[p]["exp_avg"].dtype is dtype
        elif "key" not in options:
            assert equal(p.to_local(), q.detach()), (kind, place)
            for name, x in others.state[q].items():
                assert equal(local(optimizer.state[p][name]), x), (kind, place, name)
    coded = "3 of 4" if kind is FlashAdamW else "1 of 4"
    assert f"{coded} parameters" in repr(optimizer), repr(optimizer)

    # Shards of whole blocks are those of the whole parameter: the step of one process without shards, noise too.
    whole = make(dtype)
    unsharded = kind(whole, **options)
    step(whole, unsharded, range(2))
    assert equal(model[0].full_tensor(), whole[0].detach()), kind
    for name, x in unsharded.state[whole[0]].items():
        found = optimizer.state[model[0]][name]
        assert found.shape == x.shape
        assert equal(local(found), x if name == "step" else x.chunk(2)[rank]), (kind, name)

    # A checkpoint, loaded by another optimizer of two processes; and its first parameter by one without shards.
    saved = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    folder = f"{sys.argv[1]}-{kind.__name__}-{dtype}"
    dcp.save(saved, checkpoint_id=folder)
    again = fully_shard(make(dtype), mesh=mesh)
    second = kind(again.parameters(), **options)
    state = {"model": again.state_dict(), "optimizer": get_optimizer_state_dict(again, second)}
    dcp.load(state, checkpoint_id=folder)
    again.load_state_dict(state["model"])
    set_optimizer_state_dict(again, second, state["optimizer"])
    fresh = kind(make(dtype), **options)
    for place, (p, q) in enumerate(zip(model, again)):
        for name, x in optimizer.state[p].items():
            assert equal(local(second.state[q][name]), local(x)), (kind, place, name)
    step(model, optimizer, range(2, 4))
    step(again, second, range(2, 4))
    for p, q in zip(model, again):
        assert equal(p.to_local(), q.to_local()), kind
    one = {f"optimizer.state.0.{name}": torch.zeros_like(x) for name, x in unsharded.state[whole[0]].items()}
    dcp.load(one, checkpoint_id=folder)
    for name, x in unsharded.state[whole[0]].items():
        assert equal(one[f"optimizer.state.0.{name}"], x), (kind, name)

# float32 states of torch's AdamW become codes, shard by shard.
model = fully_shard(make(torch.float32), mesh=mesh)
plain = torch.optim.AdamW(model.parameters())
step(model, plain, range(1))
optimizer = AdamW8bit(model.parameters())
optimizer.load_state_dict(plain.state_dict())
alone = [torch.nn.Parameter(p.to_local().clone()) for p in model]
others = AdamW8bit(alone)
state = plain.state_dict()["state"]
own = {number: {name: local(x) for name, x in entries.items()} for number, entries in state.items()}
others.load_state_dict({"state": own, "param_groups": others.state_dict()["param_groups"]})
for name, x in others.state[alone[0]].items():
    assert equal(local(optimizer.state[model[0]][name]), x), name
step(model, optimizer, range(1, 2))
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_two_processes_of_fsdp(tmp_path):
    run_processes(IMPORTS, PROGRAM, 2, tmp_path / "store")


PLACEMENTS = Replicate(), Shard(0)  # on a mesh of copies of shards


@pytest.fixture(scope="module")
def mesh():
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield init_device_mesh("cpu", (1, 1))
    torch.distributed.destroy_process_group()


def sharded(mesh, *placements):
    x = torch.linspace(-1, 1, 8192).view(64, 128)
    return torch.nn.Parameter(torch.distributed.tensor.distribute_tensor(x, mesh, placements or PLACEMENTS))


@pytest.mark.parametrize(("kind", "name"), [(AdamW8bit, "exp_avg_scale"), (AdamW4bit, "exp_avg"), (FlashAdamW, None)])
def test_states_lie_as_the_parameter(kind, name, mesh):
    """Of a copy of shards; vectors are sharded along themselves. The step is that of the process's own tensor."""
    p = sharded(mesh)
    q = torch.nn.Parameter(p.detach().to_local().clone())
    first, second = kind([p]), kind([q])
    for x, optimizer in ((p, first), (q, second)):
        x.grad = x.detach() * 3
        optimizer.step()
    assert_same_bits(p.detach().to_local(), q.detach())
    for entry, x in second.state[q].items():
        if entry != "step":
            found = first.state[p][entry]
            assert found.placements == PLACEMENTS
            assert torch.equal(found.to_local(), x)
    again = kind([p])
    again.load_state_dict(first.state_dict())
    assert again.state[p]["exp_avg"].placements == PLACEMENTS
    assert "1 of 1 parameters" in repr(again)
    if name:
        assert first.state[p][name].ndim == 1


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("params has a DTensor; allowed are whole matrices", lambda p, mesh: Muon([p])),
        (
            "key=None with bf16_stochastic_round=True and a DTensor",
            lambda p, mesh: Adam8bit([p], bf16_stochastic_round=True),
        ),
        ("layout='torchao' with a DTensor; allowed is None", lambda p, mesh: Adam8bit([p]).state_dict("torchao")),
        ("allowed are shards and copies", lambda p, mesh: Adam8bit([sharded(mesh, Partial(), Shard(0))])),
        ("['exp_avg'] is a Tensor; allowed is one as the parameter", lambda p, mesh: loads_whole_states(p)),
    ],
)
def test_wrong(message, call, mesh):
    with pytest.raises((TypeError, ValueError)) as error:
        call(sharded(mesh), mesh)
    assert message in str(error.value)


def loads_whole_states(p):
    q = torch.nn.Parameter(torch.ones(64, 128))
    q.grad = torch.ones(64, 128)
    other = Adam8bit([q])
    other.step()
    Adam8bit([p]).load_state_dict(other.state_dict())
