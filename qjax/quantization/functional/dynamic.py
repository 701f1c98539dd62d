"""Dynamic layers: products of floats with quantized weights, whose inputs are quantized at run time, and RNNs.

The law is `qcore.affine.functional.recurrent`; weights and rows of gates are in torch's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qcore.affine import UINT8, AffineInteger, QParams
from qcore.affine.functional import recurrent
from qcore.affine.parameters import check_parameter
from qcore.arguments import check_choice, check_type, quoted
from qcore.law.carrier import check_dtype
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike, as_array
from qjax._rounding.scopes import operation
from qjax.quantization.integer import sums_of_products
from qjax.quantization.rounding import FormatRounding
from qjax.quantization.tensor import QTensor

__all__ = [
    "CellWeights",
    "RangedWeight",
    "RoundedWeight",
    "dynamic_linear",
    "gru",
    "gru_cell",
    "lstm",
    "lstm_cell",
    "rnn_cell",
]

ACTIVATIONS = UINT8.reduced()
_LARGEST = 65504.0  # of float16


@partial(jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["rounding"])
@dataclass(frozen=True)
class RoundedWeight:
    """The numbers of a weight in a format, and what rounds the input of each product with it. A pytree.

    Attributes:
        numbers: float32 of shape (outputs, features).
        rounding: the rounding of inputs, to a format or to none.

    Example:
        >>> from qjax import quantizer
        >>> weight = RoundedWeight(
        ...     jnp.float32([[1, 2]]), FormatRounding(quantizer("e5m2", None, "nearest", "nearest"))
        ... )
        >>> dynamic_linear(jnp.float32([1.2, 1]), weight)
        Array([3.25], dtype=float32)
    """

    numbers: jax.Array
    rounding: FormatRounding

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers' shape."""
        return self.numbers.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.numbers.ndim


@partial(jax.tree_util.register_dataclass, data_fields=["weight"], meta_fields=["activations", "rows"])
@dataclass(frozen=True)
class RangedWeight:
    """A quantized weight, and the integers of the input of each product with it. A pytree.

    Attributes:
        weight: of shape (outputs, features).
        activations: the integers of the input.
        rows: whether each row of the input has a range of its own; else all of it has one.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.float32([[1, 0], [0.5, -1]]), 0.01, 0, "qint8")
        >>> dynamic_linear(jnp.float32([[0, 1], [0, 128]]), RangedWeight(weight, UINT8, True))[:, 1] < -0.99
        Array([ True,  True], dtype=bool)
    """

    weight: QTensor
    activations: AffineInteger
    rows: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape."""
        return self.weight.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.weight.ndim


Weight = QTensor | RangedWeight | RoundedWeight | jax.Array  # the last of float16


def dynamic_linear(x: ArrayLike, weight: Weight, bias: jax.Array | None = None) -> jax.Array:
    """x @ weight.T + bias in float32, of a quantized weight and x quantized by its own range, or of a float16 weight.

    With a quantized weight it is float32(sums) * (scale of x * scale of weight) + bias, where sums are exact. The range
    is that of all of x; under `jax.vmap` of each example. A NaN or an infinity in x makes all results NaN. With a
    weight in a format it is the float32 product of x, rounded to another format, and the weight's numbers.

    Args:
        x: floats of shape (..., features).
        weight: of up to 16 bits, shape (outputs, features), with one scale or one for each output; in a format; or
            float16.
        bias: float32 of shape (outputs,), or None.

    Returns:
        An array of shape (..., outputs), rounded from float32 to x's dtype.

    Raises:
        TypeError: if x is not an array of floats, the weight has another type, or bias is not a float32 array.
        ValueError: if shapes do not fit.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.float32([[1, 0], [0.5, -1]]), 0.01, 0, "qint8")
        >>> dynamic_linear(jnp.float32([1, 0]), weight)
        Array([1. , 0.5], dtype=float32)
    """
    return product(x, weight, bias).astype(x.dtype)


def product(x: Any, weight: Weight, bias: jax.Array | None) -> jax.Array:
    """`dynamic_linear` in float32, whatever x's dtype."""
    if isinstance(x, QTensor):
        raise TypeError("x is a QTensor; allowed is an array of floats: insert a DeQuantStub before this layer")
    x = as_array(x)
    check_weight("weight", weight)
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"x has shape {x.shape}; allowed is (..., {weight.shape[1]})")
    check_bias("bias", bias, weight)
    return _product(Names.astype(x, "float32"), weight, bias)


