"""Checkpoints of optimizers in codes: torchao's and bitsandbytes' load here, and ours load there."""

import copy
import tempfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from qcore.reproducible import StateCodes
from qtorch import reproducible
from qtorch.optim import Adam4bit, AdamFp8, AdamW4bit, AdamW8bit, FlashAdamW, OptimLP

SHAPES = (16, 256), (17, 300), (10,)  # codes in both; in bitsandbytes alone; floats
MOMENTS = {"exp_avg": "dynamic", "exp_avg_sq": "udynamic"}


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def stepped(kind, params, steps=2, **options):
    optimizer = kind(params, lr=1e-2, **options)
    move(optimizer, params, range(steps))
    return optimizer


def move(optimizer, params, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step + 1)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert torch.equal(x, other[name]) if isinstance(x, torch.Tensor) else x == other[name]


@pytest.mark.parametrize("kind", [AdamW8bit, Adam4bit, AdamFp8])
def test_torchao(kind):
    """Their optimizer loads ours, with the numbers that the states stand for; and ours what theirs then saves."""
    optim = pytest.importorskip("torchao.optim")
    params = parameters()
    ours, theirs = stepped(kind, params), getattr(optim, kind.__name__)(params)
    theirs.load_state_dict(ours.state_dict(layout="torchao"))
    assert isinstance(theirs.param_groups[0]["lr"], torch.Tensor)
    for p in params:
        for place, name in enumerate(MOMENTS):
            found, own = theirs.state[p][name], ours.state[p]
            if name + "_scale" in own:
                codes = ours._codes_of(p, ours.param_groups[0])[place]
                x = reproducible.decode_state(own[name], own[name + "_scale"], codes, tuple(p.shape))
                assert type(found) is type(theirs._new_buffer(p, True))
                assert torch.equal(found.dequantize(), x)
            else:
                assert torch.equal(found, own[name])
    again = kind(params)
    again.load_state_dict(theirs.state_dict())
    for p in params:
        assert_same_state(ours.state[p], again.state[p])


@pytest.fixture
def bnb():
    return pytest.importorskip("bitsandbytes")


def test_bitsandbytes_to_us(bnb):
    """Codes move as they are, or as floats where our tensors have none; 4 bits encode the numbers again."""
    params = parameters()
    theirs = bnb.optim.AdamW8bit(params, lr=0.5)
    numbers = []
    for place, p in enumerate(params):
        theirs.init_state(theirs.param_groups[0], p, 0, place)
        state = theirs.state[p]
        state["step"] = 3
        for part in (1, 2):
            x = torch.randn_like(p) if part == 1 else torch.rand_like(p)
            if "absmax1" in state:
                codes, kept = bnb.functional.quantize_blockwise(x, code=state[f"qmap{part}"], blocksize=256)
                state[f"state{part}"], state[f"absmax{part}"] = codes, kept.absmax
                x = bnb.functional.dequantize_blockwise(codes, kept)
            else:
                state[f"state{part}"] = x
            numbers.append(x)
    ours, four = AdamW8bit(params), AdamW4bit(params)
    saved = copy.deepcopy(theirs.state_dict())
    ours.load_state_dict(saved)
    four.load_state_dict(saved)
    assert ours.param_groups[0]["lr"] == 0.5
    rest = iter(numbers)
    for p in params:
        own = ours.state[p]
        assert own["step"] == 3
        for name, kind in MOMENTS.items():
            x = next(rest)
            found = own[name]
            if name + "_scale" in own:
                found = reproducible.decode_state(found, own[name + "_scale"], StateCodes(kind), tuple(p.shape))
            assert torch.equal(found, x)
    assert four.state[params[0]]["exp_avg"].numel() == 2048
    move(ours, params, [0])


def test_bitsandbytes_from_us(bnb):
    params = parameters()[::2]
    ours, theirs = stepped(AdamW8bit, params), bnb.optim.AdamW8bit(params)
    theirs.load_state_dict(ours.state_dict(layout="bitsandbytes"))
    theirs.fill_qmap()
    state, own = theirs.state[params[0]], ours.state[params[0]]
    for part, name in enumerate(MOMENTS, 1):
        assert torch.equal(state[f"state{part}"], own[name])
        assert torch.equal(state[f"absmax{part}"], own[name + "_scale"])
        assert torch.equal(state[f"qmap{part}"], theirs.name2qmap["u" * (part - 1) + "dynamic"])
        assert torch.equal(theirs.state[params[1]][f"state{part}"], ours.state[params[1]][name])
    again = AdamW8bit(params)
    again.load_state_dict(theirs.state_dict() | {"param_groups": ours.state_dict()["param_groups"]})
    for p in params:
        assert_same_state(ours.state[p], again.state[p])
    with pytest.raises(ValueError, match="layout='bitsandbytes' with codes dynamic4 in blocks of 128; allowed are"):
        stepped(AdamW4bit, params).state_dict(layout="bitsandbytes")


def test_float_states_convert_in_a_run():
    """torch's AdamW hands over in the middle: its moments become codes once."""
    params = parameters()
    theirs = stepped(torch.optim.AdamW, params)
    ours = AdamW8bit(params)
    ours.load_state_dict(theirs.state_dict())
    codes, scale = reproducible.encode_state(theirs.state[params[0]]["exp_avg"], StateCodes("dynamic"))
    assert torch.equal(ours.state[params[0]]["exp_avg"], codes)
    assert torch.equal(ours.state[params[0]]["exp_avg_scale"], scale)
    move(ours, params, [2])
    assert ours.state[params[0]]["step"] == 3


def low_precision(params, lr):
    return OptimLP(torch.optim.Adam(params, lr), momentum_quant="mxfp8_e4m3", state_storage="codes")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", [AdamW8bit, FlashAdamW, low_precision])
def test_distributed_checkpoint(kind):
    """A run goes on with the same bits after a checkpoint of torch.distributed.checkpoint."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for place in range(2):
            model = torch.nn.Linear(64, 64).bfloat16()
            optimizer = kind(model.parameters(), lr=1e-2)
            if place == 0:
                move(optimizer, [*model.parameters()], range(2))
            saved = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
            (dcp.save, dcp.load)[place](saved, checkpoint_id=folder, no_dist=True)
            if place == 1:
                model.load_state_dict(saved["model"])
                set_optimizer_state_dict(model, optimizer, saved["optimizer"])
            runs.append((optimizer, [*model.parameters()]))
    for optimizer, params in runs:
        move(optimizer, params, range(2, 4))
    (first, ours), (second, theirs) = runs
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q)
        assert_same_state(first.state[p], second.state[q])
