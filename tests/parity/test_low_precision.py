"""OptimLP and low_precision step parameters of 16 bits with the same bits."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import torch
from covering import some
from support import assert_same_bits

import qjax
from qjax.optim import accumulators, apply_updates, low_precision
from qtorch.optim import OptimLP
from qtorch.quant import quantizer

SHAPES = [(3, 200), (5,), ()]
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
QUANTIZERS = {
    "bfloat16 weights": {"weight_quant": "bfloat16"},
    "e5m2 weights": {"weight_quant": "e5m2", "grad_quant": "e5m2"},
    "float32 accumulators": {"weight_quant": "bfloat16", "acc_quant": "float(8,23)", "momentum_quant": "float(6,9)"},
}


def arrays(seed, dtype):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in SHAPES]


def as_tensor(x):
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == DTYPES["bfloat16"] else torch.tensor(x)


def as_array(x):
    x = x.detach().clone()
    return x.view(torch.int16).numpy().view(DTYPES["bfloat16"]) if x.dtype == torch.bfloat16 else x.numpy()


@some((1, 1), name=[*QUANTIZERS], dtype=[*DTYPES])
def test_optimizers_of_16_bit_parameters(name, dtype):
    dtype = DTYPES[dtype]
    params = [torch.nn.Parameter(as_tensor(x)) for x in arrays(0, dtype)]
    ours = {argument: quantizer(number) for argument, number in QUANTIZERS[name].items()}
    optimizer = OptimLP(torch.optim.SGD(params, lr=2**-9, momentum=0.5), **ours, key=7)
    theirs = {argument: qjax.quantizer(number) for argument, number in QUANTIZERS[name].items()}
    tx = low_precision(optax.sgd(2**-9, momentum=0.5), **theirs, key=7)
    weights = [jnp.asarray(x) for x in arrays(0, dtype)]
    state = tx.init(weights)

    @jax.jit
    def step(weights, state, gradients):
        updates, state = tx.update(gradients, state, weights)
        return apply_updates(weights, updates, state), state

    for seed in range(1, 5):
        for p, x in zip(params, arrays(seed, dtype), strict=True):
            p.grad = as_tensor(x)
        optimizer.step()
        weights, state = step(weights, state, [jnp.asarray(x) for x in arrays(seed, dtype)])
        for p, weight, trace in zip(params, weights, state.inner[0].trace, strict=True):
            assert_same_bits(np.asarray(weight), as_array(p))
            assert_same_bits(np.asarray(trace), as_array(optimizer.state[p]["momentum_buffer"]))
            assert trace.dtype == jnp.float32
    for p, kept in zip(params, accumulators(state) if "acc_quant" in ours else [], strict=False):
        assert_same_bits(np.asarray(kept), as_array(optimizer.weight_acc[p]))
