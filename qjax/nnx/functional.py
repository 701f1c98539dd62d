"""Functions of arrays and of quantized arrays, for models that are converted."""

from __future__ import annotations

from typing import Any

import jax

from qjax.quantization import QTensor


def relu(x: Any) -> Any:
    """max(x, 0) of an array or of a QTensor, so that a model keeps its text when it is converted.

    Args:
        x: array or QTensor.

    Example:
        >>> import jax.numpy as jnp
        >>> relu(jnp.float32([-1, 2]))
        Array([0., 2.], dtype=float32)
    """
    return x.relu() if isinstance(x, QTensor) else jax.nn.relu(x)
