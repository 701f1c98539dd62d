"""FlashAdamW beside flashoptim-jax's plain functions, which run on NumPy's arrays: XLA multiplies by reciprocals."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits

from qcore.reproducible import StateCodes, decode_state, encode_state
from qcore.reproducible.state_codes import correction
from qtorch.optim import FlashAdamW
from qtorch.reproducible.operations import Names

pytest.importorskip("flashoptim_jax")
from flashoptim_jax import adamw, compression, quantization, utils


class Plain:
    """NumPy's functions by jax.numpy's names."""

    def __getattr__(self, name):
        return getattr(np if hasattr(np, name) else jnp, name)


@pytest.fixture(autouse=True)
def numpy_instead(monkeypatch):
    for module in (adamw, compression, quantization, utils):
        monkeypatch.setattr(module, "jnp", Plain())


RNG = np.random.default_rng(62)


def numbers(size, low=-9, high=3):
    return np.float32(RNG.standard_normal(size) * 10.0 ** RNG.uniform(low, high, size))


@pytest.mark.parametrize("kind", ["softsign", "root"])
def test_codes(kind):
    """In blocks of all magnitudes, with zeros, and a last block that is shorter."""
    x = np.concatenate([np.zeros(32, np.float32), numbers(3000)])
    x = x if kind == "softsign" else abs(x)
    name = "momentum" if kind == "softsign" else "variance"
    theirs = getattr(quantization, f"quantize_{name}")(x)
    given, scale = encode_state(x, StateCodes(kind, 32))
    assert given.dtype == theirs.values.dtype
    np.testing.assert_array_equal(given, theirs.values)
    assert_same_bits(scale.view(np.int16), theirs.scales.view(np.int16))
    back = decode_state(given, scale, StateCodes(kind, 32), x.shape)
    np.testing.assert_array_equal(back, getattr(quantization, f"dequantize_{name}")(theirs))


def torch_of(x):
    return torch.tensor(x.view(np.int16)).view(torch.bfloat16) if x.dtype.name == "bfloat16" else torch.tensor(x)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 24), ("bfloat16", 32), ("float16", 24), ("float16", 32)])
def test_steps(dtype, bits):
    low, error = compression.split_leaf(numbers(1000, -4, 2), jnp.dtype(dtype), bits)
    ours = torch.nn.Parameter(torch_of(low))
    optimizer = FlashAdamW([ours], lr=1e-2, weight_decay=0.1, master_weight_bits=bits)
    zeros = np.zeros(1000, np.float32)
    m, v = quantization.quantize_momentum(zeros), quantization.quantize_variance(zeros)
    for step in range(1, 5):
        gradient = numbers(1000, -3, 0)
        ours.grad = torch.from_numpy(gradient).to(ours.dtype)
        if step == 1:  # the weights with their errors, not only their 16 bits
            optimizer._begin(optimizer.state[ours], ours, optimizer._codes_of(ours, optimizer.param_groups[0]))
            optimizer.state[ours]["remainder"].copy_(torch_of(error))
        optimizer.step()
        c1, c2 = (correction(Names, beta, torch.tensor(float(step))).numpy() for beta in (0.9, 0.999))
        found = adamw._flash_adamw_leaf_unfused(
            ours.grad.float().numpy(), low, error, m, v, np.float32(1e-2), 0.9, 0.999, 1e-8, 0.1, True,
            c1, c2, True, 32, bits,
        )  # fmt: skip
        # Their sum with the update misses the new weights; their kernels write these.
        state = optimizer.state[ours]
        expected = (torch_of(found.update), torch_of(found.ecc), *map(torch_of, (*found.mu, *found.nu)))
        new = ours.detach().clone()
        names = ("exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale")
        given = (new - torch_of(low), state["remainder"], *(state[name] for name in names))
        for place, (one, other) in enumerate(zip(given, expected, strict=True)):
            assert one.dtype == other.dtype
            assert torch.equal(one, other), (step, place)
        m, v, error = found.mu, found.nu, found.ecc
        low = new.float().numpy().astype(jnp.dtype(dtype))
        joined = compression.reconstruct_leaf(low, error)
        assert_same_bits(optimizer._master(ours.detach(), optimizer.state[ours]).numpy(), joined)
