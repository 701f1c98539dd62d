"""Weights, statistics, observers and integers of PyTorch's models in models of flax, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.affine import checkpoint
from qjax._models.tree import check_model, rebuilt, shown
from qjax.nnx import quantized
from qjax.nnx.rounded import RoundedLayer, ScaledRounding
from qjax.nnx.workflow.carrying.entries import Entries, check_tensors
from qjax.nnx.workflow.carrying.floats import fill
from qjax.nnx.workflow.carrying.integers import INTEGERS, fill_integers, from_integers
from qjax.nnx.workflow.carrying.rounded import rounds_results, with_rounding
from qjax.nnx.workflow.layers import is_whole, why_float
from qjax.nnx.workflow.observing import FloatFunctional, Observed
from qjax.nnx.workflow.steps.conversion import observer_name
from qjax.nnx.workflow.steps.dynamic import name_of_settings
from qjax.nnx.workflow.steps.settings import settings_of
from qjax.nnx.workflow.steps.training import Trained
from qjax.quantization import QConfig, QConfigDynamic

OBSERVER = "activation_post_process"


def from_torch(model: nnx.Module, tensors: Mapping[str, Any], qconfig: Any = None) -> nnx.Module:
    """A copy of a model with the arrays of the same model in PyTorch: floats, observers, or integers.

    Modules are found by their dotted names, in which a Sequential's places are "0", "1", ... as in PyTorch. Kernels are
    transposed, and the two biases of a recurrent cell added. Where `tensors` has integers, as qtorch's `convert` and
    `quantize_dynamic` leave them, the layer becomes that of `qjax.nnx.quantized`, and gives the integers that it gives
    in PyTorch. Where it has the ranges of an observer, `model` must be prepared in the same way; a model that is
    converted takes the integers of one that was converted in the same way. An `nnx.RNN` is an LSTM, a GRU or an RNN of
    one layer and direction.

    Args:
        model: the float model, or a prepared or converted one; it stays as it is.
        tensors: NumPy arrays by the names of a `state_dict`, say what `safetensors.numpy.load_file` returns.
        qconfig: the settings that the model had in PyTorch, as for `prepare`, or a `QConfigDynamic` for layers of
            `quantize_dynamic`; they say which integers results and weights are, or to which formats they are rounded.
            None for quint8, and for weights of all integers of their dtype, or of 4 bits where two are in a byte.

    Returns:
        The model with these arrays.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an array is missing, has another shape, or is of no module.

    Example:
        >>> import numpy as np
        >>> layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> from_torch(layer, {"weight": np.float32([[1, 2]]), "bias": np.float32([3])})(jnp.float32([1, 1]))
        Array([6.], dtype=float32)
    """
    check_model("model", model)
    check_tensors(tensors)
    entries = Entries(tensors)
    settings = {} if qconfig is None else settings_of(model, qconfig, QConfig, QConfigDynamic)

    def change(name: str, module: nnx.Module) -> nnx.Module:
        try:
            wanted = settings.get(name_of_settings(name, module, settings))
            return _carried(module, entries.of(name), wanted, name)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{shown(name)}: {error}") from error

    made = rebuilt(model, change, is_whole)
    entries.check_all_used()
    return made


def _carried(module: nnx.Module, entries: Entries, settings: Any, name: str) -> nnx.Module:
    if isinstance(module, INTEGERS):
        fill_integers(module, entries)
        return module
    if isinstance(module, Observed):
        fill(module.module, entries)
        _fill_observer(module.activation_post_process, entries.of(OBSERVER))
        if isinstance(module, Trained):
            _fill_observer(module.weight_fake_quant, entries.of("weight_fake_quant"))
        return module
    if isinstance(module, FloatFunctional) and module.activation_post_process is not None:
        _fill_observer(module.activation_post_process, entries.of(OBSERVER))
        return module
    made = from_integers(name, module, entries, settings)
    if made is None:
        fill(module, entries)
        if isinstance(settings, QConfig) and not why_float(module) and rounds_results(entries.tensors):
            return with_rounding(module, settings, entries)
        return module
    made.layer_name = name
    if settings is not None and isinstance(made, (quantized.Quantized, RoundedLayer)):
        made.observed_by = observer_name(settings.activation)
    return made


def _fill_observer(observer: Any, entries: Entries) -> None:
    """An observer's state; its arrays may have other shapes of as many elements."""
    if isinstance(observer, ScaledRounding):
        fill_integers(observer, entries)
        return
    state = checkpoint.restore(observer.state.get_value(), entries.tensors, entries.prefix[:-1])
    entries.used.update(name for name in entries.tensors if name.startswith(entries.prefix))
    observer.load(jax.tree.map(jnp.asarray, state))
