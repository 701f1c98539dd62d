"""Numbers as training makes them: the tensors of a small convolutional network after a few steps on real scans."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

_SEED = 20_261_120
_STEPS = 20
_BATCH = 64


def training_tensors() -> dict[str, np.ndarray]:
    """Trains on scikit-learn's handwritten digits (8 x 8 pixels) and returns what the last step saw.

    Returns:
        Arrays of float32 by name: pixels, weights, activations, and the gradients and momenta that belong to them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return _train()


def _train() -> dict[str, np.ndarray]:
    pixels, digits = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels.astype(np.float32)).view(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(digits)
    layers = nn.ModuleDict({"conv1": nn.Conv2d(1, 8, 3, padding=1), "conv2": nn.Conv2d(8, 16, 3, stride=2, padding=1)})
    layers["linear"] = nn.Linear(256, 10)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    activations: dict[str, torch.Tensor] = {}
    for step in range(_STEPS):
        batch = slice(step * _BATCH, (step + 1) * _BATCH)
        activations = _activations(layers, images[batch])
        optimizer.zero_grad()
        nn.functional.cross_entropy(activations["linear"], labels[batch]).backward()
        optimizer.step()
    momenta = {f"{name} momentum": optimizer.state[p]["momentum_buffer"] for name, p in layers.named_parameters()}
    seen = {**activations, **dict(layers.named_parameters())}
    gradients = {f"{name} gradient": tensor.grad for name, tensor in seen.items() if tensor.grad is not None}
    return {name: tensor.detach().numpy().copy() for name, tensor in {**seen, **gradients, **momenta}.items()}


def _activations(layers: nn.ModuleDict, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    hidden1 = torch.relu(layers["conv1"](pixels))
    hidden2 = torch.relu(layers["conv2"](hidden1))
    outputs = {"conv1": hidden1, "conv2": hidden2, "linear": layers["linear"](hidden2.flatten(1))}
    for output in outputs.values():
        output.retain_grad()
    return {"pixels": pixels, **outputs}
