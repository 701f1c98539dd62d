"""Tables of layers and their quantized forms, and the parts of which dynamic layers are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from qjax.nnx import quantized
from qjax.nnx.activations import PReLU
from qjax.nnx.intrinsic import Fused, LinearReLU
from qjax.nnx.layouts import bias_of, torch_layout
from qjax.nnx.quantization.observing import FloatFunctional, Observed
from qjax.nnx.quantized import dynamic, normalization
from qjax.nnx.recurrent import GRU, LSTM
from qjax.nnx.rounded import RoundedLayer

WEIGHTED: dict[type[nnx.Module], Any] = {nnx.Linear: quantized.Linear, nnx.Conv: quantized.Conv}
# Layers that become an `nnx.Linear` between reshapes, which is then quantized.
GENERAL = nnx.LinearGeneral, nnx.Einsum
# Layers with a weight that is not fake-quantized in training, as in torch.
UNTRAINED: dict[type[nnx.Module], Any] = {nnx.ConvTranspose: quantized.ConvTranspose, PReLU: quantized.PReLU}
NORMS: dict[type[nnx.Module], Any] = {
    floats: made for name in normalization.__all__ for made in [getattr(quantized, name)] for floats in made.floats
}


CELLS = (nnx.OptimizedLSTMCell, nnx.LSTMCell, nnx.GRUCell, nnx.SimpleCell)
_WHOLE = (
    Observed,
    Fused,
    FloatFunctional,
    RoundedLayer,
    quantized.Quantized,
    quantized.QuantizedWeight,
    quantized.Embed,
)
RECURRENT = {LSTM: dynamic.LSTM, GRU: dynamic.GRU}
_DYNAMIC = (dynamic.Linear, dynamic.Cell, dynamic.Recurrent)


def keeps_children(module: nnx.Module) -> bool:
    """True for a module that is observed and converted as one."""
    if isinstance(module, nnx.RNN):
        return isinstance(module.cell, (*CELLS, dynamic.Cell))
    return isinstance(module, (*_WHOLE, *CELLS, *_DYNAMIC))


SIGMOID, TANH, RELU = (nnx.sigmoid, jax.nn.sigmoid), (nnx.tanh, jnp.tanh, jax.lax.tanh), (nnx.relu, jax.nn.relu)


class FloatWeights(NamedTuple):
    """A float layer's weights in torch's layout, each with its bias or None, and what makes the dynamic one of them."""

    make: Callable[..., Any]
    weights: list[tuple[jax.Array, jax.Array | None]]


def _linear(layer: Any) -> tuple[jax.Array, jax.Array | None]:
    return torch_layout(layer), bias_of(layer)


def _gates(layers: list[Any]) -> tuple[jax.Array, jax.Array | None]:
    weights, biases = zip(*map(_linear, layers), strict=True)
    return jnp.concatenate(weights), None if biases[0] is None else jnp.concatenate(biases)


def parts_of(module: Any) -> FloatWeights:
    """The parts of a layer of a type that has a dynamic form."""
    if isinstance(module, (nnx.Linear, LinearReLU)):
        relu = isinstance(module, LinearReLU)
        return FloatWeights(partial(dynamic.Linear, relu=relu), [_linear(module.layer if relu else module)])
    if type(module) in RECURRENT:
        return _recurrent(module)
    if isinstance(module, nnx.LSTMCell):
        of_input, of_hidden = ([getattr(module, name) for name in names] for names in LSTM_GATES)
        return _cell(dynamic.LSTMCell, [_gates(of_input), _gates(of_hidden)])
    kinds = {nnx.OptimizedLSTMCell: dynamic.LSTMCell, nnx.GRUCell: dynamic.GRUCell, nnx.SimpleCell: dynamic.SimpleCell}
    more = {"nonlinearity": _nonlinearity(module)} if isinstance(module, nnx.SimpleCell) else {}
    return _cell(kinds[type(module)], [_linear(module.dense_i), _linear(module.dense_h)], **more)


LSTM_GATES = ("ii", "if_", "ig", "io"), ("hi", "hf", "hg", "ho")


def _cell(class_: Any, weights: list[tuple[jax.Array, jax.Array | None]], **more: Any) -> FloatWeights:
    def make(ih: dynamic.Linear, hh: dynamic.Linear) -> Any:
        cell = class_(ih, hh, **more)
        cell.dtype = str(weights[0][0].dtype)
        return cell

    return FloatWeights(make, weights)


def _nonlinearity(cell: nnx.SimpleCell) -> str:
    return "relu" if cell.activation_fn in RELU else "tanh"


def _recurrent(layer: Any) -> FloatWeights:
    """The parts of an LSTM or a GRU: products with inputs, with hidden states and of projections in turn."""
    cells = layer.weights()
    weights = [(one, bias) for cell in cells for one, bias in ((cell.ih, cell.bias_ih), (cell.hh, cell.bias_hh))]
    weights += [(cell.hr, None) for cell in cells if cell.hr is not None]

    def make(*products: dynamic.Linear) -> Any:
        count = 2 * len(cells)
        projections = [*products[count:]] or None
        settings = layer.bidirectional, layer.time_major, projections
        return RECURRENT[type(layer)]([*products[:count:2]], [*products[1:count:2]], *settings)

    return FloatWeights(make, weights)
