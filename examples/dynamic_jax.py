"""An LSTM that reads images row by row, with weights in integers, with `qjax.nnx.quantize_dynamic`.

    python -m examples.dynamic_jax
    python -m examples.dynamic_jax --epochs 2 --limit 640 --plot widths.png

Nothing is calibrated: weights are quantized at once, and what comes into a product by its own range, when it is there.
The plot has weights of 2 to 8 bits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import qjax.nnx as qnn
from examples.data import load
from examples.quantized_models_jax import accuracy, measured, trained, weight_observer
from examples.quantized_report import SHOWN, WIDTHS, finish
from examples.report import arguments
from qjax.quantization import QConfigDynamic


class RowReader(nnx.Module):
    """An LSTM whose steps are the 32 rows of an image, and a linear layer for its last state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(3 * 32, 64, rngs=rngs), time_major=True, rngs=False)
        self.fc = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        rows = images.transpose(2, 0, 1, 3).reshape(32, len(images), 3 * 32)
        zeros = jnp.zeros((len(images), 64))
        steps: Any = self.lstm(rows, initial_carry=(zeros, zeros))
        return self.fc(steps[-1])


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 16, argv)
    data = load(options.limit)
    model = trained(RowReader(nnx.Rngs(options.seed)), data, options.epochs, options.seed)
    integers = {bits: qnn.quantize_dynamic(model, {"": QConfigDynamic(weight_observer(bits))}) for bits in WIDTHS}
    rows = [
        measured("fp32", model, data),
        measured("float16", qnn.quantize_dynamic(model, dtype="float16"), data),
        *(measured(f"int{bits}", integers[bits], data) for bits in SHOWN),
    ]
    curves = {"weights": {bits: accuracy(model, data) for bits, model in integers.items()}}
    finish(f"LSTM on rows of {data.name}, JAX", rows, curves, options.plot or "dynamic_jax.svg")


if __name__ == "__main__":
    main()
