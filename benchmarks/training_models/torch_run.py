"""Training in PyTorch, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.training_models import torch_models
from benchmarks.training_models.data import LETTERS
from benchmarks.training_models.recipes import recipe_for
from benchmarks.training_models.state import MOMENTUM, RATE, ROUNDING, initial, key_for
from qtorch import reproducible
from qtorch.reproducible.modules.guard import paused

_SLOTS = {"mlp": ("momentum_buffer",), "preresnet20": ("momentum_buffer",), "gpt": ("exp_avg", "exp_avg_sq")}


def make_model(model: str) -> torch.nn.Module:
    """A model with its initial numbers, as torch computes it."""
    kinds = {"mlp": torch_models.MLP, "preresnet20": torch_models.PreResNet20}
    made = torch_models.GPT(LETTERS) if model == "gpt" else kinds[model]()
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
        self.name, self.model = model, make_model(model)
        library: Any = torch.optim if arithmetic is None else reproducible
        if arithmetic is not None:
            reproducible.convert(self.model, recipe_for(model, arithmetic))
        parameters = self.model.parameters()
        if model == "gpt":
            self.optimizer = library.AdamW(parameters, RATE[model])
        else:
            self.optimizer = library.SGD(parameters, RATE[model], momentum=MOMENTUM)
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
        self.optimizer.zero_grad()
        self.loss, self.logits = self._loss(torch.from_numpy(inputs), torch.from_numpy(targets))
        self.loss.backward()
        self.optimizer.step()

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
        found = self.weights()
        for name, p in self.model.named_parameters():
            for number, slot in enumerate(_SLOTS[self.name]):
                found[f"optimizer {number} {name}"] = self.optimizer.state[p][slot].numpy().copy()
        return found

    def load(self, step: int, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a state after so many steps."""
        weights = {name: torch.tensor(x) for name, x in state.items() if not name.startswith("optimizer")}
        self.model.load_state_dict(weights, strict=False)
        for name, p in self.model.named_parameters():
            slots = enumerate(_SLOTS[self.name])
            self.optimizer.state[p] = {slot: torch.tensor(state[f"optimizer {i} {name}"]) for i, slot in slots}
            if self.name == "gpt":
                self.optimizer.state[p]["step"] = torch.tensor(float(step))
