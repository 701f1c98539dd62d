"""Initial weights of a model, by the names and shapes of its parameters in PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod, sqrt
from zlib import crc32

import numpy as np

from qcore.arguments import quoted
from qcore.random.draws import uniform
from qcore.random.keys import fold_in

_CONSTANT = {"running_mean": 0.0, "running_var": 1.0, "in_proj_bias": 0.0}
_ALLOWED = "weight", "bias", "in_proj_weight", *_CONSTANT


def initial_state(
    key: int | tuple[int, int],
    shapes: Mapping[str, Sequence[int]],
    embeddings: Collection[str] = (),
    slopes: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """A state_dict to begin with, whose numbers depend on the key, their names and shapes alone.

    Weights and biases of linear layers and convolutions are uniform from -1 / sqrt(n) to 1 / sqrt(n) for n inputs, as
    in torch.nn; embeddings are uniform of deviation 1. Norms begin with weights of one and biases of zero, running
    statistics with zero and one. Each array has a key of its own: `fold_in(key, crc32(name))`.

    Args:
        key: as for `random_bits`.
        shapes: names, as in torch's `state_dict`, and shapes; outputs first.
        embeddings: the names of the tables of embeddings.
        slopes: the names of the slopes of PReLU, which begin with 0.25.

    Returns:
        Float32 arrays by name.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a name is of another layer's.

    Example:
        >>> {name: x.tolist() for name, x in initial_state(7, {"weight": (1, 2), "bias": (1,)}).items()}
        {'weight': [[0.6677977442741394, -0.1035371869802475]], 'bias': [0.25609883666038513]}
    """
    found = {name: _initial(key, name, shapes, name in embeddings) for name in shapes if name not in slopes}
    return {name: np.full(shapes[name], 0.25, np.float32) if name in slopes else found[name] for name in shapes}


def _initial(
    key: int | tuple[int, int], name: str, shapes: Mapping[str, Sequence[int]], is_embedding: bool
) -> np.ndarray:
    prefix, dot, last = name.rpartition(".")
    shape = tuple(shapes[name])
    if last not in _ALLOWED:
        raise ValueError(f"shapes has {quoted(name)}; names end with one of {', '.join(_ALLOWED)}")
    weight = shapes.get(f"{prefix}{dot}weight", ()) if last == "bias" else shape
    if last in _CONSTANT or len(weight) < 2:
        return np.full(shape, _CONSTANT.get(last, float(last == "weight")), np.float32)
    bound = sqrt(3) if is_embedding else 1 / sqrt(prod(weight[1:]))
    return uniform(fold_in(key, crc32(name.encode())), shape, -bound, bound)
