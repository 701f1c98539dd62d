"""Parameters and statistics of a model under the names and in the layouts that the same model has in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qjax.nnx.workflow.tree import names_of, shown

Move = Callable[[Any], Any]


def _same(x: Any) -> Any:
    return x


def _transposed(x: Any) -> Any:
    """Of a linear layer's kernel and of its inverse."""
    return x.T


def _outputs_first(x: Any) -> Any:
    return jnp.moveaxis(x, (-1, -2), (0, 1))


def _outputs_last(x: Any) -> Any:
    return jnp.moveaxis(jnp.asarray(x), (0, 1), (-1, -2))


_NORM = {"scale": ("weight", _same, _same), "bias": ("bias", _same, _same)}
# By class: an attribute, its name in torch, and how an array goes there and back.
_LAYOUTS: dict[type[nnx.Module], dict[str, tuple[str, Move, Move]]] = {
    nnx.Linear: {"kernel": ("weight", _transposed, _transposed), "bias": ("bias", _same, _same)},
    nnx.Conv: {"kernel": ("weight", _outputs_first, _outputs_last), "bias": ("bias", _same, _same)},
    nnx.BatchNorm: _NORM | {"mean": ("running_mean", _same, _same), "var": ("running_var", _same, _same)},
    nnx.LayerNorm: _NORM,
    nnx.RMSNorm: _NORM,
    nnx.Embed: {"embedding": ("weight", _same, _same)},
}


def state_dict(model: nnx.Module) -> dict[str, jax.Array]:
    """A model's parameters and statistics by the names of torch's `state_dict`, in torch's layouts.

    Args:
        model: any module of flax nnx whose variables are those of linear, convolution, norm and embedding layers.

    Returns:
        Arrays; `safetensors.numpy.save_file` or `numpy.savez` writes them.

    Raises:
        ValueError: if another module has parameters.

    Example:
        >>> {name: x.shape for name, x in state_dict(nnx.Linear(2, 3, rngs=nnx.Rngs(0))).items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    return {name: there(variable[...]) for name, variable, there, _ in _entries(model)}


def load_state_dict(model: nnx.Module, tensors: Mapping[str, Any]) -> None:
    """Puts arrays of `state_dict`, of this model or of the same one in torch, into a model.

    Args:
        model: as for `state_dict`; it is changed, as flax's modules are.
        tensors: arrays by name; torch's `num_batches_tracked` is ignored.

    Raises:
        ValueError: if a name is missing or left over, or a shape is another; the model is unchanged then.
    """
    entries = {name: (variable, back) for name, variable, _, back in _entries(model)}
    given = {name for name in tensors if not name.endswith("num_batches_tracked")}
    if given != set(entries):
        raise ValueError(f"tensors lacks {sorted(set(entries) - given)} and has {sorted(given - set(entries))} beside")
    arrays = {name: back(jnp.asarray(tensors[name])) for name, (_, back) in entries.items()}
    for name, (variable, _) in entries.items():
        if arrays[name].shape != variable[...].shape:
            raise ValueError(f"{name} has shape {tensors[name].shape}, which is not the model's")
    for name, (variable, _) in entries.items():
        variable[...] = arrays[name]


def _entries(model: nnx.Module) -> list[tuple[str, Any, Move, Move]]:
    """Names in torch, variables, and how their arrays go there and back."""
    found, known = [], set()
    for name, layer in names_of(model).items():
        layout = next((layout for kind, layout in _LAYOUTS.items() if isinstance(layer, kind)), {})
        for attribute, (called, there, back) in layout.items():
            variable = getattr(layer, attribute, None)
            if variable is not None:
                known.add(id(variable))
                found.append((f"{name}.{called}" if name else called, variable, there, back))
        for attribute, variable in vars(layer).items():
            if isinstance(variable, nnx.Param) and id(variable) not in known:
                raise ValueError(f"{shown(name)} has a parameter {attribute!r}, whose layout in torch is not known")
    return found
