"""Kernels that Inductor compiles ahead of time: packages of modules, and torch's loader of them.

All kernels of GPUs are packages. On the CPU `QTORCH_KERNELS=inductor` chooses packages instead of C.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qtorch._kernels import compiler, store
from qtorch._torch_internals import compile_package, open_package

# Float arithmetic as IEEE 754 has it, which only NVFP4's quotients and affine integers need: Triton otherwise contracts
# products and sums, and divides approximately.
OPTIONS = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "eager_numerics.disable_ftz": True,
}


class Example(NamedTuple):
    """The module and the arguments from which a kernel is compiled.

    Attributes:
        module: returns the results of the kernel, a tensor or several.
        arguments: tensors with the dtypes and dimensions of later arguments.
        dynamic: the sizes of each argument that vary, as `torch.export.export` takes them.
    """

    module: torch.nn.Module
    arguments: tuple[torch.Tensor, ...]
    dynamic: tuple[Any, ...]


def load(
    name: str, sources: Sequence[Path], device: torch.device, example: Callable[[], Example]
) -> Callable[[list[torch.Tensor]], object] | None:
    """The kernel of a module, from disk or freshly compiled; None, after one warning, if it cannot be compiled.

    Args:
        name: a text that contains everything that the example depends on.
        sources: the files that the module's code depends on.
        device: the device of the kernel.
        example: returns the module and its arguments.

    Returns:
        A function of the module's arguments and, after them, memory for its results, which it writes.
    """
    digest = hashlib.sha256(f"{name} {torch.__version__} {torch.version.cuda} {_chip(device)}".encode())
    for path in (*sources, Path(__file__)):
        digest.update(path.read_bytes())
    name = f"{digest.hexdigest()[:32]}.pt2"
    try:
        with store.folder() as kernels:
            path = kernels.held / name
            if not path.exists():
                with ThreadPoolExecutor(1) as fresh:  # a new thread, because modes of torch may be on in this one
                    fresh.submit(_compile, example, kernels, name).result()
            return open_package(str(path), -1 if device.index is None else device.index)
    except Exception as error:  # whatever a compiler may raise
        store.warn_of_no_kernel(device.type, error)
        return None


def _chip(device: torch.device) -> str:
    return str(torch.cuda.get_device_capability(device)) if device.type == "cuda" else compiler.processor()


class _Onto(torch.nn.Module):
    """A module that writes its results onto its last arguments."""

    def __init__(self, module: torch.nn.Module, inputs: int) -> None:
        super().__init__()
        self.module = module
        self.inputs = inputs

    def forward(self, *tensors: torch.Tensor) -> None:
        results = several(self.module(*tensors[: self.inputs]))
        for memory, result in zip(tensors[self.inputs :], results, strict=True):
            memory.copy_(result if result.shape == memory.shape else result.reshape(-1))


def several(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def export(example: Example) -> Any:
    """The exported program of a kernel, which writes its results: flat, but for those of the first argument's shape."""
    module, arguments, dynamic = example
    results = several(module(*(argument.to("meta") for argument in arguments)))
    memory, sizes = [], list(dynamic)
    for result in results:
        like = result.shape == arguments[0].shape
        shape = result.shape if like else (result.numel(),)
        memory.append(torch.empty(shape, dtype=result.dtype, device=arguments[0].device))
        sizes.append(dynamic[0] if like else {0: torch.export.Dim.AUTO})
    writing = _Onto(module, len(arguments))
    return torch.export.export(writing, (*arguments, *memory), dynamic_shapes=(tuple(sizes),))


def _compile(example: Callable[[], Example], kernels: store.Folder, name: str) -> None:
    with warnings.catch_warnings(), torch.no_grad(), store.temporary(kernels) as fresh:
        warnings.simplefilter("ignore")  # warnings of Inductor about its own work; users cannot act on them
        compile_package(export(example()), str(fresh / name), str(fresh / "output"), OPTIONS)
        os.replace(fresh / name, kernels.held / name)
