"""Data to measure a model on: pairs of inputs and targets, a batch each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from qcore.arguments import quoted

Batch = tuple[Any, Any]


def check_batches(data: Iterable[Batch]) -> list[Batch]:
    """The batches as a list.

    Raises:
        TypeError: if data is no iterable of pairs.
        ValueError: if there is no batch, or an empty one.
    """
    allowed = "allowed is a list of batches, pairs (inputs, targets)"
    if not isinstance(data, Iterable) or hasattr(data, "dtype"):
        raise TypeError(f"data={quoted(data)} is a {type(data).__name__}; {allowed}")
    batches = list(data)
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(f"data has a {type(batch).__name__}; {allowed}")
        if len(batch[1]) == 0:
            raise ValueError(f"data has a batch without targets; {allowed} with at least one example")
    if not batches:
        raise ValueError(f"data is empty; {allowed}, at least one")
    return [(inputs, targets) for inputs, targets in batches]


def mean_over(batches: Sequence[Batch], step: Callable[[Any, Any], tuple[float, Any]]) -> tuple[float, np.ndarray]:
    """The loss, a mean over all examples, and all outputs, from what `step` makes of inputs and targets.

    Example:
        >>> mean_over([([1, 2], [0, 0]), ([5], [0])], lambda x, y: (sum(x) / len(x), x))
        (2.6666666666666665, array([1., 2., 5.]))
    """
    total, examples, outputs = 0.0, 0, []
    for inputs, targets in batches:
        loss, found = step(inputs, targets)
        total += float(loss) * len(targets)
        examples += len(targets)
        outputs.append(np.asarray(found, np.float64).ravel())
    return total / examples, np.concatenate(outputs)
