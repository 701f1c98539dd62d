"""Published recipes of low-precision training, and accumulators of many widths, in PyTorch.

    python -m examples.recipes_torch
    python -m examples.recipes_torch --model preresnet20 --recipe fp32 bfp8 --seeds 0 1 2
    python -m examples.recipes_torch --recipe 'accumulator(float(6,3),chunk=16)' --steps 100

A GPT of two blocks learns the texts of Python's help, PreResNet20 scikit-learn's digits. A recipe says what the
products of the layers round, forward and backward. All else is float32 with defined bits (`qtorch.reproducible`), so
`examples.recipes_jax` ends in the same weights. An interrupted run goes on when the same command is given again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from examples.gpt_torch import GPT
from examples.models_torch import PreResNet20
from examples.recipes import LENGTH, LETTERS, LOSS_SCALE, WEIGHTS, train_all
from qcore import Recipe
from qtorch import reproducible


class TorchTrainer:
    """A model whose layers multiply by a recipe, and its optimizer.

    Args:
        name: "gpt" or "preresnet20".
        recipe: the recipe; None for float32.
        seed: of the weights, which do not depend on the recipe.
    """

    def __init__(self, name: str, recipe: Recipe | None, seed: int) -> None:
        self.model = GPT(LETTERS, LENGTH) if name == "gpt" else PreResNet20()
        reproducible.initialize(self.model, (seed, WEIGHTS))
        reproducible.convert(self.model, recipe)
        if name == "gpt":
            self.optimizer: torch.optim.Optimizer = reproducible.Adam(self.model.parameters())
            self.buffers = ["exp_avg", "exp_avg_sq"]
        else:
            self.optimizer = reproducible.SGD(self.model.parameters(), momentum=0.9, weight_decay=5e-4)
            self.buffers = ["momentum_buffer"]

    def step(self, rate: np.float32, key: tuple[int, int], inputs: np.ndarray, targets: np.ndarray) -> torch.Tensor:
        self.model.train()
        reproducible.set_key(self.model, key)
        outputs = self.model(torch.from_numpy(inputs.copy()))
        loss = reproducible.cross_entropy(outputs.flatten(0, -2), torch.from_numpy(targets).flatten())
        self.optimizer.zero_grad()
        loss.backward(torch.tensor(LOSS_SCALE))
        for parameter in self.model.parameters():
            parameter.grad = reproducible.multiply(parameter.grad, torch.tensor(1 / LOSS_SCALE))
        self.optimizer.param_groups[0]["lr"] = float(rate)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def outputs(self, key: tuple[int, int], inputs: np.ndarray) -> np.ndarray:
        self.model.eval()
        reproducible.set_key(self.model, key)
        return self.model(torch.from_numpy(inputs.copy())).numpy()

    def weights(self) -> dict[str, np.ndarray]:
        state = self.model.state_dict().items()
        return {name: x.numpy().copy() for name, x in state if not name.endswith("num_batches_tracked")}

    def slots(self) -> list[dict[str, np.ndarray]]:
        named, state = list(self.model.named_parameters()), self.optimizer.state
        return [{name: state[p][buffer].numpy().copy() for name, p in named} for buffer in self.buffers]

    def load(self, step: int, weights: Mapping[str, np.ndarray], slots: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.model.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()}, strict=False)
        for name, p in self.model.named_parameters():
            state = {buffer: torch.from_numpy(slot[name]) for buffer, slot in zip(self.buffers, slots, strict=True)}
            self.optimizer.state[p] = state | {"step": torch.tensor(float(step))}


def main(argv: list[str] | None = None) -> None:
    train_all(__doc__, "torch", TorchTrainer, argv)


if __name__ == "__main__":
    main()
