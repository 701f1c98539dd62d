"""Recurrent cells of floats, with quantized weights."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine.arithmetic import recurrent
from qcore.arguments import check_choice, check_type
from qjax._namespace import Names
from qjax.nnx.quantized.base import checked
from qjax.nnx.quantized.dynamic.product import Linear
from qjax.quantization.functional.dynamic import check_states


class Cell(nnx.Module):
    """Products with the input and with the hidden state, each quantized by its own range, and what follows in float32.

    Args:
        ih, hh: the products; their outputs are gates in torch's order.

    Attributes:
        layer_name: where the cell is in a model.
        dtype: of the states that `initialize_carry` makes; that of the float cell's weights.
        of_products: True in an `RNN`, which computes the products with all inputs at once: a call then gets these.

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
        for name, product in (("ih", ih), ("hh", hh)):
            check_type(name, product, Linear, "a qjax.nnx.quantized.dynamic.Linear")
        self.ih, self.hh, self.of_products = ih, hh, False
        size = hh.weight.shape[1]
        for name, product in (("ih", ih), ("hh", hh)):
            if product.weight.shape[0] != self.gates * size:
                raise ValueError(
                    f"{name} has {product.weight.shape[0]} outputs; allowed are {self.gates} of {size} each, as hh says"
                )

    @property
    def hidden_features(self) -> int:
        """The size of the hidden state."""
        return self.hh.weight.shape[1]

    def __call__(self, carry: Any, inputs: jax.Array) -> tuple[Any, jax.Array]:
        """The carry after a step, and the hidden state, as the cells of flax return them.

        States are float32 inside. Each state of the carry keeps its dtype; the hidden state has that of inputs.

        Raises:
            TypeError, ValueError: if the carry does not fit the inputs, or these not the weights.
        """
        of_input = inputs if self.of_products else self.ih.product(inputs)
        states = carry if len(self.states) > 1 else (carry,)
        shapes = [(*of_input.shape[:-1], self.hidden_features)] * len(self.states)
        checked(self, check_states, self.states, states, shapes)
        made = self._step(tuple(Names.astype(one, "float32") for one in states), of_input)
        new = [one.astype(old.dtype) for one, old in zip(made, states, strict=True)]
        return tuple(new) if len(new) > 1 else new[0], made[-1].astype(inputs.dtype)

    def initialize_carry(self, input_shape: tuple[int, ...], rngs: Any = None) -> Any:
        """Zeros, for inputs of a shape."""
        dtype = "float32" if self.of_products else self.dtype
        return jnp.zeros((*input_shape[:-1], self.hidden_features), dtype)

    def _step(self, states: tuple[jax.Array, ...], of_input: jax.Array) -> tuple[jax.Array, ...]:
        """The states after a step, in float32; the hidden one is the last."""
        raise NotImplementedError


class LSTMCell(Cell):
    """`nnx.OptimizedLSTMCell` with quantized weights; the carry is the cell and the hidden state.

    Args:
        ih, hh: products whose outputs are the gates i, f, g, o.

    Raises:
        ValueError: if their sizes do not fit.

    Example:
        >>> cell = LSTMCell(Linear(jnp.ones((12, 2)), None), Linear(jnp.ones((12, 3)), None))
        >>> (c, h), y = cell(cell.initialize_carry((1, 2)), jnp.ones((1, 2)))
        >>> y.shape
        (1, 3)
    """

    gates, states = 4, ("cell", "hidden")

    def initialize_carry(self, input_shape: tuple[int, ...], rngs: Any = None) -> tuple[jax.Array, jax.Array]:
        zeros = super().initialize_carry(input_shape)
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
        ih, hh: products with as many outputs as the hidden state has.
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
