"""A network with a fault that low precision makes deadly, and the table that names the layer, in PyTorch.

    python -m examples.find_the_fault_torch overflow
    python -m examples.find_the_fault_torch vanish --plot page.svg

Outputs are rounded to e4m3fn, gradients to e5m2. With "overflow" the outputs of the layer `loud` are too large for
e4m3fn; with "vanish" the output of `quiet` is multiplied by 1e-7, and its gradient is too small for e5m2.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn

from examples.command import console, file_of, parsed, parser_of
from qcore.insight import findings
from qtorch.insight import Record, cross_entropy, draw, print_worst, watch
from qtorch.recipes import lower

FAULTS = {"overflow": (5000.0, 1.0), "vanish": (1.0, 1e-7)}  # factors of loud's weights, and of quiet's output


class Net(nn.Module):
    """Two branches between two layers."""

    def __init__(self, loudness: float, quietness: float) -> None:
        super().__init__()
        self.first, self.loud, self.quiet = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)
        self.quietness = quietness
        with torch.no_grad():
            self.loud.weight.mul_(loudness)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.head((self.loud(x) + self.quiet(x) * self.quietness).relu())


def record(fault: str, steps: int = 3) -> Record:
    """The record of some steps of training."""
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    model = lower(Net(*FAULTS[fault]), ["linear"], "e4m3fn", "e5m2", "nearest", "nearest")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, name=f"net with {fault}") as watching:
        for step in range(steps):
            part = slice(64 * step, 64 * step + 64)
            optimizer.zero_grad()
            cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
            watching.step()
    return watching.record


def main(argv: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("fault", choices=FAULTS, help="what is planted: too large outputs, or too small gradients")
    parser.add_argument("--plot", type=file_of(".svg"), metavar="FILE", help="draw a page of pictures, .svg")
    options = parsed(parser, argv)
    found = record(options.fault)
    print_worst(found)
    worst = findings(found)[0]
    console.print(f"The worst site is {worst.site} in {worst.statistics.number}: {worst.advice}.", style="bold")
    if options.plot:
        draw(found, options.plot)
        console.print(f"pictures saved to {options.plot}")


if __name__ == "__main__":
    main()