def halves(weight: ArrayLike) -> jax.Array:
    """A weight in float16; numbers beyond its range become its largest number."""
    return jnp.clip(jnp.asarray(weight), -_LARGEST, _LARGEST).astype(jnp.float16)


def check_weight(name: str, weight: Any) -> None:
    """Raises unless a weight has two dimensions, and integers of up to 16 bits or float16 numbers."""
    if isinstance(weight, RangedWeight):
        weight = weight.weight
    if isinstance(weight, QTensor):
        if weight.form.storage == "int32" or weight.qparams.axis not in (None, 0):
            raise ValueError(
                f"{name} has integers of {weight.form.storage} and axis={weight.qparams.axis}; allowed are up to 16 "
                "bits, and one scale or axis 0"
            )
    elif not isinstance(weight, RoundedWeight) and getattr(weight, "dtype", None) != jnp.float16:
        found = getattr(weight, "dtype", type(weight).__name__)
        raise TypeError(f"{name} is {found}; allowed are a QTensor, a RoundedWeight and float16")
    if weight.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(weight.shape)}; allowed is (outputs, features)")


def check_bias(name: str, bias: Any, weight: Weight) -> None:
    if bias is not None:
        check_parameter(name, bias, [weight.shape[:1]], Names)


@jax.jit
def _product(x: jax.Array, weight: Weight, bias: Any) -> jax.Array:
    if isinstance(weight, RoundedWeight):
        x, weight = weight.rounding.function(x), weight.numbers
    form, rows = ACTIVATIONS, False
    if isinstance(weight, RangedWeight):
        form, rows, weight = weight.activations, weight.rows, weight.weight
    if not isinstance(weight, QTensor):
        y = x @ weight.astype(jnp.float32).T
        return y if bias is None else y + bias
    if x.size == 0:
        return jnp.zeros((*x.shape[:-1], weight.shape[0]))
    parameters = weight.qparams.scale, weight.qparams.zero_point
    with operation("dynamic", x, weight.values, *parameters, bias, form=form.text, bias=bias is not None, rows=rows):
        return (_multiplied_by_rows if rows else _multiplied)(x, weight, bias, form)


def _multiplied_by_rows(x: jax.Array, weight: QTensor, bias: Any, form: AffineInteger) -> jax.Array:
    matrix = jax.lax.stop_gradient(x).reshape(-1, x.shape[-1])
    q, qparams = recurrent.quantize_dynamic(Names, matrix, form, rows=True)
    whole = QParams(jnp.float32(1), jnp.int32(0))
    sums = sums_of_products(QTensor(q.astype(form.storage)[:, None, :], whole, form), weight)
    zeros = jnp.broadcast_to(weight.qparams.zero_point, weight.shape[:1])
    with Names.arithmetic():
        dtype = sums.dtype.name
        totals = (weight.values.astype("int32") - zeros[:, None]).astype(dtype).sum(1)
        sums = recurrent.sums_of_rows(sums, qparams.zero_point.astype(dtype), totals)
    y = recurrent.dynamic_output(Names, sums, qparams.scale, weight.qparams.scale, bias)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def _multiplied(x: jax.Array, weight: QTensor, bias: Any, form: AffineInteger) -> jax.Array:
    q, qparams = recurrent.quantize_dynamic(Names, jax.lax.stop_gradient(x), form)
    whole = QParams(jnp.ones_like(qparams.scale), qparams.zero_point)  # a scale may be NaN
    grouped = QTensor(q.astype(form.storage)[..., None, :], whole, form)
    sums = sums_of_products(grouped, weight)
    return recurrent.dynamic_output(Names, sums, qparams.scale, weight.qparams.scale, bias)


