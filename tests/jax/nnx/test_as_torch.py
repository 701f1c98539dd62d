"""What torch's eager tests check of models, in JAX; as `tests/torch/workflow/test_as_torch.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from covering import usually
from flax import nnx
from flax_support import layer_of

import qjax.nnx as qnn
from qjax.quantization import default_qat_qconfig, default_qconfig

RUN = nnx.jit(lambda model, x: model(x))
X = jnp.asarray(np.random.default_rng(0).standard_normal((64, 4), np.float32))


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


def test_what_is_in_evaluation_is_not_prepared_for_training():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(layer_of(nnx.Linear, 2, 2), nnx.Dropout(0.5, rngs=rngs), layer_of(nnx.Linear, 2, 2))
    model.eval()
    with pytest.raises(ValueError, match=r"model is in evaluation, as layer '1' is; allowed .* call model\.train\(\)"):
        qnn.prepare_qat(model, default_qat_qconfig)
    model.train()
    prepared = qnn.prepare_qat(model, default_qat_qconfig)
    prepared.eval()
    with pytest.raises(ValueError, match="model is in evaluation"):
        qnn.prepare_qat(prepared, default_qat_qconfig)
    some = nnx.Sequential(nnx.BatchNorm(2, use_running_average=True, rngs=rngs), *model.layers)
    qnn.prepare_qat(some, default_qat_qconfig)  # a frozen batch norm in a model that is in training


def test_floats_are_no_integers_of_a_file():
    arrays = {"scale": 0.1, "zero_point": 0, "weight.scale": 0.1, "weight.zero_point": 0}
    arrays = {name: np.asarray(value) for name, value in arrays.items()}
    arrays |= {"weight.int_repr": np.full((2, 2), 1.7, np.float32), "bias": np.zeros(2, np.float32)}
    with pytest.raises(ValueError, match=r"weight\.int_repr has dtype float32; allowed is int8 or uint8"):
        qnn.from_torch(layer_of(nnx.Linear, 2, 2), arrays)


class Repeats(nnx.Module):
    """Calls `twice` twice, and `seldom` where it is asked to."""

    def __init__(self):
        self.quant, self.dequant, self.sum = qnn.QuantStub(), qnn.DeQuantStub(), qnn.FloatFunctional()
        self.once, self.twice, self.seldom, self.last = (layer_of(nnx.Linear, 4, 4) for _ in range(4))

    def __call__(self, x, seldom=False):
        x = self.twice(self.twice(self.once(self.quant(x))))
        x = self.sum.add(x, x)
        return self.dequant(self.last(self.seldom(x) if seldom else x))


class Siamese(nnx.Module):
    """Calls its first layers twice."""

    def __init__(self):
        self.quant, self.dequant, self.sum = qnn.QuantStub(), qnn.DeQuantStub(), qnn.FloatFunctional()

    def __call__(self, x):
        return self.dequant(self.sum.add(self.quant(x), self.quant(2 * x)))


def repeats(model, x, seldom=False):
    return model(x, seldom) if seldom else model(x)


REPEATS = {"jit": nnx.jit(repeats, static_argnums=2), "eager": repeats}


@pytest.mark.parametrize("run", usually(("eager",), REPEATS))
def test_layers_that_run_twice_are_named(run):
    """And no others: neither those that run less often than the model, nor all of a model that ran several times."""
    run = REPEATS[run]
    prepared = qnn.prepare(Repeats(), default_qconfig)
    for size in (2, 3, 4):
        run(prepared, X[:size], size == 3)
    prepared = qnn.prepare(prepared, default_qconfig)
    with pytest.warns(UserWarning, match="layer 'twice' ran 6 times while the model ran 3 times") as warned:
        qnn.convert(prepared)
    assert len(warned) == 1
    prepared = qnn.prepare(Siamese(), default_qconfig)
    run(prepared, X)
    with pytest.warns(UserWarning, match="layer 'quant' ran 2 times while the model ran 1 times") as warned:
        qnn.convert(prepared)
    assert len(warned) == 1
