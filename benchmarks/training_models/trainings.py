"""What `benchmarks.same_training` trains: networks with optimizers, by name."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.training_models.recipes import ARITHMETIC


class Training(NamedTuple):
    """A network and its optimizer.

    Attributes:
        network: a key of `benchmarks.training_models.sizes.BATCH`.
        optimizer: a class of `qtorch.reproducible` or `qtorch.optim`.
        rate: the learning rate.
        arithmetic: how products are rounded, where the command does not say.
    """

    network: str
    optimizer: str
    rate: float
    arithmetic: tuple[str, ...] = ARITHMETIC


TRAININGS = {
    "mlp": Training("mlp", "SGD", 0.1),
    "preresnet20": Training("preresnet20", "SGD", 0.1),
    "gpt": Training("gpt", "AdamW", 1e-3),
    "gpt_adamw8bit": Training("gpt", "AdamW8bit", 1e-3, ("float32",)),
    "gpt_flashadamw": Training("gpt", "FlashAdamW", 1e-3, ("float32",)),
    "gpt_muon": Training("gpt", "Muon", 1e-2, ("float32",)),
}


def is_for_muon(name: str) -> bool:
    """True for the matrices of the language model's blocks; other parameters have AdamW."""
    return name.startswith("blocks.") and name.endswith("weight") and "norm" not in name
