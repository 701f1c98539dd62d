"""States in codes beside torchao's own functions, called without torch.compile."""

import numpy as np
import pytest
import torch

from qcore.reproducible import StateCodes
from qtorch import reproducible
from qtorch.optim import AdamW4bit, AdamW8bit, AdamWFp8

optim = pytest.importorskip("torchao.optim")

FORMS = {AdamW8bit: (256, "8bit"), AdamW4bit: (128, "4bit"), AdamWFp8: (256, "Fp8")}


class Roots(torch.overrides.TorchFunctionMode):
    """Square roots of float32 numbers that are rounded once; torch's vector code for CPUs does not always do it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.sqrt:
            return args[0].double().sqrt().float()
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", FORMS)
def test_states_and_parameters(kind):
    from torchao.optim.adam import single_param_adam

    name = kind.__name__
    rng = np.random.default_rng(3)
    for size in (4096, 4096 + 128, 640):
        p = torch.from_numpy(rng.standard_normal(size).astype(np.float32))
        ours, theirs = torch.nn.Parameter(p.clone()), torch.nn.Parameter(p.clone())
        optimizer = kind([ours], lr=1e-2)
        peer = getattr(optim, name)([theirs], lr=1e-2)
        states = [peer._new_buffer(theirs, signed) for signed in (True, False)]
        for step in range(1, 6):
            size_of = np.exp(rng.standard_normal(size) * 4)
            ours.grad = torch.from_numpy((rng.standard_normal(size) * size_of).astype(np.float32))
            optimizer.step()
            lr, count = peer.param_groups[0]["lr"], torch.tensor(float(step))
            with Roots():
                single_param_adam(
                    theirs.detach(), ours.grad, count, *states, None, lr, 0.9, 0.999, 1e-2, 1e-8, True, False
                )  # fmt: skip
            assert torch.equal(ours.detach().view(torch.int32), theirs.detach().view(torch.int32))
            for entry, state in zip(("exp_avg", "exp_avg_sq"), states, strict=True):
                found = optimizer.state[ours]
                if hasattr(state, "codes"):
                    assert torch.equal(found[entry], state.codes.view(torch.uint8))
                    assert torch.equal(found[f"{entry}_scale"], state.scale)
                else:
                    assert torch.equal(found[entry], state)


def test_loads_torchaos_state():
    p = torch.nn.Parameter(torch.randn(16, 256))
    peer = optim.AdamW8bit([p])
    state = {name: peer._new_buffer(p, signed) for name, signed in (("exp_avg", True), ("exp_avg_sq", False))}
    state["exp_avg"].copy_(torch.randn(16, 256))
    state["exp_avg_sq"].copy_(torch.rand(16, 256))
    given = {"state": {0: {"step": torch.tensor(3.0), **state}}, "param_groups": peer.state_dict()["param_groups"]}
    optimizer = AdamW8bit([p])
    optimizer.load_state_dict(given)
    found = optimizer.state[p]
    assert torch.equal(found["exp_avg"], state["exp_avg"].codes)
    back = reproducible.decode_state(found["exp_avg"], found["exp_avg_scale"], StateCodes("dynamic"), (16, 256))
    assert torch.equal(back, state["exp_avg"].dequantize())
    assert found["step"] == 3
