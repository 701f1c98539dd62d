"""Checkpoints of quantized tensors and state_dicts, in the layout of `qcore.affine.checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from qcore.affine.checkpoint import check_path, flatten, installed, read_file, unflatten, wrapped
from qcore.files import replaced
from qtorch._affine.tensor import QTensor


def save(path: str | os.PathLike[str], entries: Mapping[str, torch.Tensor | QTensor]) -> None:
    """Writes a flat dict to a safetensors file, which `qjax.quantization` reads too; needs safetensors.

    Args:
        path: of the file.
        entries: tensors and QTensors by name, such as a state_dict and quantized weights.

    Returns:
        Nothing; the file is written, and an existing file is replaced.

    Raises:
        TypeError: if path is not a path, entries not a dictionary, an entry not a tensor or QTensor, or a name not a
            text.
        ValueError: if two tensors would have the same name, such as "w.scale" next to a QTensor "w".
        ImportError: if safetensors is missing.
        FileNotFoundError, OSError: if the folder does not exist, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/weights.safetensors", {"w": torch.tensor([1.0, 2.0])})
        ...     load(f"{folder}/weights.safetensors")
        {'w': tensor([1., 2.])}
    """
    check_path(path)
    arrays, metadata = flatten(entries)
    separate = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in arrays.items()}
    write = installed("safetensors.torch").save_file
    with replaced(path) as fresh:
        write(separate, fresh, metadata)


def load(path: str | os.PathLike[str]) -> dict[str, torch.Tensor | QTensor]:
    """The entries of a safetensors file that `save`, `qjax.quantization` or another program wrote.

    Args:
        path: of the file.

    Returns:
        Tensors and QTensors by name. The entries without the QTensors are a state_dict.

    Raises:
        ImportError: if safetensors is missing.
        FileNotFoundError: if there is no file of this name.

    Example:
        >>> import tempfile
        >>> from qtorch.quantization import quantize_per_tensor
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     q = quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 3, torch.quint8)
        ...     save(f"{folder}/weights.safetensors", {"w": q})
        ...     load(f"{folder}/weights.safetensors")["w"]
        QTensor([1., 2.], size=(2,), dtype=torch.quint8, scale=0.5, zero_point=3)
    """
    return {name: wrapped(value, QTensor) for name, value in unflatten(*read_file(path, "torch")).items()}
