"""Variables of float modules of flax, and what PyTorch calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from qjax.nnx.activations import PReLU
from qjax.nnx.intrinsic import Fused
from qjax.nnx.layouts import flax_layout, mirrored
from qjax.nnx.recurrent import Recurrent
from qjax.nnx.workflow.carrying.entries import Entries
from qjax.nnx.workflow.layers import CELLS
from qjax.nnx.workflow.steps.dynamic import LSTM_GATES, parts_of


class _Way(NamedTuple):
    """A variable, its name in PyTorch, and how it is changed on the way there and back."""

    attribute: str
    name: str
    to_flax: Callable[[Any], Any] = jnp.asarray
    to_torch: Callable[[Any], Any] = np.asarray


_KERNEL = [
    _Way("kernel", "weight", flax_layout, lambda kernel: np.moveaxis(np.asarray(kernel), (-1, -2), (0, 1))),
    _Way("bias", "bias"),
]
_TRANSPOSED = [
    _Way(
        "kernel",
        "weight",
        lambda weight: flax_layout(jnp.swapaxes(jnp.asarray(weight), 0, 1), True),
        lambda kernel: np.asarray(mirrored(jnp.moveaxis(jnp.asarray(kernel), (-2, -1), (0, 1)))),
    ),
    _Way("bias", "bias"),
]
_NORM = [_Way("scale", "weight"), _Way("bias", "bias")]
_WAYS: dict[type[nnx.Module], list[_Way]] = {
    nnx.Linear: _KERNEL,
    nnx.Conv: _KERNEL,
    nnx.ConvTranspose: _TRANSPOSED,
    nnx.BatchNorm: [*_NORM, _Way("mean", "running_mean"), _Way("var", "running_var")],
    nnx.LayerNorm: _NORM,
    nnx.GroupNorm: _NORM,
    nnx.InstanceNorm: _NORM,
    PReLU: [_Way("weight", "weight")],
    nnx.Embed: [_Way("embedding", "weight")],
}


def _ways_of(module: nnx.Module) -> list[_Way]:
    if isinstance(module, Recurrent):
        return [_Way(name, name) for name, value in vars(module).items() if isinstance(value, nnx.Param)]
    ways = next((ways for kind, ways in _WAYS.items() if isinstance(module, kind)), [])
    return [way for way in ways if getattr(module, way.attribute) is not None]


def fill(module: Any, entries: Entries) -> None:
    """Takes the variables of a float module.

    Raises:
        ValueError: if one is missing, or has another shape.
    """
    if isinstance(module, Fused):  # PyTorch's is a Sequential, but in training one layer with a part `bn`
        apart = "0.weight" in entries
        fill(module.layer, entries.of("0") if apart else entries)
        if module.bn is not None:
            fill(module.bn, entries.of("1" if apart else "bn"))
    elif isinstance(module, nnx.RNN) and isinstance(module.cell, CELLS):
        _fill_cell(module.cell, entries, "_l0")
    elif isinstance(module, CELLS):
        _fill_cell(module, entries, "")
    for way in _ways_of(module):
        _set(module, way.attribute, way.to_flax(entries.take(way.name, getattr(module, way.attribute).ndim)), way.name)


def arrays_of(module: Any, trained: bool = False) -> dict[str, Any]:
    """The variables of a float module by PyTorch's names.

    Args:
        module: a module of floats; its children are left out, but for those of fused ones and of cells.
        trained: True if a fused one is one layer in PyTorch, as it is in training.
    """
    if isinstance(module, Fused):
        parts = [("" if trained else "0.", module.layer), ("bn." if trained else "1.", module.bn)]
        return {prefix + name: x for prefix, part in parts if part is not None for name, x in arrays_of(part).items()}
    if isinstance(module, nnx.RNN) and isinstance(module.cell, CELLS):
        return {f"{name}_l0": array for name, array in _arrays_of_cell(module.cell).items()}
    if isinstance(module, CELLS):
        return _arrays_of_cell(module)
    arrays = {way.name: way.to_torch(getattr(module, way.attribute)[...]) for way in _ways_of(module)}
    return arrays | ({"num_batches_tracked": np.int64(0)} if isinstance(module, nnx.BatchNorm) else {})


def _set(module: Any, attribute: str, value: Any, name: str) -> None:
    variable = getattr(module, attribute)
    if value.shape != variable.shape:
        raise ValueError(f"{name} becomes {attribute} of shape {value.shape}; allowed is {variable.shape}")
    variable.set_value(value.astype(variable.dtype))


def _fill_cell(cell: Any, entries: Entries, suffix: str) -> None:
    """Takes the weights of a cell, which has one bias where PyTorch has two, whose sum counts."""
    size = cell.hidden_features
    of_input, of_hidden = (flax_layout(entries.take(f"weight_{side}{suffix}", 2)) for side in ("ih", "hh"))
    found = [entries.maybe(f"bias_{side}{suffix}", 1) for side in ("ih", "hh")]
    biases = [np.zeros(of_input.shape[-1], np.float32) if bias is None else bias for bias in found]
    if isinstance(cell, nnx.GRUCell) and biases[1][2 * size :].any():
        raise ValueError(
            f"bias_hh{suffix} is not 0 for the last gate, for which flax's GRUCell has no bias; allowed are zeros "
            "there, or integers, as quantize_dynamic in PyTorch leaves them"
        )
    bias = biases[0] + biases[1]
    if isinstance(cell, nnx.LSTMCell):
        for number, names in enumerate(zip(*LSTM_GATES, strict=True)):
            rows = slice(number * size, (number + 1) * size)
            for name, kernel in zip(names, (of_input, of_hidden), strict=True):
                _set(getattr(cell, name), "kernel", kernel[:, rows], "weight")
            _set(getattr(cell, names[1]), "bias", bias[rows], "bias")
        return
    _set(cell.dense_i, "kernel", of_input, f"weight_ih{suffix}")
    _set(cell.dense_h, "kernel", of_hidden, f"weight_hh{suffix}")
    _set(cell.dense_h if cell.dense_i.bias is None else cell.dense_i, "bias", bias, f"bias_ih{suffix}")


def _arrays_of_cell(cell: Any) -> dict[str, Any]:
    arrays = {}
    for side, (weight, bias) in zip(("ih", "hh"), parts_of(cell).weights, strict=True):
        arrays[f"weight_{side}"] = np.asarray(weight)
        arrays[f"bias_{side}"] = np.zeros(weight.shape[0], np.float32) if bias is None else np.asarray(bias)
    return arrays
