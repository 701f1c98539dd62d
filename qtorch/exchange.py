"""Quantized weights from files of other programs, as tensors, and back: `qcore.exchange` for PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import torch

from qcore.arguments import check_type, quoted
from qcore.exchange import encoded, loading, writing
from qcore.exchange.encoded import mapped
from qcore.exchange.safetensors import bfloat16
from qcore.lazy import public_names
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import decode

__all__ = ["Encoded", "encode_weight", "load_quantized", "save_quantized"]
__dir__ = public_names(__name__)


class Encoded(encoded.Encoded):
    """A tensor as codes of a format, with the scales of blocks; it has the attributes of `qcore.exchange.Encoded`.

    Example:
        >>> from qtorch import parse
        >>> Encoded(torch.tensor([56, 184], dtype=torch.uint8), parse("e4m3fn")).dequantize()
        tensor([ 1., -1.])
    """

    def dequantize(self) -> torch.Tensor:
        """The numbers in float32, by the law of the program that wrote the file."""
        numbers = decode(self.codes, self.number, scales=self.scales)
        return self._times_factor(numbers, lambda x, factor: x * float(factor))


def load_quantized(path: str | os.PathLike[str]) -> dict[str, Encoded | torch.Tensor]:
    """The weights of a file, or of a sharded model, as tensors; see `qcore.exchange.load_quantized`.

    Args:
        path: a .safetensors file, the index of a sharded model, a folder with either, or a .gguf file.

    Returns:
        A dict by name: `Encoded` of tensors for quantized weights, and tensors.

    Raises:
        TypeError, FileNotFoundError, ValueError: as `qcore.exchange.load_quantized` does.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_quantized(
        ...         f"{folder}/w.safetensors", {"w": encode_weight(torch.ones(2, 32), "GPT-OSS MXFP4")}
        ...     )
        ...     load_quantized(folder)["w"].dequantize()[0, :3]
        tensor([1., 1., 1.])
    """
    return {name: mapped(value, _tensor, Encoded) for name, value in loading.load_quantized(path).items()}


def save_quantized(path: str | os.PathLike[str], entries: Mapping[str, Encoded | torch.Tensor]) -> None:
    """Writes weights to a safetensors file, each with its dialect's names; see `qcore.exchange.save_quantized`.

    Args:
        path: of the file; an existing one is replaced.
        entries: by name `Encoded` weights, and tensors.

    Returns:
        Nothing.

    Raises:
        TypeError, ValueError: as `qcore.exchange.save_quantized` does.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_quantized(f"{folder}/w.safetensors", {"b": torch.tensor([3.0])})
        ...     load_quantized(folder)
        {'b': tensor([3.])}
    """
    check_type("entries", entries, Mapping, "a dict")
    for name, value in entries.items():
        check_type(f"entry {quoted(name)}", value, (Encoded, torch.Tensor), "an Encoded or a torch.Tensor")
    loading.save_quantized(path, {name: mapped(value, _array, encoded.Encoded) for name, value in entries.items()})


def encode_weight(x: torch.Tensor, dialect: str) -> Encoded:
    """Encodes a weight as a dialect's own program does, on the CPU; see `qcore.exchange.encode_weight`.

    Args:
        x: tensor of floats.
        dialect: a name of the table of `qcore.exchange.encode_weight`, such as "ModelOpt NVFP4".

    Returns:
        An `Encoded`, which `save_quantized` writes with the dialect's names.

    Example:
        >>> encode_weight(torch.ones(1, 16), "ModelOpt NVFP4").dequantize()[0, :2]
        tensor([1., 1.])
    """
    check_type("x", x, torch.Tensor, "a torch.Tensor of floats")
    check_dense("x", x)
    return mapped(writing.encode_weight(_array(x.to(torch.float32)), dialect), _tensor, Encoded)


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(bfloat16())
    return tensor.numpy()
