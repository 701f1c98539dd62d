"""What optimizer states in codes of 8 and 4 bits do to the loss of a GPT and of PreResNet20, beside float32 states.

Usage:
    python -m benchmarks.coded_states                    minutes of one core
    python -m benchmarks.coded_states --steps 40
    python -m benchmarks.coded_states --json benchmarks/results/coded-states.json
    python -m benchmarks.coded_states --draw docs        draws the picture of the committed results

The language model of `benchmarks.same_training` on Python's help texts and its residual network on handwritten digits,
but with wider layers, as the states of fewer than 4,096 numbers have no codes. Everything but the states is float32.
All optimizers begin at the same weights and see the same batches; a loss is the mean over neighbouring steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import qtorch.optim
from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from benchmarks.training_models.data import LETTERS, batch_of
from benchmarks.training_models.torch_models import GPT, PreResNet20
from qcore.pictures import draw_curves, in_two_widths, picture

FILE, PICTURE = Path(__file__).parent / "results" / "coded-states.json", "coded-states.svg"
STEPS, TOGETHER = 300, 20  # neighbouring steps whose losses are one point
RATE = 3e-3
WIDTHS = (16,) * 4 + (32,) * 3 + (64,) * 3  # as in He et al.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "float32": torch.optim.AdamW,
    "AdamW8bit": qtorch.optim.AdamW8bit,
    "AdamW4bit": qtorch.optim.AdamW4bit,
    "AdamWFp8": qtorch.optim.AdamWFp8,
    "FlashAdamW": qtorch.optim.FlashAdamW,
}


class Model(NamedTuple):
    """A network, and the scale on which its loss is drawn."""

    title: str
    make: Callable[[], torch.nn.Module]
    scale: str


MODELS = {
    "gpt": Model("GPT", lambda: GPT(LETTERS, width=64), "linear"),
    "preresnet20": Model("PreResNet20", lambda: PreResNet20(WIDTHS), "log"),
}
BATCHES = 4  # of `batch_of` are one of a step here


def losses(name: str, kind: str, steps: int) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    network = MODELS[name].make()
    optimizer = OPTIMIZERS[kind](network.parameters(), lr=RATE)
    found = []
    for step in range(steps):
        parts = [batch_of(name, (0, 1), BATCHES * step + part) for part in range(BATCHES)]
        inputs, targets = (torch.from_numpy(np.concatenate(one)) for one in zip(*parts, strict=True))
        logits = network(inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten().long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def coded(name: str) -> tuple[int, int]:
    """The number of a network's weights, and how many of these have states in codes of 8 bits."""
    sizes = [p.numel() for p in MODELS[name].make().parameters()]
    return sum(sizes), sum(size for size in sizes if size >= 4096 and size % 256 == 0)


def measured(steps: int) -> list[dict[str, Any]]:
    """A row for each network and optimizer: the loss by step."""
    rows = []
    for name in MODELS:
        for kind in OPTIMIZERS:
            means = np.array(losses(name, kind, steps)).reshape(-1, TOGETHER).mean(1).round(5).tolist()
            rows.append({"model": name, "optimizer": kind, "losses": means})
            print(f"{name}, {kind}: {means[0]} to {means[-1]}", flush=True)
    return rows


def draw(record: Mapping[str, Any], path: Path) -> None:
    """The loss by step of both networks."""
    together, text = record["settings"]["together"], "The loss by step with states of 32, 8 and 4 bits."
    with picture(path, 5.6, "Training with optimizer states in codes", text) as figure:
        for axes, (name, model) in zip(figure.subplots(len(MODELS), 1), MODELS.items(), strict=True):
            axes.set_yscale(model.scale)
            axes.set(title=model.title, xlabel="step", ylabel="loss")
            rows = (row for row in record["rows"] if row["model"] == name)
            curves = {
                row["optimizer"]: [(together * (i + 0.5), y) for i, y in enumerate(row["losses"])] for row in rows
            }
            draw_curves(axes, curves)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.coded_states", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--steps", metavar="N", type=count_of("N", TOGETHER), default=STEPS, help=f"a multiple of {TOGETHER}")
    add("--json", metavar="FILE", type=output_file, help="write versions, machine and rows there")
    add("--draw", metavar="FOLDER", type=Path, help="only draw the committed results there")
    options = parser.parse_args(argv)
    if options.draw:
        in_two_widths(partial(draw, json.loads(FILE.read_text(encoding="utf-8"))), options.draw / PICTURE)
        return 0
    torch.set_num_threads(1)
    steps = options.steps // TOGETHER * TOGETHER
    rows = measured(steps)
    settings = {"steps": steps, "together": TOGETHER, "rate": RATE}
    numbers = {name: dict(zip(("weights", "coded"), coded(name), strict=True)) for name in MODELS}
    record = {
        "versions": versions(),
        "machine": machine("cpu"),
        "seconds": round(process_time(), 1),
        "settings": settings | numbers,
        "rows": rows,
    }
    if options.json:
        write_results(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
