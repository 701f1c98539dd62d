"""A residual network that is trained on with the rounding of its integers, with `qtorch.quantization.prepare_qat`.

    python -m examples.qat_torch
    python -m examples.qat_torch --epochs 2 --limit 640 --plot widths.png

After its training in floats, the network is trained for as many epochs again, for each width of integers from there;
weights and results are rounded to the integers' numbers in each step. The plot has the accuracy that quantization alone
leaves beside it.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from examples.data import load
from examples.quantized_models_torch import ResidualCNN, accuracy, calibrated, measured, settings, trained
from examples.quantized_report import FUSED, SHOWN, WIDTHS, finish
from examples.report import arguments
from qcore.affine import AffineInteger
from qtorch.quantization import (
    FakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    QConfig,
    convert,
    fuse_modules,
    fuse_modules_qat,
    prepare_qat,
)


def training_settings(bits: int) -> QConfig:
    """Simulated integers of so many bits, whose ranges follow what is seen in training."""
    return QConfig(
        FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, dtype=AffineInteger.of_width(bits, signed=False)),
        FakeQuantize.with_args(
            observer=MovingAveragePerChannelMinMaxObserver,
            dtype=AffineInteger.of_width(bits),
            qscheme=torch.per_channel_symmetric,
        ),
    )


def prepared(model: nn.Module, bits: int) -> nn.Module:
    """A copy of a model in floats, to be trained with integers of so many bits."""
    model = fuse_modules_qat(deepcopy(model).train(), FUSED)
    model.qconfig = training_settings(bits)  # type: ignore[assignment]
    return prepare_qat(model)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 3, argv)
    data = load(options.limit)
    model = trained(ResidualCNN, data, options.epochs, options.seed)
    fused = fuse_modules(model, FUSED)
    after = {bits: convert(calibrated(fused, settings(bits), data.images)) for bits in WIDTHS}
    simulated = {
        bits: trained(lambda bits=bits: prepared(model, bits), data, options.epochs, options.seed, f"int{bits}")
        for bits in WIDTHS
    }
    during = {bits: convert(one) for bits, one in simulated.items()}
    curves = {
        name: {bits: accuracy(one, data) for bits, one in models.items()}
        for name, models in (("trained with integers", during), ("quantized after training", after))
    }
    rows = [measured("fp32", fused, data), *(measured(f"int{bits}", during[bits], data) for bits in SHOWN)]
    finish(f"Residual network on {data.name}, PyTorch", rows, curves, options.plot or "qat_torch.svg")


if __name__ == "__main__":
    main()
