"""What OptimLP saves, pickles and copies continues with the same bits."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from support import assert_all_same_bits
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
    generator = torch.Generator().manual_seed(step)
    model.zero_grad()
    model(torch.randn(8, 5, generator=generator)).pow(2).mean().backward()


@pytest.mark.parametrize(
    ("mode", "key", "first"),
    [("stochastic", KEY, "model"), ("stochastic", None, "optimizer")],
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
    assert state["low_precision"].keys() == expected["low_precision"].keys()
    assert state["low_precision"]["key"] == expected["low_precision"]["key"]
    assert state["low_precision"]["steps"] == 6
    assert state["param_groups"] == expected["param_groups"]
    for number, pair in expected["low_precision"]["accumulators"].items():
        assert_all_same_bits(state["low_precision"]["accumulators"][number], pair)
    for number, entries in expected["state"].items():
        assert_all_same_bits(list(state["state"][number].values()), list(entries.values()))


def test_a_state_dict_is_a_snapshot_and_does_not_share_memory():
    optimizer, params = trained()
    saved = optimizer.state_dict()["low_precision"]["accumulators"]
    before = copy.deepcopy(saved)
    train(optimizer, params, [5])
    for number, pair in before.items():
        assert_all_same_bits(saved[number], pair)
        assert saved[number][0].untyped_storage().nbytes() == params[number].nbytes


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
