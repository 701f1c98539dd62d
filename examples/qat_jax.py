"""A residual network that is trained on with the rounding of its integers, with `qjax.nnx.prepare_qat`.

    python -m examples.qat_jax
    python -m examples.qat_jax --epochs 2 --limit 640 --plot widths.png

After its training in floats, the network is trained for as many epochs again, for each width of integers from there;
weights and results are rounded to the integers' numbers in each step. The plot has the accuracy that quantization alone
leaves beside it.
"""

from __future__ import annotations

from flax import nnx

import qjax.nnx as qnn
from examples.data import load
from examples.quantized_models_jax import ResidualCNN, accuracy, calibrated, measured, settings, trained
from examples.quantized_report import FUSED, SHOWN, WIDTHS, finish
from examples.report import arguments
from qcore.affine import AffineInteger
from qjax.quantization import (
    FakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    QConfig,
)


def training_settings(bits: int) -> QConfig:
    """Simulated integers of so many bits, whose ranges follow what is seen in training."""
    result, weight = AffineInteger.of_width(bits, signed=False), AffineInteger.of_width(bits)
    return QConfig(
        FakeQuantize(MovingAverageMinMaxObserver, dtype=result),
        FakeQuantize(MovingAveragePerChannelMinMaxObserver, dtype=weight, qscheme="per_channel_symmetric"),
    )


def prepared(model: nnx.Module, bits: int) -> nnx.Module:
    """A copy of a model in floats, to be trained with integers of so many bits."""
    model = nnx.clone(model)
    model.train()
    return qnn.prepare_qat(qnn.fuse_modules(model, FUSED), training_settings(bits))


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 3, argv)
    data = load(options.limit)
    model = trained(ResidualCNN(nnx.Rngs(options.seed)), data, options.epochs, options.seed)
    fused = qnn.fuse_modules(model, FUSED)
    after = {bits: qnn.convert(calibrated(fused, settings(bits), data.images)) for bits in WIDTHS}
    simulated = {
        bits: trained(prepared(model, bits), data, options.epochs, options.seed, f"int{bits}") for bits in WIDTHS
    }
    during = {bits: qnn.convert(one) for bits, one in simulated.items()}
    curves = {
        name: {bits: accuracy(one, data) for bits, one in models.items()}
        for name, models in (("trained with integers", during), ("quantized after training", after))
    }
    rows = [measured("fp32", fused, data), *(measured(f"int{bits}", during[bits], data) for bits in SHOWN)]
    finish(f"Residual network on {data.name}, JAX", rows, curves, options.plot or "qat_jax.svg")


if __name__ == "__main__":
    main()
