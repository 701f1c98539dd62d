"""A network that is trained, calibrated and converted in PyTorch runs in JAX with the same integers in all layers.

    python -m examples.torch_to_jax
    python -m examples.torch_to_jax --epochs 2 --limit 640 --plot widths.png

What passes from one to the other is a safetensors file. The plot has both accuracies by bit width.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flax import nnx
from safetensors.numpy import load_file

import qjax.nnx as qnn
from examples import quantized_models_jax as of_jax
from examples import quantized_models_torch as of_torch
from examples.command import console
from examples.data import load
from examples.quantized_report import FUSED, SHOWN, finish
from examples.report import arguments
from qtorch.quantization import convert, fuse_modules, save


def served(converted: torch.nn.Module, bits: int) -> nnx.Module:
    """The network in JAX, with the integers of the one in PyTorch."""
    model = of_jax.ResidualCNN(nnx.Rngs(0))
    model.eval()
    with TemporaryDirectory() as folder:
        save(file := Path(folder) / "model.safetensors", converted.state_dict())
        return qnn.from_torch(qnn.fuse_modules(model, FUSED), load_file(file), of_jax.settings(bits))


@nnx.jit
def integers_in_jax(model: Any, images: Any) -> list[Any]:
    return [q.int_repr() for q in model.results(images)]


def integers_in_torch(model: Any, images: np.ndarray) -> Iterator[np.ndarray]:
    """The integers that each layer returns, with channels last."""
    with torch.no_grad():
        for q in model.results(torch.from_numpy(images)):
            yield np.moveaxis(q.int_repr().numpy(), 1, -1)


def compare(converted: torch.nn.Module, model: nnx.Module, images: np.ndarray, name: str) -> None:
    """Prints how many integers of how many layers there are, and how many differ."""
    pairs = list(zip(integers_in_torch(converted, images), integers_in_jax(model, images), strict=True))
    counts = [np.count_nonzero(a != np.asarray(b)) for a, b in pairs]
    console.print(f"{name}: {sum(a.size for a, _ in pairs)} integers of {len(pairs)} layers, {sum(counts)} differ")


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 5, argv)
    data = load(options.limit)
    fused = fuse_modules(of_torch.trained(of_torch.ResidualCNN, data, options.epochs, options.seed), FUSED)
    rows = [of_torch.measured("fp32", fused, data)]
    images, _ = next(data.test_batches())
    for bits in SHOWN:
        name = f"int{bits}"
        converted = convert(of_torch.calibrated(fused, of_torch.settings(bits), data.images))
        model = served(converted, bits)
        compare(converted, model, images, name)
        rows += [
            of_torch.measured(name, converted, data),
            of_jax.measured(f"{name} in JAX", model, data),
        ]
    curves = {
        framework: {bits: row.accuracy for bits, row in zip(SHOWN, rows[first::2], strict=True)}
        for first, framework in ((1, "PyTorch"), (2, "JAX"))
    }
    finish(f"Residual network on {data.name}, PyTorch and JAX", rows, curves, options.plot or "torch_to_jax.svg")


if __name__ == "__main__":
    main()
