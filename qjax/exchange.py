"""Quantized weights from files of other programs, as JAX arrays, and back: `qcore.exchange` for JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import check_type, quoted
from qcore.exchange import encoded, loading, writing
from qcore.exchange.encoded import mapped
from qcore.lazy import public_names
from qjax._rounding.dispatch import decode
from qjax._rounding.inputs import array_of, as_array

__all__ = ["Encoded", "encode_weight", "load_quantized", "save_quantized"]
__dir__ = public_names(__name__)


class Encoded(encoded.Encoded):
    """An array as codes of a format, with the scales of blocks; it has the attributes of `qcore.exchange.Encoded`.

    It is a pytree of its codes and scales.

    Example:
        >>> from qjax import parse
        >>> Encoded(jnp.uint8(jnp.array([56, 184])), parse("e4m3fn")).dequantize()
        Array([ 1., -1.], dtype=float32)
    """

    def dequantize(self) -> jax.Array:
        """The numbers in float32, by the law of the program that wrote the file."""
        return self._times_factor(decode(self.codes, self.number, scales=self.scales), _multiply)


jax.tree_util.register_dataclass(Encoded, ["codes", "scales"], ["number", "factor", "dialect", "stored"])


def load_quantized(path: str | os.PathLike[str]) -> dict[str, Encoded | jax.Array]:
    """The weights of a file, or of a sharded model, as JAX arrays; see `qcore.exchange.load_quantized`.

    Args:
        path: a .safetensors file, the index of a sharded model, a folder with either, or a .gguf file.

    Returns:
        A dict by name: `Encoded` of JAX arrays for quantized weights, and arrays.

    Raises:
        TypeError: as `qcore.exchange.load_quantized` does, and for tensors of 64 bits where x64 is not enabled;
            integers that fit become int32.
        FileNotFoundError, ValueError: as `qcore.exchange.load_quantized` does.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_quantized(
        ...         f"{folder}/w.safetensors", {"w": encode_weight(jnp.ones((2, 32)), "GPT-OSS MXFP4")}
        ...     )
        ...     load_quantized(folder)["w"].dequantize()[0, :3]
        Array([1., 1., 1.], dtype=float32)
    """
    return {
        name: mapped(value, partial(array_of, name), Encoded) for name, value in loading.load_quantized(path).items()
    }


def save_quantized(path: str | os.PathLike[str], entries: Mapping[str, Encoded | jax.Array | np.ndarray]) -> None:
    """Writes weights to a safetensors file, each with its dialect's names; see `qcore.exchange.save_quantized`.

    Args:
        path: of the file; an existing one is replaced.
        entries: by name `Encoded` weights, and JAX or NumPy arrays.

    Returns:
        Nothing.

    Raises:
        TypeError, ValueError: as `qcore.exchange.save_quantized` does.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_quantized(f"{folder}/w.safetensors", {"b": jnp.float32([3])})
        ...     load_quantized(folder)
        {'b': Array([3.], dtype=float32)}
    """
    check_type("entries", entries, Mapping, "a dict")
    for name, value in entries.items():
        check_type(f"entry {quoted(name)}", value, (Encoded, jax.Array, np.ndarray), "an Encoded or an array")
    loading.save_quantized(path, {name: mapped(value, np.asarray, encoded.Encoded) for name, value in entries.items()})


def encode_weight(x: jax.Array, dialect: str) -> Encoded:
    """Encodes a weight as a dialect's own program does, on the CPU; see `qcore.exchange.encode_weight`.

    Args:
        x: array of floats.
        dialect: a name of the table of `qcore.exchange.encode_weight`, such as "ModelOpt NVFP4".

    Returns:
        An `Encoded`, which `save_quantized` writes with the dialect's names.

    Example:
        >>> encode_weight(jnp.ones((1, 16)), "ModelOpt NVFP4").dequantize()[0, :2]
        Array([1., 1.], dtype=float32)
    """
    return mapped(writing.encode_weight(np.asarray(as_array(x)), dialect), jnp.asarray, Encoded)


def _multiply(numbers: jax.Array, factor: np.float32) -> jax.Array:
    from qjax.reproducible import multiply  # which takes longer to import than all of this room

    return multiply(numbers, factor)
