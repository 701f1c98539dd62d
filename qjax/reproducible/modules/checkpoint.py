"""Parameters and statistics of a model under the names and in the layouts that the same model has in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from qcore.arguments import check_tensors, numbers_of, quoted
from qcore.names import shown
from qjax._models import check_model, names_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Move = Callable[[Any], Any]
Entry = tuple[str, list[Any], Callable[..., Any], Callable[[Any], list[Any]]]


def _same(x: Any) -> Any:
    return x


def _transposed(x: Any) -> Any:
    """Of a linear layer's kernel and of its inverse."""
    return x.T


def _outputs_first(x: Any) -> Any:
    return jnp.moveaxis(x, (-1, -2), (0, 1))


def _outputs_last(x: Any) -> Any:
    return x.transpose(*range(2, x.ndim), 1, 0)


def _flat(x: Any) -> Any:
    return x.reshape(-1)


def _scalar(x: Any) -> Any:
    return x.reshape(())


_SCALES = {"scaling": ("scaling", _same, _same)}  # of layers with delayed scales
_NORM = {"scale": ("weight", _same, _same), "bias": ("bias", _same, _same)}
# By class: an attribute, its name in torch, and how an array goes there and back.
_LAYOUTS: dict[type[nnx.Module], dict[str, tuple[str, Move, Move]]] = {
    nnx.Linear: {"kernel": ("weight", _transposed, _transposed), "bias": ("bias", _same, _same)} | _SCALES,
    nnx.Conv: {"kernel": ("weight", _outputs_first, _outputs_last), "bias": ("bias", _same, _same)} | _SCALES,
    nnx.LinearGeneral: _SCALES,
    nnx.BatchNorm: _NORM | {"mean": ("running_mean", _same, _same), "var": ("running_var", _same, _same)},
    nnx.LayerNorm: _NORM,
    nnx.RMSNorm: _NORM,
    nnx.GroupNorm: _NORM,
    nnx.InstanceNorm: _NORM,
    nnx.PReLU: {"negative_slope": ("weight", _flat, _scalar)},
    nnx.Embed: {"embedding": ("weight", _same, _same)},
}


def state_dict(model: nnx.Module) -> dict[str, jax.Array]:
    """A model's parameters and statistics by the names of torch's `state_dict`, in torch's layouts.

    Args:
        model: any module of flax nnx. Of flax's layers linear ones, convolutions, norms, embeddings, PReLU and
            attention may have parameters; those of other classes keep their names and layouts.

    Returns:
        Arrays; `safetensors.numpy.save_file` or `numpy.savez` writes them.

    Raises:
        TypeError: if model is no module of flax nnx.
        ValueError: if another layer of flax has parameters.

    Example:
        >>> {name: x.shape for name, x in state_dict(nnx.Linear(2, 3, rngs=nnx.Rngs(0))).items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    return {name: there(*[variable[...] for variable in variables]) for name, variables, there, _ in _entries(model)}


def load_state_dict(model: nnx.Module, tensors: Mapping[str, ArrayLike]) -> None:
    """Puts arrays of `state_dict`, of this model or of the same one in torch, into a model.

    Args:
        model: as for `state_dict`; it is changed, as flax's modules are.
        tensors: arrays by name, of JAX's transformations too; torch's `num_batches_tracked` is ignored.

    Returns:
        Nothing; the variables of the model are changed in place.

    Raises:
        TypeError: if model is no module of flax nnx, or tensors no mapping.
        ValueError: if an entry is not an array of real numbers, a name is missing (but for states of delayed scales,
            which stay then) or left over, or a shape is another; the model is unchanged then.

    Example:
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> load_state_dict(model, {"weight": [[1.0, 2.0]], "bias": [3.0]})
        >>> model.kernel[...].tolist()
        [[1.0], [2.0]]
    """
    check_tensors(tensors)
    entries = {name: (variables, there, back) for name, variables, there, back in _entries(model)}
    given = {name for name in tensors if not name.endswith("num_batches_tracked")}
    entries = {name: entry for name, entry in entries.items() if name in given or not is_scaling(name)}
    if given != set(entries):
        raise ValueError(f"tensors lacks {sorted(set(entries) - given)} and has {sorted(given - set(entries))} beside")
    arrays = {name: _numbers(name, tensors[name]) for name in entries}
    for name, (variables, there, _) in entries.items():
        shape = jax.eval_shape(there, *[variable[...] for variable in variables]).shape
        if arrays[name].shape != shape:
            raise ValueError(f"tensors[{quoted(name)}] has shape {arrays[name].shape}; allowed is the model's, {shape}")
    for name, (variables, _, back) in entries.items():
        for variable, x in zip(variables, back(arrays[name]), strict=True):
            variable[...] = jnp.asarray(x)


def _numbers(name: str, x: Any) -> Any:
    """NumPy's, for which XLA compiles nothing; arrays that a program traces stay what they are."""
    return x if isinstance(x, Tracer) else numbers_of(f"tensors[{quoted(name)}]", x)


