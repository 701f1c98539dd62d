"""Published recipes of low-precision training, and accumulators of many widths, in PyTorch.

    python -m examples.recipes_torch
    python -m examples.recipes_torch --model preresnet20 --recipe fp32 hfp8 --steps 100
    python -m examples.recipes_torch --recipe 'accumulator(float(6,3),chunk=16)' --steps 100

A GPT of two blocks learns the texts of Python's help, PreResNet20 scikit-learn's digits. Parameters and optimizers stay
in float32; a recipe says what the products of the layers round, forward and backward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import qtorch
from examples.gpt_torch import GPT
from examples.models_torch import PreResNet20
from examples.recipes import LENGTH, LETTERS, LOSS_SCALE, Step, main
from qcore import Recipe


def trainer(name: str, recipe: Recipe | None, seed: int) -> Step:
    """The steps of a model, which begin with the same weights for all recipes."""
    torch.manual_seed(seed)
    if name == "gpt":
        model: Any = GPT(LETTERS, LENGTH)
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    else:
        model = PreResNet20()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    if recipe is not None:
        qtorch.recipes.lower(model, recipe)

    def step(inputs: np.ndarray, targets: np.ndarray) -> torch.Tensor:
        outputs = model(torch.from_numpy(inputs.copy()))
        loss = F.cross_entropy(outputs.flatten(0, -2), torch.from_numpy(targets).flatten())
        optimizer.zero_grad()
        (loss * LOSS_SCALE).backward()
        for parameter in model.parameters():
            parameter.grad /= LOSS_SCALE
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    main(__doc__, "torch", trainer, None)
