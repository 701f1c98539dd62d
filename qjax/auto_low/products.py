"""Products of a traced program as those of `qjax.linalg`: an input and a weight, in the layouts of torch's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.accumulate.product import Products
from qjax.auto_low.origins import is_input
from qjax.linalg import conv1d, conv2d, conv3d, linear


def weight_of(equation: Any, origins: Sequence[int]) -> int | None:
    """The operand that is the weight of a layer; None if an equation is no layer that `multiply` can compute."""
    if any(atom.aval.dtype != jnp.float32 for atom in (*equation.invars, *equation.outvars)):
        return None
    if equation.primitive.name == "dot_general":
        return _weight_of_product(equation, origins)
    if equation.primitive.name != "conv_general_dilated":
        return None
    params = equation.params
    plain = params["batch_group_count"] == 1 and all(step == 1 for step in params["lhs_dilation"])
    return 1 if plain and 1 <= len(params["window_strides"]) <= 3 and is_input(origins[1]) else None


def _weight_of_product(equation: Any, origins: Sequence[int]) -> int | None:
    contracted, batch = equation.params["dimension_numbers"]
    weight = 0 if origins[0] < origins[1] else 1
    plain = len(contracted[0]) == 1 and not batch[0] and len(equation.invars[weight].aval.shape) == 2
    return weight if plain and is_input(origins[weight]) else None


def multiply(
    equation: Any, operands: Sequence[Any], weight: int, products: Products, key: Any, scaling: Any
) -> jax.Array:
    """The result of a layer's equation, whose operand `weight` is the weight, with defined products."""
    said = {
        "operands": products.forward.operands,
        "accumulator": products.forward.accumulator,
        "grad_input": products.grad_a,
        "grad_weight": products.grad_b,
        "key": key,
        "scaling": scaling,
    }
    if equation.primitive.name == "dot_general":
        (axes, _) = equation.params["dimension_numbers"]
        x, w = (jnp.moveaxis(operands[one], axes[one][0], -1) for one in (1 - weight, weight))
        y = linear(x, w, **said)
        return y if weight == 1 else jnp.moveaxis(y, -1, 0)
    return _convolve(equation.params, operands[0], operands[1], said)


def _convolve(params: Any, x: Any, w: Any, said: dict[str, Any]) -> jax.Array:
    layout, dims = params["dimension_numbers"], len(params["window_strides"])
    x, w = jnp.transpose(x, layout.lhs_spec), jnp.transpose(w, layout.rhs_spec)
    padding = tuple(low for low, _ in params["padding"])
    if any(low != high or low < 0 for low, high in params["padding"]):
        sides = ((0, 0, 0), (0, 0, 0), *((low, high, 0) for low, high in params["padding"]))
        x, padding = jax.lax.pad(x, jnp.float32(0), sides), (0,) * dims
    function = {1: conv1d, 2: conv2d, 3: conv3d}[dims]
    steps, gaps = tuple(params["window_strides"]), tuple(params["rhs_dilation"])
    y = function(x, w, None, steps, padding, gaps, params["feature_group_count"], **said)
    return jnp.transpose(y, tuple(np.argsort(layout.out_spec)))
