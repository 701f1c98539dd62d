"""Models of flax as arrays by PyTorch's names."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from qcore.affine import checkpoint
from qjax._models.tree import check_model, modules_of, name_of
from qjax.nnx.rounded import ScaledRounding
from qjax.nnx.workflow.carrying.floats import arrays_of
from qjax.nnx.workflow.carrying.integers import INTEGERS, arrays_of_integers
from qjax.nnx.workflow.carrying.loading import OBSERVER
from qjax.nnx.workflow.layers import is_whole
from qjax.nnx.workflow.observing import FloatFunctional, Observed
from qjax.nnx.workflow.steps.training import Trained


def to_torch(model: nnx.Module) -> dict[str, np.ndarray]:
    """The arrays of a model by the names that the same model has in PyTorch: the inverse of `from_torch`.

    Kernels are transposed, a recurrent cell's bias becomes two, and a batch norm's count of batches is 0. The names of
    a layer with several are its first. What qtorch's observers have beside ranges (`eps`) is left out.

    Args:
        model: a float model, or one that is prepared or converted.

    Returns:
        NumPy arrays, as `safetensors.numpy.save_file` takes them.

    Raises:
        TypeError: if model is no module.

    Example:
        >>> {name: array.shape for name, array in to_torch(nnx.Linear(2, 3, rngs=nnx.Rngs(0))).items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    check_model("model", model)
    modules = modules_of(model)
    inside = [path for path, module in modules.items() if is_whole(module)]
    arrays = {}
    for path, module in modules.items():
        if any(len(path) > len(outer) and path[: len(outer)] == outer for outer in inside):
            continue
        prefix = name_of(path, modules)
        for name, array in _arrays_of(module).items():
            arrays[f"{prefix}.{name}" if prefix else name] = np.ascontiguousarray(array)
    return arrays


def _arrays_of(module: Any) -> dict[str, Any]:
    if isinstance(module, INTEGERS):
        return arrays_of_integers(module)
    if isinstance(module, Observed):
        trained = isinstance(module, Trained)
        arrays = arrays_of(module.module, trained) | _states(OBSERVER, module.activation_post_process)
        return arrays | (_states("weight_fake_quant", module.weight_fake_quant) if trained else {})
    if isinstance(module, FloatFunctional) and module.activation_post_process is not None:
        return _states(OBSERVER, module.activation_post_process)
    return arrays_of(module)


def _states(name: str, observer: Any) -> dict[str, Any]:
    if isinstance(observer, ScaledRounding):
        return {f"{name}.scale": np.asarray(observer.scale[...])}
    return checkpoint.flatten({name: jax.tree.map(np.asarray, observer.state.get_value())})[0]
