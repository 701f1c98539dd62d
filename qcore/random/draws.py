"""Random numbers and orders that depend on a key alone: initial weights, and the order of examples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod, sqrt
from zlib import crc32

import numpy as np

from qcore.arguments import check_int, check_seed, quoted
from qcore.random.threefry import as_lane, element_words, fold_in

_UNIFORM_BITS = 24


def random_bits(key: int | tuple[int, int], shape: Sequence[int]) -> np.ndarray:
    """The random words of an array's elements, as `jax.random.bits` makes them.

    Args:
        key: an int from 0 to 2^64 - 1, or two 32-bit words.
        shape: the array's shape.

    Returns:
        A uint32 array.

    Example:
        >>> random_bits(7, (2,)).tolist()
        [2895194379, 4185947648]
    """
    shape = tuple(check_int("shape", size, 0) for size in shape)
    words = [np.full(1, as_lane(word), np.int32) for word in (*check_seed(key), 0, 0)]  # arrays wrap silently
    found = element_words(
        lambda size: np.arange(size, dtype=np.int32),
        shape or (1,),
        (words[0], words[1]),
        (words[2], words[3]),
        prod(shape) >= 2**31,
    )
    return found.view(np.uint32).reshape(shape)


def uniform(key: int | tuple[int, int], shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """low + u * (high - low) in float64, rounded once to float32; u is an element's leading 24 random bits times 2^-24.

    Args:
        key, shape: as for `random_bits`.
        low, high: the range.

    Returns:
        A float32 array.

    Example:
        >>> uniform(7, (2,), -1, 1).tolist()
        [0.3481799364089966, 0.9492337703704834]
    """
    leading = (random_bits(key, shape) >> np.uint32(32 - _UNIFORM_BITS)).astype(np.float64)
    return (low + leading * 2.0**-_UNIFORM_BITS * (high - low)).astype(np.float32)


def permutation(key: int | tuple[int, int], count: int) -> np.ndarray:
    """The numbers 0 to count - 1 in the order of their random words; equal words keep the order of the numbers.

    Args:
        key: as for `random_bits`.
        count: the number of integers.

    Returns:
        An int64 array of shape (count,).

    Example:
        >>> permutation(7, 5).tolist()
        [2, 3, 0, 4, 1]
    """
    return np.argsort(random_bits(key, (check_int("count", count, 0),)), kind="stable")


_CONSTANT = {"running_mean": 0.0, "running_var": 1.0, "in_proj_bias": 0.0}
_ALLOWED = "weight", "bias", "in_proj_weight", *_CONSTANT


def initial_state(
    key: int | tuple[int, int],
    shapes: Mapping[str, Sequence[int]],
    embeddings: Collection[str] = (),
    slopes: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """An initial state_dict, whose numbers depend on the key and on their names and shapes alone.

    Weights and biases of linear layers and convolutions are uniform from -1 / sqrt(n) to 1 / sqrt(n) for n inputs, as
    in torch.nn. Embeddings are uniform with deviation 1. Norms have weights of one and biases of zero, running means
    are zero and running variances one. Each array has a key of its own: `fold_in(key, crc32(name))`.

    Args:
        key: as for `random_bits`.
        shapes: names, as in torch's `state_dict`, and shapes; outputs first.
        embeddings: the names of the tables of embeddings.
        slopes: the names of the slopes of PReLU, which begin with 0.25.

    Returns:
        Float32 arrays by name.

    Raises:
        TypeError, ValueError: if an argument is not as above, or a name has another ending.

    Example:
        >>> {name: x.tolist() for name, x in initial_state(7, {"weight": (1, 2), "bias": (1,)}).items()}
        {'weight': [[0.6677977442741394, -0.1035371869802475]], 'bias': [0.25609883666038513]}
    """
    found = {name: _initial(key, name, shapes, name in embeddings) for name in shapes if name not in slopes}
    return {name: np.full(shapes[name], 0.25, np.float32) if name in slopes else found[name] for name in shapes}


def _initial(
    key: int | tuple[int, int], name: str, shapes: Mapping[str, Sequence[int]], is_embedding: bool
) -> np.ndarray:
    # A bias has the bound of its weight, whose axes after the first are its inputs. Weights of one axis belong to
    # norms.
    prefix, dot, last = name.rpartition(".")
    shape = tuple(shapes[name])
    if last not in _ALLOWED:
        raise ValueError(f"shapes has {quoted(name)}; names end with one of {', '.join(_ALLOWED)}")
    weight = shapes.get(f"{prefix}{dot}weight", ()) if last == "bias" else shape
    if last in _CONSTANT or len(weight) < 2:
        return np.full(shape, _CONSTANT.get(last, float(last == "weight")), np.float32)
    bound = sqrt(3) if is_embedding else 1 / sqrt(prod(weight[1:]))  # uniform from -sqrt(3) on has deviation 1
    return uniform(fold_in(key, crc32(name.encode())), shape, -bound, bound)
