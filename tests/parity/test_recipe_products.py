"""Products that programs write themselves: the same bits in torch and JAX under one recipe, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from covering import some
from support import assert_same_bits

import qjax.recipes
import qtorch.recipes
from qcore import RECIPES, Entry, Recipe

MX = RECIPES["mxfp8"].entries[0]
RECIPE = Recipe([Entry("*", kind, MX.forward, MX.grad_input, MX.grad_weight) for kind in ("linear", "matmul")])


def experts(module, x, w):
    return module.einsum("bnti,nio->bnto", x, w)


def two(module, x, w):
    y = x @ w[0]
    return y @ y.swapaxes(-1, -2)


class Program(torch.nn.Module):
    def __init__(self, program, w):
        super().__init__()
        self.program, self.w = program, torch.nn.Parameter(w)

    def forward(self, x):
        return self.program(torch, x, self.w)


@some((1, 1), program=[experts, two], dtype=["float32", "bfloat16"])
def test_products_of_programs(program, dtype):
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((2, 3, 32, 32), (3, 32, 32)))
    by_torch = [torch.from_numpy(np.array(one, np.float32)).to(getattr(torch, dtype)) for one in (x, w)]
    model = qtorch.recipes.lower(Program(program, by_torch[1]), RECIPE)
    inputs = by_torch[0].requires_grad_()
    y = model(inputs)
    gradients = torch.autograd.grad(y, (inputs, model.w), torch.ones_like(y))
    lowered = qjax.recipes.lower(lambda w, x: program(jnp, x, w["w"]), RECIPE)
    z, pull = jax.vjp(jax.jit(lambda x, w: lowered({"w": w}, x)), x, w)
    assert str(z.dtype) == dtype
    for one, other in zip((z, *pull(jnp.ones_like(z))), (y, *gradients), strict=True):
        assert_same_bits(np.asarray(one, np.float32), other.detach().float())
