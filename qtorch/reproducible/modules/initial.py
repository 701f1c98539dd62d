"""Initial weights from a key."""

from __future__ import annotations

import torch
from torch import nn

from qcore.random import initial_state

_COUNT = "num_batches_tracked"  # of a norm; it begins with zero


def initialize(model: nn.Module, key: int | tuple[int, int]) -> None:
    """Gives all parameters and statistics their first numbers: the same as in JAX, by `qcore.random.initial_state`.

    Args:
        model: of linear layers, convolutions, norms, embeddings and attention, switched by `convert` or not; in place.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.

    Returns:
        Nothing; the model is changed in place.

    Raises:
        TypeError, ValueError: if key is none, or the model has another parameter; it is unchanged then.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> initialize(model, 7)
        >>> model.weight.tolist()
        [[0.6677977442741394, -0.1035371869802475]]
    """
    state = model.state_dict()
    shapes = {name: x.shape for name, x in state.items() if not name.endswith(_COUNT)}
    tables = {f"{name}.weight".lstrip(".") for name, layer in model.named_modules() if isinstance(layer, nn.Embedding)}
    found = {name: torch.from_numpy(x) for name, x in initial_state(key, shapes, tables).items()}
    model.load_state_dict({name: torch.zeros_like(x) for name, x in state.items()} | found)
