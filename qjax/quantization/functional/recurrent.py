"""Products and recurrent layers of floats with quantized weights, whose activations are quantized when they are there.

The law is `qcore.affine.arithmetic.recurrent`; weights and rows of gates are in torch's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qcore.affine import UINT8, AffineInteger, QParams
from qcore.affine.arithmetic import recurrent
from qcore.arguments import check_choice
from qjax._rounding.inputs import ArrayLike, as_array
from qjax.quantization.array_names import Names
from qjax.quantization.integer.products import sums_of_products
from qjax.quantization.tensor import QTensor

ACTIVATIONS = UINT8.reduced()
_LARGEST = 65504.0  # of float16
Weight = QTensor | jax.Array  # integers, or float16
State = tuple[jax.Array, ...]
Product = Callable[[Any, Any, Any], jax.Array]


class CellWeights(NamedTuple):
    """The weights of a recurrent cell, or of one layer of cells in one direction.

    Attributes:
        ih, hh: of the products with the input and with the hidden state: QTensors or float16 arrays of shapes (gates *
            size, features) and (gates * size, size). Rows are those of i, f, g, o in an LSTM, and of r, z, n in a GRU.
        bias_ih, bias_hh: float32 of shape (gates * size,), or None.

    Example:
        >>> ones = jnp.ones((3, 1), jnp.float16)
        >>> weights = CellWeights(ones, ones)  # of a GRU of size 1
        >>> weights.hh.shape, weights.bias_hh
        ((3, 1), None)
    """

    ih: Weight
    hh: Weight
    bias_ih: jax.Array | None = None
    bias_hh: jax.Array | None = None


def dynamic_linear(x: ArrayLike, weight: Weight, bias: jax.Array | None = None) -> jax.Array:
    """x @ weight.T + bias in float32, of a quantized weight and x quantized by its own range, or of a float16 weight.

    With a quantized weight it is float32(sums) * (scale of x * scale of weight) + bias, where sums are exact. The range
    is that of all of x; under `jax.vmap` of each example. A NaN or an infinity in x makes all results NaN.

    Args:
        x: floats of shape (..., features).
        weight: of up to 16 bits, shape (outputs, features), with one scale or one for each output; or float16.
        bias: float32 of shape (outputs,), or None.

    Returns:
        A float32 array of shape (..., outputs).

    Raises:
        TypeError: if x is no array of floats, the weight of none of these types, or bias does not broadcast.
        ValueError: if shapes do not fit.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.float32([[1, 0], [0.5, -1]]), 0.01, 0, "qint8")
        >>> dynamic_linear(jnp.float32([1, 0]), weight)
        Array([1. , 0.5], dtype=float32)
    """
    if isinstance(x, QTensor):
        raise TypeError("x is a QTensor; allowed is an array of floats: insert a DeQuantStub before this layer")
    x = as_array(x)
    _check_weight("weight", weight)
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x has shape {x.shape}; allowed is (..., {weight.shape[1]})")
    return _product(x.astype(jnp.float32), weight, bias)


def lstm_cell(x: ArrayLike, state: State, weights: CellWeights) -> State:
    """The hidden and the cell state of an LSTM after a step.

    Args:
        x: floats of shape (..., features).
        state: the hidden and the cell state before, float32 of shape (..., size).
        weights: of four gates.

    Returns:
        The hidden and the cell state after it, float32 arrays of shape (..., size).

    Raises:
        TypeError, ValueError: as `dynamic_linear` does.

    Example:
        >>> ones, zero = jnp.ones((4, 1), jnp.float16), jnp.zeros(1)
        >>> lstm_cell(zero, (zero, jnp.float32([2])), CellWeights(ones, ones))[1]  # a forget gate of 0.5
        Array([1.], dtype=float32)
    """
    return _lstm_step(dynamic_linear, dynamic_linear(x, weights.ih, weights.bias_ih), weights, state)


def gru_cell(x: ArrayLike, hidden: jax.Array, weights: CellWeights) -> jax.Array:
    """The hidden state of a GRU after a step.

    Args:
        x: floats of shape (..., features).
        hidden: the state before, float32 of shape (..., size).
        weights: of three gates.

    Returns:
        A float32 array of shape (..., size).

    Raises:
        TypeError, ValueError: as `dynamic_linear` does.

    Example:
        >>> zeros = jnp.zeros((3, 1), jnp.float16)
        >>> jax.jit(gru_cell)(jnp.ones(1), jnp.ones(1), CellWeights(zeros, zeros))  # an update gate of 0.5
        Array([0.5], dtype=float32)
    """
    return _gru_step(dynamic_linear, dynamic_linear(x, weights.ih, weights.bias_ih), weights, (hidden,))[0]


def rnn_cell(x: ArrayLike, hidden: jax.Array, weights: CellWeights, nonlinearity: str = "tanh") -> jax.Array:
    """The hidden state of a simple cell after a step.

    Args:
        x: floats of shape (..., features).
        hidden: the state before, float32 of shape (..., size).
        weights: of one gate.
        nonlinearity: "tanh" or "relu".

    Returns:
        A float32 array of shape (..., size).

    Raises:
        TypeError, ValueError: as `dynamic_linear` does, or if nonlinearity is something else.

    Example:
        >>> ones = jnp.ones((1, 1), jnp.float16)
        >>> rnn_cell(jnp.float32([2]), jnp.float32([1]), CellWeights(ones, ones), "relu")
        Array([3.], dtype=float32)
    """
    check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
    sums = dynamic_linear(x, weights.ih, weights.bias_ih) + dynamic_linear(hidden, weights.hh, weights.bias_hh)
    return recurrent.rnn_cell(Names, sums, nonlinearity)


def lstm(
    x: jax.Array, layers: Sequence[Sequence[CellWeights]], state: tuple[jax.Array, jax.Array] | None = None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Layers of LSTM cells in one or two directions, over whole sequences, by `jax.lax.scan`.

    The input of each layer and direction is quantized once, by the range of all its steps; hidden states at each step.

    Args:
        x: floats of shape (steps, batch, features).
        layers: for each layer its weights in each direction, one or two.
        state: the first hidden and cell states, each of shape (layers * directions, batch, size); None for zeros.

    Returns:
        The results of all steps, of shape (steps, batch, directions * size), and the hidden and cell states after the
        last.

    Raises:
        TypeError, ValueError: if shapes do not fit; see `dynamic_linear`.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.ones((4, 1)), 0.01, 0, "qint8")
        >>> y, (hidden, cell) = lstm(jnp.ones((3, 2, 1)), [[CellWeights(weight, weight)]])
        >>> y.shape, hidden.shape
        ((3, 2, 1), (1, 2, 1))
    """
    return over_layers("lstm", dynamic_linear, x, layers, state)


