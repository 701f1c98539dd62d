"""Formats for each layer of a small GPT and of PreResNet20, by what the loss becomes, in PyTorch.

    python -m examples.choose_formats_torch
    python -m examples.choose_formats_torch --model gpt --budget 4.5

The models are trained without rounding: the GPT on the texts of Python's help, PreResNet20 on scikit-learn's digits of
8 x 8 pixels. Then the input and the weight of each layer are rounded to the formats that `choose_formats` finds.
"""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from examples.choosing import Batch, choose_all
from examples.gpt_torch import GPT
from examples.models_torch import PreResNet20
from examples.recipes import LENGTH, LETTERS, batches
from examples.text import load
from qcore import Recipe
from qcore.insight import Choice
from qtorch.insight import choose_formats, cross_entropy
from qtorch.recipes import lower


def train(name: str, steps: int, seed: int) -> nn.Module:
    """A model trained in float32."""
    torch.manual_seed(seed)
    model: Any = GPT(LETTERS, LENGTH) if name == "gpt" else PreResNet20()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for inputs, targets in islice(batches(name, seed, load()), steps):
        loss = cross_entropy(model(torch.from_numpy(inputs.copy())), torch.from_numpy(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def choose(model: nn.Module, data: list[Batch], budget_bits: float, candidates: tuple[str, ...]) -> Choice:
    return choose_formats(model, [_tensors(batch) for batch in data], budget_bits, candidates)


def lowered(model: nn.Module, recipe: Recipe) -> nn.Module:
    return lower(copy.deepcopy(model), recipe)


@torch.no_grad()
def loss_of(model: nn.Module, data: list[Batch]) -> float:
    losses = [cross_entropy(model(inputs), targets).item() for inputs, targets in map(_tensors, data)]
    return float(np.mean(losses))


def _tensors(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = batch
    return torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())


def main(argv: list[str] | None = None) -> None:
    choose_all(__doc__, "torch", train, choose, lowered, loss_of, argv)


if __name__ == "__main__":
    main()
