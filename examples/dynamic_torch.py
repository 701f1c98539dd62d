"""An LSTM that reads images row by row, with weights in integers, with `qtorch.quantization.quantize_dynamic`.

    python -m examples.dynamic_torch
    python -m examples.dynamic_torch --epochs 2 --limit 640 --plot widths.png

Nothing is calibrated: weights are quantized at once, and what comes into a product by its own range, when it is there.
The plot has weights of 2 to 8 bits.
"""

from __future__ import annotations

import torch
from torch import nn

from examples.data import load
from examples.quantized_models_torch import accuracy, measured, trained, weight_observer
from examples.quantized_report import SHOWN, WIDTHS, finish
from examples.report import arguments
from qtorch.quantization import QConfigDynamic, quantize_dynamic


class RowReader(nn.Module):
    """An LSTM whose steps are the 32 rows of an image, and a linear layer for its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(3 * 32, 64), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = images.permute(2, 0, 1, 3).flatten(2)
        return self.fc(self.lstm(rows)[0][-1])


def quantized(model: nn.Module, bits: int) -> nn.Module:
    qconfig = QConfigDynamic(weight=weight_observer(bits))
    return quantize_dynamic(model, {nn.LSTM: qconfig, nn.Linear: qconfig})


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 16, argv)
    data = load(options.limit)
    model = trained(RowReader, data, options.epochs, options.seed)
    integers = {bits: quantized(model, bits) for bits in WIDTHS}
    halves = quantize_dynamic(model, dtype=torch.float16)
    rows = [
        measured("fp32", model, data),
        measured("float16", halves, data),
        *(measured(f"int{bits}", integers[bits], data) for bits in SHOWN),
    ]
    curves = {"weights": {bits: accuracy(model, data) for bits, model in integers.items()}}
    finish(f"LSTM on rows of {data.name}, PyTorch", rows, curves, options.plot or "dynamic_torch.svg")


if __name__ == "__main__":
    main()