def gru(
    x: jax.Array, layers: Sequence[Sequence[CellWeights]], state: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Layers of GRU cells in one or two directions, over whole sequences; inputs are quantized as in `lstm`.

    Args:
        x: floats of shape (steps, batch, features).
        layers: for each layer its weights in each direction, one or two.
        state: the first hidden states, of shape (layers * directions, batch, size); None for zeros.

    Returns:
        The results of all steps, of shape (steps, batch, directions * size), and the hidden states after the last.

    Raises:
        TypeError, ValueError: if shapes do not fit; see `dynamic_linear`.

    Example:
        >>> ones = jnp.ones((3, 1), jnp.float16)
        >>> y, hidden = gru(jnp.ones((3, 2, 1)), [[CellWeights(ones, ones)]])
        >>> y.shape, hidden.shape
        ((3, 2, 1), (1, 2, 1))
    """
    y, (hidden,) = over_layers("gru", dynamic_linear, x, layers, None if state is None else (state,))
    return y, hidden


def _lstm_step(product: Product, of_input: jax.Array, weights: CellWeights, state: State) -> State:
    return recurrent.lstm_cell(Names, of_input + product(state[0], weights.hh, weights.bias_hh), state[1])


def _gru_step(product: Product, of_input: jax.Array, weights: CellWeights, state: State) -> State:
    return (recurrent.gru_cell(Names, of_input, product(state[0], weights.hh, weights.bias_hh), state[0]),)


_STEPS = {"lstm": (_lstm_step, 2), "gru": (_gru_step, 1)}


def over_layers(kind: str, product: Product, x: Any, layers: Any, states: State | None) -> Any:
    """Layers of cells over sequences; see `lstm`.

    Args:
        kind: "lstm" or "gru".
        product: product(x, weight, bias), of inputs and of hidden states.
        x, layers, states: as for `lstm`; the states are a tuple.
    """
    x, (step, count) = as_array(x), _STEPS[kind]
    if x.ndim != 3:
        raise ValueError(f"x has shape {x.shape}; allowed is (steps, batch, features)")
    directions = {len(layer) for layer in layers}
    if directions not in ({1}, {2}):
        raise ValueError(f"layers have {sorted(directions)} directions; allowed are 1 or 2, the same for all")
    shape = len(layers) * len(layers[0]), x.shape[1], layers[0][0].hh.shape[1]
    states = (jnp.zeros(shape),) * count if states is None else states
    for one in states:
        if one.shape != shape:
            raise ValueError(f"state has shape {one.shape}; allowed is {shape}")
    last = []
    for layer in layers:
        results = []
        for direction, weights in enumerate(layer):
            first = tuple(one[len(last)] for one in states)
            of_input = product(x, weights.ih, weights.bias_ih)
            state, y = _over_steps(step, product, of_input, weights, first, direction)
            results.append(y)
            last.append(state)
        x = jnp.concatenate(results, -1)
    return x, tuple(jnp.stack(one) for one in zip(*last, strict=True))


@partial(jax.jit, static_argnums=(0, 1, 5))
def _over_steps(step: Any, product: Any, of_input: jax.Array, weights: CellWeights, state: State, reverse: int) -> Any:
    def body(state: State, of_step: jax.Array) -> tuple[State, jax.Array]:
        state = step(product, of_step, weights, state)
        return state, state[0]

    return jax.lax.scan(body, state, of_input, reverse=bool(reverse))


def halves(weight: ArrayLike) -> jax.Array:
    """A weight in float16, whose largest number is what others become."""
    return jnp.clip(jnp.asarray(weight), -_LARGEST, _LARGEST).astype(jnp.float16)


def _check_weight(name: str, weight: Any) -> None:
    if isinstance(weight, QTensor):
        if weight.form.storage == "int32" or weight.qparams.axis not in (None, 0):
            raise ValueError(
                f"{name} has integers of {weight.form.storage} and axis={weight.qparams.axis}; allowed are up to 16 "
                "bits, and one scale or axis 0"
            )
    elif getattr(weight, "dtype", None) != jnp.float16:
        raise TypeError(f"{name} is {getattr(weight, 'dtype', type(weight).__name__)}; allowed is a QTensor or float16")
    if weight.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(weight.shape)}; allowed is (outputs, features)")


@jax.jit
def _product(x: jax.Array, weight: Weight, bias: Any) -> jax.Array:
    if not isinstance(weight, QTensor):
        y = x @ weight.astype(jnp.float32).T
        return y if bias is None else y + bias
    if x.size == 0:
        return jnp.zeros((*x.shape[:-1], weight.shape[0]))
    form: AffineInteger = ACTIVATIONS
    q, qparams = recurrent.quantize_dynamic(Names, jax.lax.stop_gradient(x), form)
    whole = QParams(jnp.ones_like(qparams.scale), qparams.zero_point)  # a scale may be NaN
    grouped = QTensor(q.astype(form.storage)[..., None, :], whole, form)
    sums = sums_of_products(grouped, weight)
    return recurrent.dynamic_output(Names, sums, qparams.scale, weight.qparams.scale, bias)