State = tuple[jax.Array, ...]
Product = Callable[[Any, Any, Any], jax.Array]


class CellWeights(NamedTuple):
    """The weights of a recurrent cell, or of one layer of cells in one direction.

    Attributes:
        ih, hh: of the products with the input and with the hidden state: QTensors, `RoundedWeight`s or float16 arrays
            of shapes (gates * size, features) and (gates * size, size). Rows are those of i, f, g, o in an LSTM, and of
            r, z, n in a GRU.
        bias_ih, bias_hh: float32 of shape (gates * size,), or None.
        hr: of an LSTM whose hidden states are projected, of shape (projected, size); hh then has the shape (gates *
            size, projected). None for no projection.

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
    hr: Weight | None = None


def lstm_cell(x: ArrayLike, state: State, weights: CellWeights) -> State:
    """The hidden and the cell state of an LSTM after a step.

    Args:
        x: floats of shape (..., features).
        state: the hidden and the cell state before, floats of shape (..., size).
        weights: of four gates.

    Returns:
        The hidden and the cell state after it, of shape (..., size), each rounded from float32 to its dtype before.

    Raises:
        TypeError, ValueError: as `dynamic_linear` does, or if the shapes of states or weights do not fit.

    Example:
        >>> ones, zero = jnp.ones((4, 1), jnp.float16), jnp.zeros(1)
        >>> lstm_cell(zero, (zero, jnp.float32([2])), CellWeights(ones, ones))[1]  # a forget gate of 0.5
        Array([1.], dtype=float32)
    """
    return _cell("lstm", x, state, weights)


def gru_cell(x: ArrayLike, hidden: jax.Array, weights: CellWeights) -> jax.Array:
    """The hidden state of a GRU after a step.

    Args:
        x: floats of shape (..., features).
        hidden: the state before, floats of shape (..., size).
        weights: of three gates.

    Returns:
        An array of shape (..., size), rounded from float32 to the dtype of the state before.

    Raises:
        TypeError, ValueError: as `dynamic_linear` does, or if the shapes of states or weights do not fit.

    Example:
        >>> zeros = jnp.zeros((3, 1), jnp.float16)
        >>> jax.jit(gru_cell)(jnp.ones(1), jnp.ones(1), CellWeights(zeros, zeros))  # an update gate of 0.5
        Array([0.5], dtype=float32)
    """
    return _cell("gru", x, (hidden,), weights)[0]


def rnn_cell(x: ArrayLike, hidden: jax.Array, weights: CellWeights, nonlinearity: str = "tanh") -> jax.Array:
    """The hidden state of a simple cell after a step.

    Args:
        x: floats of shape (..., features).
        hidden: the state before, floats of shape (..., size).
        weights: of one gate.
        nonlinearity: "tanh" or "relu".

    Returns:
        An array of shape (..., size), rounded from float32 to the dtype of the state before.

    Raises:
        TypeError, ValueError: as `dynamic_linear` does, or if the shapes of states or weights do not fit, or
            nonlinearity is something else.

    Example:
        >>> ones = jnp.ones((1, 1), jnp.float16)
        >>> rnn_cell(jnp.float32([2]), jnp.float32([1]), CellWeights(ones, ones), "relu")
        Array([3.], dtype=float32)
    """
    check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
    return _cell(nonlinearity, x, (hidden,), weights)[0]


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
        last, all rounded from float32 to x's dtype.

    Raises:
        TypeError, ValueError: if shapes do not fit; see `dynamic_linear`.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = quantize_per_tensor(jnp.ones((4, 1)), 0.01, 0, "qint8")
        >>> y, (hidden, cell) = lstm(jnp.ones((3, 2, 1)), [[CellWeights(weight, weight)]])
        >>> y.shape, hidden.shape
        ((3, 2, 1), (1, 2, 1))
    """
    return over_layers("lstm", product, x, layers, state)


