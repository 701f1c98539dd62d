"""What OptimLP saves, pickles and copies continues with the same bits."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint.state_dict as checkpoint
from support import assert_all_same_bits, assert_same_bits
from torch_optim_support import KEY, F, H, quantizer_for, sgd, tensors_of, train, trained

from qtorch.optim import OptimLP
from qtorch.quant import Quantizer

MODEL_PROGRAM = """
import sys, torch
from test_checkpoints import checkpointed, gradients_of_model
first = sys.argv[2]
saved = torch.load(sys.argv[1], weights_only=True)
model, optimizer, scheduler = checkpointed(saved["mode"], None if saved["key"] is None else 12345)
loads = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
for name in sorted(loads, key=lambda name: name != first):
    loads[name].load_state_dict(saved[name])
torch.set_rng_state(saved["rng"])
for step in range(3, 6):
    gradients_of_model(model, step)
    optimizer.step()
    scheduler.step()
torch.save([model.state_dict(), optimizer.state_dict()], sys.argv[1] + ".out")
"""


def checkpointed(mode, key):
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    quantizers = {name: quantizer_for(F, mode) for name in ("weight_quant", "grad_quant", "momentum_quant")}
    inner = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = OptimLP(inner, **quantizers, acc_quant=quantizer_for(H, mode), key=key)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)


def gradients_of_model(model, step):
    """Numbers of a generator: the sums of torch's products are not the same in each process."""
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)
    model[1].running_mean.copy_(torch.randn(4, generator=generator))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mode", "key", "first"),
    [pytest.param("stochastic", KEY, "model", marks=pytest.mark.heavy), ("stochastic", None, "optimizer")],
)
def test_a_fresh_process_continues_with_the_same_bits(mode, key, first, tmp_path):
    torch.manual_seed(0)
    model, optimizer, scheduler = checkpointed(mode, key)
    for step in range(6):
        if step == 3:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state | {"mode": mode, "key": key, "rng": torch.get_rng_state()}, tmp_path / "saved")
        gradients_of_model(model, step)
        optimizer.step()
        scheduler.step()
    arguments = [str(tmp_path / "saved"), first]
    path = {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    subprocess.run([sys.executable, "-c", MODEL_PROGRAM, *arguments], check=True, env=os.environ | path)
    weights, state = torch.load(tmp_path / "saved.out", weights_only=True)
    assert_all_same_bits(list(weights.values()), list(model.state_dict().values()))
    expected = optimizer.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    group = state["param_groups"][0]
    assert (group["low_precision_steps"], group["low_precision_key"]) == (6, None if key is None else KEY)
    assert {"low_precision_accumulator", "low_precision_weight", "exp_avg", "exp_avg_sq", "step"} == {
        *state["state"][0]
    }
    for number, entries in expected["state"].items():
        assert_all_same_bits(list(state["state"][number].values()), list(entries.values()))


def test_accumulators_are_in_the_state_where_torch_has_entries_and_inner_optimizers_do_not_see_them():
    seen = []
    optimizer, params = trained(steps=0, momentum_quant=H)
    optimizer.optim.register_step_pre_hook(lambda inner, *_: seen.append({*inner.state[params[0]]}))
    assert not optimizer.state  # by which torch.distributed.checkpoint finds optimizers that have no state yet
    train(optimizer, params, range(2))
    assert seen == [set(), {"momentum_buffer"}]
    for p in params:
        assert optimizer.state[p]["low_precision_accumulator"] is optimizer.weight_acc[p]
        assert_same_bits(optimizer.state[p]["low_precision_weight"], p)


def test_checkpoints_of_before_still_load():
    """They had a third entry beside torch's two."""
    optimizer, params = trained(weight_quant=Quantizer(F), key=KEY)
    state = copy.deepcopy(optimizer.state_dict())
    pairs = {}
    for number, entries in state["state"].items():
        pairs[number] = (entries.pop("low_precision_accumulator"), entries.pop("low_precision_weight"))
    for group in state["param_groups"]:
        del group["low_precision_steps"], group["low_precision_key"]
    state["low_precision"] = {"steps": 2, "key": (0, KEY), "accumulators": pairs}
    twin = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = OptimLP(sgd(twin), weight_quant=Quantizer(F), acc_quant=H)
    again.load_state_dict(state)
    train(optimizer, params, [5])
    train(again, twin, [5])
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(again, twin))
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


DISTRIBUTED = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", DISTRIBUTED)
def test_distributed_checkpoints_continue_with_the_same_bits(inner, dtype, flat):
    """By names of parameters; into a fresh model, whose weights the step that makes state must leave as loaded."""

    def make(key):
        torch.manual_seed(key)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).to(dtype)
        # rounding twice to nearest, to values of blocks, and stochastically, are not rounding once
        options = {"weight_quant": Quantizer("mxfp4"), "acc_quant": Quantizer("bfloat16"), "momentum_quant": H}
        return model, OptimLP(DISTRIBUTED[inner](model.parameters()), **options, key=key)

    def steps(model, optimizer, seeds):
        for seed in seeds:
            optimizer.zero_grad()
            x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)
            model(x).square().mean().backward()
            optimizer.step()

    options = checkpoint.StateDictOptions(flatten_optimizer_state_dict=flat)
    model, optimizer = make(KEY)
    steps(model, optimizer, range(3))
    saved = copy.deepcopy(checkpoint.get_state_dict(model, optimizer, options=options))
    steps(model, optimizer, range(3, 5))
    other, again = make(1)
    before = [p.detach().clone() for p in other.parameters()]
    checkpoint.get_state_dict(other, again, options=options)
    assert_all_same_bits(list(other.parameters()), before)
    assert again.steps == 0
    for load in (saved, saved):
        checkpoint.set_state_dict(
            other, again, model_state_dict=load[0], optim_state_dict=copy.deepcopy(load[1]), options=options
        )
    assert (again.steps, again.key) == (3, (0, KEY))
    steps(other, again, range(3, 5))
    assert_all_same_bits(tensors_of(again, list(other.parameters())), tensors_of(optimizer, list(model.parameters())))


def test_weights_changed_after_the_last_step_survive_a_checkpoint():
    optimizer, params = trained()
    params[0].data.mul_(3)
    twin = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = OptimLP(sgd(twin), weight_quant=F, acc_quant=H)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, params, [5])
    train(again, twin, [5])
    assert_all_same_bits(tensors_of(optimizer, params), tensors_of(again, twin))


def test_pickle_and_deepcopy_are_independent_and_continue():
    optimizer, params = trained(weight_quant=Quantizer(F), key=KEY)
    optimizer.zero_grad()  # gradients are not pickled
    copies = [pickle.loads(pickle.dumps((optimizer, params))), copy.deepcopy((optimizer, params))]
    file = io.BytesIO()
    torch.save((optimizer, params), file)
    copies.append(torch.load(io.BytesIO(file.getvalue()), weights_only=False))
    before = tensors_of(optimizer, params)
    results = []
    for other, others in copies:
        assert_all_same_bits(tensors_of(other, others), before)
        train(other, others, [5])
        results.append(tensors_of(other, others))
        assert_all_same_bits(tensors_of(optimizer, params), before)
        assert all(x is not y for x, y in zip(others, params, strict=True))
    train(optimizer, params, [5])
    for result in results:
        assert_all_same_bits(result, tensors_of(optimizer, params))
    assert len(pickle.dumps(optimizer)) < 10 * sum(p.nbytes for p in params)  # no memory is pickled many times
