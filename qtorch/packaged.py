"""Kernels for GPUs: packaged models, which Inductor compiles ahead of time, and torch's loader of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from qtorch.inductor import Example, Variadic

SUFFIX = ".pt2"


class _Onto(torch.nn.Module):
    """A module whose results are written on its last arguments, flat ones or such of the same shapes."""

    def __init__(self, module: torch.nn.Module, inputs: int) -> None:
        super().__init__()
        self.module = module
        self.inputs = inputs

    def forward(self, *tensors: torch.Tensor) -> None:
        results = _several(self.module(*tensors[: self.inputs]))
        for memory, result in zip(tensors[self.inputs :], results, strict=True):
            memory.copy_(result if result.shape == memory.shape else result.reshape(-1))


def _several(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def compile_kernel(example: Example, path: Path) -> None:
    """Writes a package for `open_kernel`."""
    from torch._inductor import config
    from torch._subclasses import FakeTensorMode

    module, arguments, dynamic, _ = example
    with FakeTensorMode() as fake:
        results = _several(module(*map(fake.from_tensor, arguments)))
    memory, sizes = [], list(dynamic)
    for result in results:
        like = result.shape == arguments[0].shape
        memory.append(torch.empty(result.shape if like else result.numel(), dtype=result.dtype, device=result.device))
        sizes.append(dynamic[0] if like else {0: torch.export.Dim.AUTO})
    writing = Variadic(_Onto(module, len(arguments)))
    exported = torch.export.export(writing, (*arguments, *memory), dynamic_shapes=(tuple(sizes),))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        package = os.path.join(folder, path.name)
        # Inductor's own folder of outputs is the same for all processes that compile the same kernel, and they would
        # package each other's half-written files.
        with config.patch({"aot_inductor.output_path": os.path.join(folder, "output")}):
            torch._inductor.aoti_compile_and_package(exported, package_path=package)
        os.replace(package, path)


def open_kernel(path: Path, device: torch.device) -> Any:
    """The kernel of a package; see `qtorch.kernels.Kernel`.

    It looks at shapes: memory for a result has the first input's, or where the result's is another one dimension.
    """
    index = -1 if device.index is None else device.index
    try:
        # The public loader imports all of Inductor first, which takes more than a second.
        from torch._C._aoti import AOTIModelPackageLoader
    except ImportError:
        run = torch._inductor.aoti_load_package(str(path), device_index=index).loader.run  # type: ignore[attr-defined]
    else:
        run = AOTIModelPackageLoader(str(path), "model", False, 1, index).run

    def kernel(*given: Any) -> None:
        run([tensor for tensor in given if isinstance(tensor, torch.Tensor)])

    return kernel
