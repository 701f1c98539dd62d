"""Recurrent layers of floats, with quantized weights."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from qjax.nnx.quantized.dynamic.cells import Cell


class RNN(nnx.RNN):
    """`nnx.RNN` of a cell with quantized weights: the input is quantized once, by the range of all its steps.

    Args:
        cell: the cell.
        time_major, return_carry, reverse, keep_order, unroll: as for `nnx.RNN`.

    Attributes:
        layer_name: where the layer is in a model.

    Raises:
        TypeError: if cell is none of `quantized.dynamic`.

    Example:
        >>> import jax.numpy as jnp
        >>> from qjax.nnx.quantized.dynamic import GRUCell, Linear
        >>> layer = RNN(GRUCell(Linear(jnp.ones((9, 2)), None), Linear(jnp.ones((9, 3)), None)))
        >>> layer(jnp.ones((1, 5, 2))).shape
        (1, 5, 3)
    """

    layer_name = ""

    def __init__(self, cell: Cell, **settings: Any) -> None:
        if not isinstance(cell, Cell):
            raise TypeError(f"cell is a {type(cell).__name__}; allowed is a cell of qjax.nnx.quantized.dynamic")
        super().__init__(cell, **settings, rngs=False)  # type: ignore[arg-type]
        cell.of_products = True

    def __call__(self, inputs: jax.Array, **settings: Any) -> Any:
        """The results of all steps, and the carry if it is asked for; settings as for `nnx.RNN`."""
        cell: Any = self.cell
        return super().__call__(cell.ih(inputs), **settings)
