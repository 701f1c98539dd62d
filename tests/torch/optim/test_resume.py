"""Training that is killed, and resumed from its last checkpoint, ends with the bits of training that was not."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from support import assert_same_bits

# Trains until a given step and writes a checkpoint after each. Layers draw their keys from torch's generator, the
# optimizer too unless it has a key.
PROGRAM = """
import os
import sys

import torch
import torch._dynamo
from qtorch import FloatingPoint
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer


def train(file, last, key):
    low, high = (Quantizer(FloatingPoint(*bits), FloatingPoint(*bits)) for bits in ((5, 2), (6, 9)))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), low, torch.nn.ReLU(), torch.nn.Linear(32, 4), high)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = OptimLP(inner, low, 0.5, low, high, high, key)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    step = 0
    if os.path.exists(file):
        saved = torch.load(file, weights_only=True)
        step = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["generator"])
    while step < last:
        data = torch.Generator().manual_seed(step)
        loss = (model(torch.randn(16, 8, generator=data)) - torch.randn(16, 4, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        saved = {name: part.state_dict() for name, part in parts.items()}
        torch.save(saved | {"step": step, "generator": torch.get_rng_state()}, file + ".part")
        os.replace(file + ".part", file)
"""
# The process that is killed and the one that goes on are forked after the imports, which take seconds.
FORKED = """
FILE, KEY = {file!r}, {key}
child = os.fork()
if not child:
    train(FILE, 10**9, KEY)
print(child, flush=True)
last = int(sys.stdin.readline())
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == {signal}
train(FILE, last, KEY)
"""


def tensors_in(saved, path=""):
    """All that a checkpoint holds, tensors and other values."""
    if isinstance(saved, dict | list | tuple):
        entries = saved.items() if isinstance(saved, dict) else enumerate(saved)
        return {name: x for at, entry in entries for name, x in tensors_in(entry, f"{path}/{at}").items()}
    return {path: saved}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.heavy  # an ordinary run interrupts an example (tests/examples/test_recipes.py)
@pytest.mark.parametrize("key", [7, None])
def test_killed_and_resumed(tmp_path, key):
    file, whole = tmp_path / "killed.pt", tmp_path / "whole.pt"
    program = PROGRAM + FORKED.format(file=str(file), key=key, signal=int(signal.SIGKILL))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    resumed = subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)
    killed = int(resumed.stdout.readline())
    deadline = time.monotonic() + 120
    try:
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.2))
    finally:
        os.kill(killed, signal.SIGKILL)
    step = torch.load(file, weights_only=True)["step"]
    last = step + 20
    print(last, file=resumed.stdin, flush=True)
    names = {}
    exec(PROGRAM, names)
    with torch.random.fork_rng():
        names["train"](str(whole), last, key)
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    actual, expected = (tensors_in(torch.load(checkpoint, weights_only=True)) for checkpoint in (file, whole))
    assert actual.keys() == expected.keys()
    assert actual["/step"] == last
    assert sum("low_precision_accumulator" in name for name in actual) == 4
    assert sum("momentum_buffer" in name for name in actual) == 4
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert_same_bits(actual[name], value, f"{name}, killed after step {step}")
        else:
            assert actual[name] == value, name
