"""State of flax models goes through lowered functions; other state that would be lost is an error."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax_support import layer_of
from support import assert_same_bits

from qcore import Entry, Product, Recipe
from qjax.recipes import lower

WIDE = Recipe([Entry("*", None, Product())])


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear, self.norm = layer_of(nnx.Linear, 4, 4), nnx.BatchNorm(4, rngs=rngs)
        self.drop, self.again = nnx.Dropout(0.5, rngs=rngs), nnx.List([self.norm])

    def __call__(self, x):
        return self.drop(self.again[0](self.norm(self.linear(x))))


X = jnp.asarray(np.random.default_rng(0).integers(0, 8, (8, 4)), jnp.float32)


@pytest.mark.parametrize(
    "fn", [lower(lambda m, x: m(x), WIDE), lower(lambda m, x: m(x), ["activation"], weight_number="int8")]
)
@pytest.mark.filterwarnings("ignore:layer_types match no layer")
def test_state_moves_as_in_the_function_itself(fn):
    """Batch statistics, also of a layer with two places, and counts of dropout; eager, and in steps of an optimizer."""
    lowered, plain = Model(), Model()
    for _ in range(2):
        y, expected = fn(lowered, X), plain(X)
        assert_same_bits(y == 0, expected == 0)
    for name in ("mean", "var"):
        np.testing.assert_allclose(getattr(lowered.norm, name)[...], getattr(plain.norm, name)[...], rtol=1e-5)
    assert lowered.drop.rngs.count[...] == 2
    assert lowered.norm.mean[...].any()


def test_gradients_and_steps_of_flax():
    fn, model = lower(lambda m, x: (m(x) ** 2).sum(), WIDE), Model()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        loss, gradients = nnx.value_and_grad(fn)(model, X)
        optimizer.update(model, gradients)
        return loss

    before = model.linear.kernel[...]
    losses = [float(step(model, optimizer)) for _ in range(3)]
    assert len(set(losses)) == 3
    assert (model.linear.kernel[...] != before).any()
    assert model.drop.rngs.count[...] == 3
    assert nnx.grad(fn)(model, X)["linear"]["kernel"][...].any()


def test_new_variables_and_attributes():
    class Counting(nnx.Module):
        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.seen = nnx.Intermediate(x.sum())
            return x

    model = Counting()
    lower(lambda m, x: m(x), [])(model, X)
    assert model.seen[...] == X.sum()

    def count(model, x):
        model.calls += 1
        return x

    with pytest.raises(ValueError, match="attributes of a flax object that are no variables"):
        lower(count, [])(Counting(), X)


def test_other_state_is_refused():
    def fn(params, x):
        params["mean"] = x.mean()
        return x @ params["w"]

    with pytest.raises(ValueError, match=r"fn changes its argument \[0\]\['mean'\], whose new value would be lost"):
        lower(fn, WIDE)({"w": jnp.eye(4), "mean": jnp.float32(0)}, X)
