"""Training in PyTorch, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.training_models import torch_models
from benchmarks.training_models.data import LETTERS
from benchmarks.training_models.recipes import recipe_for
from benchmarks.training_models.state import MOMENTUM, ROUNDING, initial, key_for
from benchmarks.training_models.trainings import TRAININGS, Training, is_for_muon
from qtorch import optim, reproducible
from qtorch.reproducible.modules.guard import paused


def make_model(network: str) -> torch.nn.Module:
    """A model with its initial numbers, as torch computes it."""
    kinds = {"mlp": torch_models.MLP, "preresnet20": torch_models.PreResNet20}
    made = torch_models.GPT(LETTERS) if network == "gpt" else kinds[network]()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(torch.from_numpy(initial(name, parameter.numpy())))
    return made


def _paused(part: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A compiled part of a model, which calls what the guard of the model does not know."""

    def function(x: torch.Tensor) -> torch.Tensor:
        with paused():
            return part(x)

    return function


class TorchRun:
    """A run of training.

    Args:
        model, arithmetic: what is trained, and how products are rounded; None is the ordinary float32 of torch.
        compiled: True for `torch.compile`, of a model with blocks these.
    """

    def __init__(self, model: str, arithmetic: str | None, compiled: bool = False) -> None:
        training = TRAININGS[model]
        self.model = make_model(training.network)
        if arithmetic is not None:
            reproducible.convert(self.model, recipe_for(training.network, arithmetic))
        self.optimizers = _optimizers(self.model, training, arithmetic is None)
        self._arithmetic = arithmetic
        self._keyed = any(isinstance(getattr(layer, "key", None), torch.Tensor) for layer in self.model.modules())
        self._loss = self._compiled() if compiled else self._forward

    def _compiled(self) -> Any:
        """The forward pass, compiled as a whole; or its blocks, each kind of which is compiled once for all."""
        blocks = getattr(self.model, "blocks", [])
        for block in blocks:
            if self._arithmetic is not None:
                reproducible.convert(block)  # as what is compiled
            block.forward = _paused(torch.compile(block.forward, fullgraph=True))
        return self._forward if len(blocks) else torch.compile(self._forward, fullgraph=True)

    def _forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(inputs)
        rows = logits.reshape(-1, logits.shape[-1])
        if self._arithmetic is None:
            return torch.nn.functional.cross_entropy(rows, targets.reshape(-1).long()), logits
        return reproducible.cross_entropy(rows, targets.reshape(-1)), logits

    def step(self, step: int, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Trains on a batch."""
        if self._keyed:
            reproducible.set_key(self.model, key_for(ROUNDING, step))
        self.model.zero_grad()
        self.loss, self.logits = self._loss(torch.from_numpy(inputs), torch.from_numpy(targets))
        self.loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters and statistics by name."""
        found = self.model.state_dict().items()
        return {name: x.detach().numpy().copy() for name, x in found if x.is_floating_point()}

    def intermediates(self) -> dict[str, np.ndarray]:
        """What the last step had before it was rounded: the loss, the logits and the gradients."""
        found = {"loss": self.loss.detach().numpy(), "logits": self.logits.detach().numpy()}
        return found | {f"gradient {n}": p.grad.numpy() for n, p in self.model.named_parameters()}  # type: ignore[union-attr]

    def state(self) -> dict[str, np.ndarray]:
        """All that the rest of the run needs."""
        found, states = self.weights(), self._states()
        for name, p in self.model.named_parameters():
            tensors = ((slot, x) for slot, x in states[p].state[p].items() if slot != "step")
            found |= {f"optimizer {slot} {name}": x.numpy().copy() for slot, x in tensors}
        return found

    def _states(self) -> dict[torch.Tensor, torch.optim.Optimizer]:
        """The optimizer of each parameter."""
        return {p: one for one in self.optimizers for group in one.param_groups for p in group["params"]}

    def load(self, step: int, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a state after so many steps."""
        weights = {}
        slots: dict[str, Any] = {name: {"step": torch.tensor(float(step))} for name, _ in self.model.named_parameters()}
        for entry, x in state.items():
            *slot, name = entry.split()
            (slots[name] if slot else weights)[slot[1] if slot else name] = torch.tensor(x)
        self.model.load_state_dict(weights, strict=False)
        states = self._states()
        for name, p in self.model.named_parameters():
            states[p].state[p] = slots[name]


def _optimizers(model: torch.nn.Module, training: Training, is_plain: bool) -> list[torch.optim.Optimizer]:
    """Those of a training; torch's own, without its kind of states, where its step is only timed."""
    library: Any = torch.optim if is_plain else reproducible
    if training.optimizer == "SGD":
        return [library.SGD(model.parameters(), training.rate, momentum=MOMENTUM)]
    if is_plain or training.optimizer == "AdamW":
        return [library.AdamW(model.parameters(), training.rate)]
    if training.optimizer != "Muon":
        return [getattr(optim, training.optimizer)(model.parameters(), training.rate)]
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if is_for_muon(name)]
    others = [p for name, p in named.items() if not is_for_muon(name)]
    return [optim.Muon(matrices, training.rate), reproducible.AdamW(others, TRAININGS["gpt"].rate)]
