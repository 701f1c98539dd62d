"""Initial weights from a key."""

from __future__ import annotations

import torch
from torch import nn

from qcore.arguments import check_type
from qcore.random import initial_state

_COUNT = "num_batches_tracked"  # of a norm; it begins with zero
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_NORMS = (*_BATCH_NORMS, *_INSTANCE_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_KNOWN = (nn.Linear, *_CONVOLUTIONS, *_NORMS, nn.Embedding, nn.MultiheadAttention, nn.PReLU)


def initialize(model: nn.Module, key: int | tuple[int, int]) -> None:
    """Gives all parameters and statistics their first numbers: the same as in JAX, by `qcore.random.initial_state`.

    Args:
        model: of linear layers, convolutions, norms, embeddings, PReLU and attention, switched by `convert` or not; it
            is changed in place.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.

    Returns:
        Nothing; the model is changed in place.

    Raises:
        TypeError, ValueError: if model is no module, key is none, or the model has another layer of torch.nn with
            parameters, or another parameter; it is unchanged then.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> initialize(model, 7)
        >>> model.weight.tolist()
        [[0.6677977442741394, -0.1035371869802475]]
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    for name, layer in model.named_modules():
        _check(name, layer)
    state = model.state_dict()
    shapes = {name: x.shape for name, x in state.items() if not name.endswith(_COUNT)}
    tables, slopes = (
        {f"{name}.weight".lstrip(".") for name, layer in model.named_modules() if isinstance(layer, kind)}
        for kind in (nn.Embedding, nn.PReLU)
    )
    found = {name: torch.from_numpy(x) for name, x in initial_state(key, shapes, tables, slopes).items()}
    model.load_state_dict({name: torch.zeros_like(x) for name, x in state.items()} | found)


def _check(name: str, layer: nn.Module) -> None:
    """A layer of torch.nn is known, or has no parameters; what others have, their names say."""
    of_torch = type(layer).__module__.startswith("torch.nn.modules")
    if of_torch and not isinstance(layer, _KNOWN) and next(layer.parameters(recurse=False), None) is not None:
        where = f"layer '{name}'" if name else "the model itself"
        allowed = "linear layers, convolutions, norms, embeddings, PReLU and attention"
        kind = type(layer).__name__
        raise ValueError(f"{where} is a {kind}, whose first numbers are not defined; allowed are {allowed}")
