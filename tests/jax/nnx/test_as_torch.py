"""What torch's eager tests check of models, in JAX; as `tests/torch/workflow/test_as_torch.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_support import layer_of

import qjax.nnx as qnn
from qjax.quantization import default_qat_qconfig, default_qconfig

RUN = nnx.jit(lambda model, x: model(x))


@pytest.mark.heavy
def test_attention_stays_in_floats_and_works():
    attention = layer_of(nnx.MultiHeadAttention, 2, 8, decode=False)
    model, x = nnx.Sequential(attention, qnn.QuantWrapper(layer_of(nnx.Linear, 8, 4))), jnp.ones((2, 3, 8))
    prepared = qnn.prepare(model, default_qconfig)
    assert type(prepared.layers[0].query) is nnx.LinearGeneral
    RUN(prepared, x)
    for quantized in (qnn.convert(prepared), qnn.quantize_dynamic(model)):
        np.testing.assert_allclose(RUN(quantized, x), RUN(model, x), atol=0.05)
    trained = qnn.prepare_qat(model, default_qat_qconfig)
    gradients = nnx.jit(nnx.grad(lambda model: jnp.square(model(x)).sum()))(trained)
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients["layers"][0]))


def test_floats_are_no_integers_of_a_file():
    arrays = {"scale": 0.1, "zero_point": 0, "weight.scale": 0.1, "weight.zero_point": 0}
    arrays = {name: np.asarray(value) for name, value in arrays.items()}
    arrays |= {"weight.int_repr": np.full((2, 2), 1.7, np.float32), "bias": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match=r"weight\.int_repr has dtype float32; allowed is int8 or uint8"):
        qnn.from_torch(layer_of(nnx.Linear, 2, 2), arrays)
