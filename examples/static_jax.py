"""A residual network in integers, quantized after its training, with `qjax.nnx`.

    python -m examples.static_jax
    python -m examples.static_jax --epochs 2 --limit 640 --plot widths.png

Convolutions, batch norms and ReLUs become one layer each; observers see what layers return for some training images;
then all layers compute in integers, with the scales that follow. The plot has integers of 2 to 8 bits for weights and
results, and for weights alone, beside results of 8 bits.
"""

from __future__ import annotations

from flax import nnx

import qjax.nnx as qnn
from examples.data import load
from examples.quantized_models_jax import ResidualCNN, accuracy, calibrated, measured, settings, trained
from examples.quantized_report import FUSED, SHOWN, WIDTHS, finish
from examples.report import arguments


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 5, argv)
    data = load(options.limit)
    model = trained(ResidualCNN(nnx.Rngs(options.seed)), data, options.epochs, options.seed)
    fused = qnn.fuse_modules(model, FUSED)
    both = {bits: qnn.convert(calibrated(fused, settings(bits), data.images)) for bits in WIDTHS}
    weights = {bits: qnn.convert(calibrated(fused, settings(8, bits), data.images)) for bits in WIDTHS}
    curves = {
        name: {bits: accuracy(model, data) for bits, model in models.items()}
        for name, models in (("weights and results", both), ("weights", weights))
    }
    rows = [measured("fp32", fused, data), *(measured(f"int{bits}", both[bits], data) for bits in SHOWN)]
    finish(f"Residual network on {data.name}, JAX", rows, curves, options.plot or "static_jax.svg")


if __name__ == "__main__":
    main()
