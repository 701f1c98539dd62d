"""What torch's eager tests check of models, in JAX; as `tests/torch/workflow/test_as_torch.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import qjax.nnx as qnn
from qjax.quantization import default_qat_qconfig, default_qconfig

RUN = nnx.jit(lambda model, x: model(x))
X = jax.random.normal(jax.random.key(0), (64, 4))


class Scalars(nnx.Module):
    def __init__(self):
        self.sum, self.product = qnn.FloatFunctional(), qnn.FloatFunctional()

    def __call__(self, x):
        return self.product.mul_scalar(self.sum.add_scalar(x, 1.0), 2.0)


@pytest.mark.parametrize("run", [RUN, lambda model, x: model(x)], ids=["jit", "eager"])
def test_functionals_of_scalars_need_no_range(run):
    prepared = qnn.prepare(qnn.QuantWrapper(Scalars()), default_qconfig)
    run(prepared, X)
    traces = RUN._cache_size() if hasattr(RUN, "_cache_size") else None
    run(prepared, X)
    assert traces is None or RUN._cache_size() == traces
    converted = qnn.convert(prepared)
    assert abs(run(converted, X) - (2 * X + 2)).max() <= 2 * converted.quant.output.scale
    unseen = qnn.prepare(qnn.QuantWrapper(Scalars()), default_qconfig)
    unseen.quant(X)
    with pytest.raises(ValueError, match=r"layer 'module\.(sum|product)': "):
        qnn.convert(unseen)


def test_evaluation_before_any_training_calibrates():
    floats = qnn.QuantWrapper(nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), qnn.ReLU()))
    model = qnn.prepare_qat(floats, default_qat_qconfig)
    model.eval()
    scale = lambda one: one.quant.activation_post_process.state.get_value().scale  # noqa: E731
    RUN(model, X)
    np.testing.assert_allclose(RUN(model, X), floats(X), rtol=0, atol=0.1)
    before = scale(model)
    RUN(model, 9 * X)
    assert scale(model) > before
    model.train()
    RUN(model, X)
    model.eval()
    after = scale(model)
    RUN(model, 99 * X)
    assert scale(model) == after
    fresh = qnn.prepare_qat(floats, default_qat_qconfig)
    fresh.eval()
    loaded = qnn.from_torch(fresh, qnn.to_torch(model))
    RUN(loaded, 99 * X)
    assert scale(loaded) == after
    assert jnp.array_equal(RUN(loaded, X), RUN(model, X))
