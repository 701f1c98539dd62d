"""Checkpoints of quantized arrays and of states: `qcore.affine.checkpoint`'s layout, for JAX arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from qcore.affine import checkpoint
from qcore.arguments import check_type
from qjax._rounding.inputs import ArrayLike, PyTree, Tree, array_of
from qjax.quantization.tensor import QTensor


def save(path: str | os.PathLike[str], entries: Mapping[str, PyTree]) -> None:
    """Writes a flat dict to a safetensors file, which `qtorch.quantization` reads too; needs safetensors.

    Args:
        path: the path of the file.
        entries: arrays, QTensors, and states of observers and of `FakeQuantize` by name.

    Returns:
        Nothing; an existing file is overwritten.

    Raises:
        TypeError: if path is not a path, entries not a dictionary, an entry of another type, or a name not a string.
        ValueError: if two arrays would have the same name, say "w.scale" next to a QTensor "w".
        ImportError: if safetensors is missing.
        SafetensorError: if safetensors files cannot hold an array's dtype.
        FileNotFoundError, OSError: if there is no such folder, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/weights.safetensors", {"w": jnp.float32([1, 2])})
        ...     load(f"{folder}/weights.safetensors")
        {'w': Array([1., 2.], dtype=float32)}
    """
    check_type("entries", entries, Mapping, "a dict")
    checkpoint.save_file(path, {name: jax.tree.map(np.asarray, value) for name, value in entries.items()})


def load(path: str | os.PathLike[str]) -> dict[str, jax.Array | QTensor]:
    """The entries of a safetensors file from `save`, from `qtorch.quantization`, or from a `state_dict` of torch.

    Args:
        path: the path of the file.

    Returns:
        Arrays and QTensors by name. A state becomes one array for each of its fields; see `restore`.

    Raises:
        ImportError: if safetensors is missing.
        FileNotFoundError: if there is no file of this name.
        TypeError: for numbers of 64 bits where x64 is not enabled; integers that fit become int32.

    Example:
        >>> import tempfile
        >>> from qjax.quantization import quantize_per_tensor
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(
        ...         f"{folder}/weights.safetensors",
        ...         {"w": quantize_per_tensor(jnp.float32([1, 2]), 0.5, 3, "quint8")},
        ...     )
        ...     load(f"{folder}/weights.safetensors")["w"].int_repr()
        Array([5, 7], dtype=uint8)
    """
    entries = checkpoint.load_file(path).items()
    return {name: jax.tree.map(partial(array_of, name), checkpoint.wrapped(value, QTensor)) for name, value in entries}


def restore(state: Tree, entries: Mapping[str, ArrayLike | QTensor], name: str) -> Tree:
    """The state of an observer or of `FakeQuantize` that a checkpoint holds.

    Args:
        state: a state of the wanted type and shapes, as `init` returns it.
        entries: the result of `load`.
        name: the name of the state.

    Returns:
        A state of the same kind, shapes and dtypes.

    Raises:
        TypeError: if the state is not a named tuple.
        ValueError: if an array is missing, or has another number of elements.

    Example:
        >>> from qjax.quantization import MinMaxObserver
        >>> # as in a file of torch's
        >>> entries = {"fc.min_val": jnp.float32([-1]), "fc.max_val": jnp.float32([2])}
        >>> restore(MinMaxObserver().init(), entries, "fc")
        Extremes(min_val=Array(-1., dtype=float32), max_val=Array(2., dtype=float32))
    """
    return jax.tree.map(jnp.asarray, checkpoint.restore(state, entries, name))