def is_scaling(name: str) -> bool:
    """True for the name of a state of delayed scales."""
    return name.rpartition(".")[2] in _SCALES


def _one(back: Move, x: Any) -> list[Any]:
    return [back(x)]


def _is_torchs(layer: Any) -> bool:
    """True of an attention layer that torch has: of one size throughout."""
    if not isinstance(layer, nnx.MultiHeadAttention) or layer.normalize_qk:
        return False
    sizes = {layer.in_features, layer.qkv_features, layer.out_features, layer.in_kv_features}
    return len(sizes) == 1 and layer.num_kv_heads == layer.num_heads


def _of_attention(name: str, layer: Any) -> list[Entry]:
    """In torch one matrix and one bias project to queries, keys and values."""
    prefix, size, heads = f"{name}." if name else "", layer.in_features, (layer.num_heads, layer.head_dim)
    parts = (layer.query, layer.key, layer.value)
    weights: list[Entry] = [
        (
            f"{prefix}in_proj_weight",
            [part.kernel for part in parts],
            lambda *kernels: jnp.concatenate([x.reshape(size, size).T for x in kernels]),
            lambda x: [part.T.reshape(size, *heads) for part in _thirds(x)],
        ),
        (
            f"{prefix}out_proj.weight",
            [layer.out.kernel],
            lambda kernel: kernel.reshape(size, size).T,
            lambda x: [x.T.reshape(*heads, size)],
        ),
    ]
    biases: list[Entry] = [
        (
            f"{prefix}in_proj_bias",
            [part.bias for part in parts],
            lambda *biases: jnp.concatenate([x.reshape(-1) for x in biases]),
            lambda x: [part.reshape(heads) for part in _thirds(x)],
        ),
        (f"{prefix}out_proj.bias", [layer.out.bias], _same, partial(_one, _same)),
    ]
    return weights + biases if layer.use_bias else weights


def _of_general(name: str, layer: nnx.LinearGeneral) -> list[Entry]:
    """In torch a linear layer of flat features."""
    prefix, inputs, outputs = f"{name}." if name else "", layer.in_features, layer.out_features
    weight: Entry = (
        f"{prefix}weight",
        [layer.kernel],
        lambda kernel: kernel.reshape(prod(inputs), prod(outputs)).T,
        lambda x: [x.T.reshape(*inputs, *outputs)],
    )
    bias: Entry = (f"{prefix}bias", [layer.bias], _flat, lambda x: [x.reshape(outputs)])
    return [weight] if layer.bias is None else [weight, bias]


def _thirds(x: Any) -> Any:
    return np.split(x, 3)


def _entries(model: nnx.Module) -> list[Entry]:
    """Names in torch, the variables that they stand for, and how their arrays go there and back."""
    check_model("model", model)
    layers = names_of(model)
    found = [entry for name, layer in layers.items() if _is_torchs(layer) for entry in _of_attention(name, layer)]
    inside = tuple(f"{name}." if name else "" for name, layer in layers.items() if _is_torchs(layer))
    for name, layer in layers.items():
        if isinstance(layer, nnx.LinearGeneral) and not name.startswith(inside) and not layer.batch_axis:
            found += _of_general(name, layer)
    known = {id(variable) for _, variables, _, _ in found for variable in variables}
    for name, layer in layers.items():
        layout = next((layout for kind, layout in _LAYOUTS.items() if isinstance(layer, kind)), {})
        for attribute, (called, there, back) in layout.items():
            variable = getattr(layer, attribute, None)
            if variable is not None:
                known.add(id(variable))
                inverse = partial(_one, back)
                found.append((f"{name}.{called}" if name else called, [variable], there, inverse))
        for attribute, variable in vars(layer).items():
            if not isinstance(variable, nnx.Param) or id(variable) in known:
                continue
            if type(layer).__module__.startswith(("flax.", "qjax.")):
                raise ValueError(
                    f"{shown(name)} has a parameter {quoted(attribute)}, whose layout in torch is not known"
                )
            found.append((f"{name}.{attribute}" if name else attribute, [variable], _same, partial(_one, _same)))
    return found
