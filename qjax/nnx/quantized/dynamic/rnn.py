"""Recurrent layers of floats, with quantized weights."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import check_flag, quoted
from qjax._namespace import Names
from qjax.nnx.quantized.base import checked, place_of
from qjax.nnx.quantized.dynamic.cells import Cell
from qjax.nnx.quantized.dynamic.product import Linear
from qjax.nnx.recurrent import run_layers
from qjax.quantization.functional.dynamic import CellWeights, product


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

    def __call__(self, inputs: jax.Array, *, initial_carry: Any = None, **settings: Any) -> Any:
        """The results of all steps, and the carry if it is asked for, in inputs' dtype; arguments as for `nnx.RNN`.

        Raises:
            TypeError: if inputs is not an array of floats.
            ValueError: if its shape does not fit.
        """
        if getattr(inputs, "ndim", 2) < 2:
            raise ValueError(f"{place_of(self)}: inputs has shape {inputs.shape}; allowed is (..., steps, features)")
        time_major = settings.get("time_major")
        products = self._products(inputs, self.time_major if time_major is None else time_major)
        if initial_carry is not None:
            initial_carry = jax.tree.map(lambda state: Names.astype(state, "float32"), initial_carry)
        found = super().__call__(products, initial_carry=initial_carry, **settings)
        return jax.tree.map(lambda state: state.astype(inputs.dtype), found)

    def _products(self, inputs: jax.Array, time_major: bool) -> jax.Array:
        """The products with the inputs of all steps."""
        ih: Linear = self.cell.ih  # type: ignore[attr-defined]
        if ih.rounding is None:
            return ih.product(inputs)
        # As one matrix with the rows of one step after those of another, as in PyTorch: formats may have blocks in it.
        axis = 0 if time_major else inputs.ndim - 2
        steps = jnp.moveaxis(inputs, axis, 0)
        of_rows = ih.product(steps.reshape(-1, steps.shape[-1]))
        return jnp.moveaxis(of_rows.reshape(*steps.shape[:-1], of_rows.shape[-1]), 0, axis)


class Recurrent(nnx.Module):
    """Layers of recurrent cells with quantized weights, in one or two directions.

    The input of each layer and direction is quantized once, by the range of all its steps; hidden states at each step.
    Names, shapes and bytes of variables are those of `qtorch.nn.quantized.dynamic`.

    Args:
        ih, hh: the products of each layer and direction with inputs and with hidden states; outputs are gates in
            torch's order.
        bidirectional, time_major: as for `qjax.nnx.LSTM`.
        hr: the products that project an LSTM's hidden states, or None.

    Attributes:
        layer_name: where the layer is in a model.

    Raises:
        ValueError: if the sizes of the products do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> product = Linear(jnp.ones((3, 1)), None)
        >>> GRU([product] * 2, [product] * 2)(jnp.ones((1, 5, 1)), return_carry=True)[1].shape
        (2, 1, 1)
    """

    layer_name = ""
    kind: ClassVar[str]
    gates: ClassVar[int]

    def __init__(
        self,
        ih: list[Linear],
        hh: list[Linear],
        bidirectional: bool = False,
        time_major: bool = False,
        hr: list[Linear] | None = None,
    ) -> None:
        for name, products in (("ih", ih), ("hh", hh), *([] if hr is None else [("hr", hr)])):
            known = isinstance(products, (list, tuple)) and all(isinstance(one, Linear) for one in products)
            if not known or not products:
                raise TypeError(f"{name}={quoted(products)}; allowed is a list of qjax.nnx.quantized.dynamic.Linear")
        check_flag("bidirectional", bidirectional)
        check_flag("time_major", time_major)
        size = (hh if hr is None else hr)[0].weight.shape[1]
        if {len(ih)} != {len(one) for one in (hh, hr or hh)} or any(
            one.weight.shape[0] != self.gates * size for one in (*ih, *hh)
        ):
            shapes = [one.weight.shape for one in (*ih, *hh)]
            raise ValueError(f"products have shapes {shapes}; allowed are {self.gates} gates of {size}, as hh[0] says")
        self.ih, self.hh = nnx.List(ih), nnx.List(hh)
        if hr is not None:
            self.hr = nnx.List(hr)
        self.bidirectional, self.time_major = bidirectional, time_major

    def __call__(self, inputs: jax.Array, initial_carry: Any = None, return_carry: bool = False) -> Any:
        """The results of all steps, and the last states if they are asked for, as `qjax.nnx.LSTM` has them.

        Raises:
            TypeError: if inputs are no array of floats.
            ValueError: if shapes do not fit.
        """
        projections = [one.operand() for one in self.hr] if hasattr(self, "hr") else [None] * len(self.ih)
        weights = [
            CellWeights(ih.operand(), hh.operand(), _bias(ih), _bias(hh), hr)
            for ih, hh, hr in zip(self.ih, self.hh, projections, strict=True)
        ]
        return checked(self, run_layers, self, weights, product, inputs, initial_carry, return_carry)


def _bias(product: Linear) -> Any:
    return None if product.bias is None else product.bias[...]


class LSTM(Recurrent):
    """`qjax.nnx.LSTM` with quantized weights.

    Args:
        ih, hh, bidirectional, time_major, hr: as for `Recurrent`, which raises the same errors.

    Example:
        >>> import jax.numpy as jnp
        >>> product = Linear(jnp.ones((4, 1)), None)
        >>> LSTM([product], [product])(jnp.ones((1, 5, 1))).shape
        (1, 5, 1)
    """

    kind, gates = "lstm", 4


class GRU(Recurrent):
    """`qjax.nnx.GRU` with quantized weights.

    Args:
        ih, hh, bidirectional, time_major, hr: as for `Recurrent`, which raises the same errors.

    Example:
        >>> import jax.numpy as jnp
        >>> product = Linear(jnp.ones((3, 1)), None)
        >>> GRU([product], [product])(jnp.ones((1, 5, 1))).shape
        (1, 5, 1)
    """

    kind, gates = "gru", 3
