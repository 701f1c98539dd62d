"""Recurrent layers and cells of floats with quantized weights."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine.functional import recurrent
from qcore.arguments import check_choice, check_flag, check_type, quoted
from qjax._namespace import Names
from qjax.nnx.quantized.base import checked, layer_name
from qjax.nnx.quantized.dynamic.product import Linear
from qjax.nnx.recurrent import run_layers
from qjax.quantization.functional.dynamic import CellWeights, check_states, product


class Cell(nnx.Module):
    """A recurrent cell: products with the quantized input and hidden state, and further operations in float32.

    Args:
        ih, hh: the products; their outputs are gates in torch's order.

    Attributes:
        layer_name: the cell's name in a model.
        dtype: the dtype of the states that `initialize_carry` returns; the dtype of the float cell's weights.
        of_products: True in an `RNN`, which computes the products with all inputs at once: inputs are then products.

    Raises:
        ValueError: if the sizes of the products do not fit.

    Example:
        >>> product = Linear(jnp.ones((3, 3)), None)
        >>> cell = SimpleCell(product, product)
        >>> isinstance(cell, Cell), cell.gates, cell.hidden_features
        (True, 1, 3)
    """

    gates: ClassVar[int]
    states: ClassVar[tuple[str, ...]] = ("hidden",)
    layer_name, dtype = "", "float32"
    num_feature_axes = 1

    def __init__(self, ih: Linear, hh: Linear) -> None:
        for name, side in (("ih", ih), ("hh", hh)):
            check_type(name, side, Linear, "a qjax.nnx.quantized.dynamic.Linear")
        self.ih, self.hh, self.of_products = ih, hh, False
        size = hh.weight.shape[1]
        for name, side in (("ih", ih), ("hh", hh)):
            if side.weight.shape[0] != self.gates * size:
                raise ValueError(
                    f"{name} has {side.weight.shape[0]} outputs; allowed are {self.gates} of {size} each, as hh says"
                )

    @property
    def hidden_features(self) -> int:
        """The size of the hidden state."""
        return self.hh.weight.shape[1]

    def __call__(self, carry: Any, inputs: jax.Array) -> tuple[Any, jax.Array]:
        """The carry after a step, and the hidden state, as flax's cells return them.

        States are computed in float32. Each state of the carry keeps its dtype; the hidden state has inputs' dtype.

        Raises:
            TypeError, ValueError: if the carry does not fit the inputs, or the inputs do not fit the weights.
        """
        of_input = inputs if self.of_products else self.ih.product(inputs)
        states = carry if len(self.states) > 1 else (carry,)
        shapes = [(*of_input.shape[:-1], self.hidden_features)] * len(self.states)
        checked(self, check_states, self.states, states, shapes)
        made = self._step(tuple(Names.astype(one, "float32") for one in states), of_input)
        new = [one.astype(old.dtype) for one, old in zip(made, states, strict=True)]
        return tuple(new) if len(new) > 1 else new[0], made[-1].astype(inputs.dtype)

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: nnx.Rngs | nnx.RngStream | None = None
    ) -> jax.Array | tuple[jax.Array, jax.Array]:
        """Zeros, for inputs of a shape."""
        dtype = "float32" if self.of_products else self.dtype
        return jnp.zeros((*input_shape[:-1], self.hidden_features), dtype)

    def _step(self, states: tuple[jax.Array, ...], of_input: jax.Array) -> tuple[jax.Array, ...]:
        """The states after a step, in float32; the hidden state is the last."""
        raise NotImplementedError


class LSTMCell(Cell):
    """`nnx.OptimizedLSTMCell` with quantized weights; the carry is a pair of cell state and hidden state.

    Args:
        ih, hh: products whose outputs are the gates i, f, g, o.

    Raises:
        ValueError: if their sizes do not fit.

    Example:
        >>> cell = LSTMCell(Linear(jnp.ones((12, 2)), None), Linear(jnp.ones((12, 3)), None))
        >>> step = nnx.jit(lambda cell, state, x: cell(state, x))
        >>> (c, h), y = step(cell, cell.initialize_carry((1, 2)), jnp.ones((1, 2)))
        >>> y.shape
        (1, 3)
    """

    gates, states = 4, ("cell", "hidden")

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: nnx.Rngs | nnx.RngStream | None = None
    ) -> tuple[jax.Array, jax.Array]:
        zeros: Any = super().initialize_carry(input_shape)
        return zeros, zeros

    def _step(self, states: tuple[jax.Array, ...], of_input: jax.Array) -> tuple[jax.Array, ...]:
        cell, hidden = states
        hidden, cell = recurrent.lstm_cell(Names, of_input + self.hh.product(hidden), cell)
        return cell, hidden


class GRUCell(Cell):
    """`nnx.GRUCell` with quantized weights; the carry is the hidden state.

    Args:
        ih, hh: products whose outputs are the gates r, z, n.

    Raises:
        ValueError: if their sizes do not fit.

    Example:
        >>> cell = GRUCell(Linear(jnp.ones((9, 2)), None), Linear(jnp.ones((9, 3)), None))
        >>> h, y = nnx.jit(cell)(cell.initialize_carry((1, 2)), jnp.ones((1, 2)))
        >>> y.shape
        (1, 3)
    """

    gates = 3

    def _step(self, states: tuple[jax.Array, ...], of_input: jax.Array) -> tuple[jax.Array, ...]:
        return (recurrent.gru_cell(Names, of_input, self.hh.product(states[0]), states[0]),)


class SimpleCell(Cell):
    """`nnx.SimpleCell` with quantized weights; the carry is the hidden state.

    Args:
        ih, hh: products whose outputs have the size of the hidden state.
        nonlinearity: "tanh" or "relu".

    Raises:
        ValueError: if the sizes do not fit, or nonlinearity is something else.

    Example:
        >>> cell = SimpleCell(Linear(jnp.ones((3, 2)), None), Linear(jnp.ones((3, 3)), None), "relu")
        >>> h, y = cell(jnp.ones((1, 3)), jnp.ones((1, 2)))
        >>> y
        Array([[5., 5., 5.]], dtype=float32)
    """

    gates = 1

    def __init__(self, ih: Linear, hh: Linear, nonlinearity: str = "tanh") -> None:
        check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        super().__init__(ih, hh)
        self.nonlinearity = nonlinearity

    def _step(self, states: tuple[jax.Array, ...], of_input: jax.Array) -> tuple[jax.Array, ...]:
        return (recurrent.rnn_cell(Names, of_input + self.hh.product(states[0]), self.nonlinearity),)


class RNN(nnx.RNN):
    """`nnx.RNN` of a cell with quantized weights: the input is quantized once, by the range of all its steps.

    Args:
        cell: the cell.
        time_major, return_carry, reverse, keep_order, unroll: as for `nnx.RNN`.

    Attributes:
        layer_name: the layer's name in a model.

    Raises:
        TypeError: if cell is not a cell of `quantized.dynamic`.

    Example:
        >>> import jax.numpy as jnp
        >>> from qjax.nnx.quantized.dynamic import GRUCell, Linear
        >>> layer = RNN(GRUCell(Linear(jnp.ones((9, 2)), None), Linear(jnp.ones((9, 3)), None)))
        >>> layer(jnp.ones((1, 5, 2))).shape
        (1, 5, 3)
    """

    layer_name = ""

    def __init__(self, cell: Cell, **settings: object) -> None:
        if not isinstance(cell, Cell):
            raise TypeError(f"cell is a {type(cell).__name__}; allowed is a cell of qjax.nnx.quantized.dynamic")
        super().__init__(cell, **settings, rngs=False)  # type: ignore[arg-type]
        cell.of_products = True

    def __call__(self, inputs: jax.Array, *, initial_carry: Any = None, **settings: Any) -> Any:
        """The results of all steps, and with return_carry the carry, in inputs' dtype; arguments as for `nnx.RNN`.

        Raises:
            TypeError: if inputs is not an array of floats.
            ValueError: if its shape does not fit.
        """
        if getattr(inputs, "ndim", 2) < 2:
            raise ValueError(f"{layer_name(self)}: inputs has shape {inputs.shape}; allowed is (..., steps, features)")
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
        # One matrix with the rows of all steps, in PyTorch's order, since blocks of a format may contain several rows.
        axis = 0 if time_major else inputs.ndim - 2
        steps = jnp.moveaxis(inputs, axis, 0)
        of_rows = ih.product(steps.reshape(-1, steps.shape[-1]))
        return jnp.moveaxis(of_rows.reshape(*steps.shape[:-1], of_rows.shape[-1]), 0, axis)


class Recurrent(nnx.Module):
    """Layers of recurrent cells with quantized weights, in one or two directions.

    The input of each layer and direction is quantized once, by the range of all its steps. Hidden states are quantized
    at each step. Names, shapes and bytes of variables are as in `qtorch.nn.quantized.dynamic`.

    Args:
        ih, hh: the products of each layer and direction with inputs and with hidden states; outputs are gates in
            torch's order.
        bidirectional, time_major: as for `qjax.nnx.LSTM`.
        hr: the products that project an LSTM's hidden states, or None.

    Attributes:
        layer_name: the layer's name in a model.

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
        """The results of all steps, and with return_carry the last states, as `qjax.nnx.LSTM` returns them.

        Raises:
            TypeError: if inputs is not an array of floats.
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