def gru(
    x: jax.Array, layers: Sequence[Sequence[CellWeights]], state: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Layers of GRU cells in one or two directions, over whole sequences; inputs are quantized as in `lstm`.

    Args:
        x: floats of shape (steps, batch, features).
        layers: for each layer its weights in each direction, one or two.
        state: the first hidden states, of shape (layers * directions, batch, size); None for zeros.

    Returns:
        The results of all steps, of shape (steps, batch, directions * size), and the hidden states after the last, all
        rounded from float32 to x's dtype.

    Raises:
        TypeError, ValueError: if shapes do not fit; see `dynamic_linear`.

    Example:
        >>> ones = jnp.ones((3, 1), jnp.float16)
        >>> y, hidden = gru(jnp.ones((3, 2, 1)), [[CellWeights(ones, ones)]])
        >>> y.shape, hidden.shape
        ((3, 2, 1), (1, 2, 1))
    """
    y, (hidden,) = over_layers("gru", product, x, layers, None if state is None else (state,))
    return y, hidden


def _lstm_step(product: Product, of_input: jax.Array, weights: CellWeights, state: State) -> State:
    hidden, cell = recurrent.lstm_cell(Names, of_input + product(state[0], weights.hh, weights.bias_hh), state[1])
    return (hidden if weights.hr is None else product(hidden, weights.hr, None)), cell


def _gru_step(product: Product, of_input: jax.Array, weights: CellWeights, state: State) -> State:
    return (recurrent.gru_cell(Names, of_input, product(state[0], weights.hh, weights.bias_hh), state[0]),)


def _rnn_step(nonlinearity: str, product: Product, of_input: jax.Array, weights: CellWeights, state: State) -> State:
    return (recurrent.rnn_cell(Names, of_input + product(state[0], weights.hh, weights.bias_hh), nonlinearity),)


_STEPS = {  # a step, the gates, and the states
    "lstm": (_lstm_step, 4, ("hidden", "cell")),
    "gru": (_gru_step, 3, ("hidden",)),
    "tanh": (partial(_rnn_step, "tanh"), 1, ("hidden",)),
    "relu": (partial(_rnn_step, "relu"), 1, ("hidden",)),
}


def _cell(kind: str, x: Any, states: State, weights: CellWeights) -> State:
    """The states after a step."""
    sizes = _sizes_of(kind, weights)
    check_bias("weights.bias_ih", weights.bias_ih, weights.ih)
    check_bias("weights.bias_hh", weights.bias_hh, weights.hh)
    of_input = product(x, weights.ih, weights.bias_ih)
    step, _, names = _STEPS[kind]
    check_states(names, states, [(*of_input.shape[:-1], size) for size in sizes])
    made = step(product, of_input, weights, tuple(Names.astype(one, "float32") for one in states))
    return tuple(new.astype(one.dtype) for new, one in zip(made, states, strict=True))


def over_layers(kind: str, product: Product, x: Any, layers: Any, states: State | None) -> Any:
    """Layers of cells over sequences; see `lstm`.

    Args:
        kind: "lstm" or "gru".
        product: product(x, weight, bias), of inputs and of hidden states.
        x, layers, states: as for `lstm`; the states are a tuple.
    """
    x, (step, _, names) = as_array(x), _STEPS[kind]
    if x.ndim != 3:
        raise ValueError(f"x has shape {x.shape}; allowed is (steps, batch, features)")
    _check_layers(layers)
    directions = {len(layer) for layer in layers}
    if directions not in ({1}, {2}):
        raise ValueError(f"layers have {sorted(directions)} directions; allowed are 1 or 2, the same for all")
    sizes, *others = {_sizes_of(kind, weights) for layer in layers for weights in layer}
    if others:
        found = sorted({size for one in (sizes, *others) for size in one})
        raise ValueError(f"layers have states of {found}; allowed is one size for all")
    shapes = [(len(layers) * len(layers[0]), x.shape[1], size) for size in sizes]
    states = tuple(map(jnp.zeros, shapes)) if states is None else states
    check_states(names, states, shapes)
    given, x, firsts = x.dtype, Names.astype(x, "float32"), [Names.astype(one, "float32") for one in states]
    last = []
    for layer in layers:
        results = []
        for direction, weights in enumerate(layer):
            first = tuple(one[len(last)] for one in firsts)
            # Of rows, so that blocks along axes are those of PyTorch, which has the rows of all steps in one matrix.
            of_rows = product(x.reshape(-1, x.shape[-1]), weights.ih, weights.bias_ih)
            of_input = of_rows.reshape(*x.shape[:2], of_rows.shape[-1])
            state, y = _over_steps(step, product, of_input, weights, first, direction)
            results.append(y)
            last.append(state)
        x = jnp.concatenate(results, -1)
    return x.astype(given), tuple(jnp.stack(one).astype(given) for one in zip(*last, strict=True))


@partial(jax.jit, static_argnums=(0, 1, 5))
def _over_steps(step: Any, product: Any, of_input: jax.Array, weights: CellWeights, state: State, reverse: int) -> Any:
    def body(state: State, of_step: jax.Array) -> tuple[State, jax.Array]:
        state = step(product, of_step, weights, state)
        return state, state[0]

    return jax.lax.scan(body, state, of_input, reverse=bool(reverse))


def _check_layers(layers: Any) -> None:
    rows: Any = layers if isinstance(layers, (tuple, list)) else [None]
    if not rows or not all(isinstance(row, (tuple, list)) for row in rows):
        raise TypeError(f"layers={quoted(layers)}; allowed is a list of layers, each a list of one or two CellWeights")
    for row in rows:
        for weights in row:
            check_type("weights of layers", weights, CellWeights, "a CellWeights")


def _sizes_of(kind: str, weights: Any) -> tuple[int, ...]:
    """The sizes of a cell's states; raises unless the weights have as many gates of them as the kind."""
    check_type("weights", weights, CellWeights, "a CellWeights")
    ih, hh = (tuple(getattr(weight, "shape", ())) for weight in (weights.ih, weights.hh))
    gates, names = _STEPS[kind][1:]
    if weights.hr is not None and kind == "lstm":
        hr = tuple(weights.hr.shape)
        if len(ih) != 2 or len(hr) != 2 or (ih[0], hh) != (gates * hr[1], (gates * hr[1], hr[0])):
            raise ValueError(
                f"weights.ih has shape {ih}, weights.hh {hh} and weights.hr {hr}; allowed are (4 * size, features), "
                "(4 * size, projected) and (projected, size)"
            )
        return hr
    if weights.hr is not None:
        raise ValueError(f"weights.hr has shape {tuple(weights.hr.shape)}; allowed is None but in an LSTM")
    if len(ih) != 2 or len(hh) != 2 or not ih[0] == hh[0] == gates * hh[1]:
        raise ValueError(
            f"weights.ih has shape {ih} and weights.hh {hh}; allowed are ({gates} * size, features) and "
            f"({gates} * size, size)"
        )
    return (hh[1],) * len(names)


def check_states(names: tuple[str, ...], states: Any, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises unless there is a state of its shape for each name."""
    if not isinstance(states, (tuple, list)) or len(states) != len(names):
        raise TypeError(f"state is a {type(states).__name__}; allowed is a tuple of arrays, ({', '.join(names)})")
    for name, state, shape in zip(names, states, shapes, strict=True):
        if (actual := getattr(state, "shape", None)) != shape:
            raise ValueError(f"{name} state has shape {actual}; allowed is {shape}")
        check_dtype(state.dtype.name, f"{name} state")
