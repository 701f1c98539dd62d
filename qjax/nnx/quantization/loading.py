"""Exchange of models between PyTorch and flax, as arrays by the names of a `state_dict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.affine import checkpoint
from qcore.arguments import check_tensors
from qcore.names import shown
from qjax._models import check_model, modules_of, name_of, rebuilt
from qjax.nnx import quantized
from qjax.nnx.activations import PReLU
from qjax.nnx.flattened import flattened, take_matrix
from qjax.nnx.intrinsic import Fused
from qjax.nnx.layouts import flax_layout, mirrored
from qjax.nnx.quantization.loading_integers import (
    INTEGERS,
    Entries,
    arrays_of_integers,
    fill_integers,
    from_integers,
    rounds_results,
    with_rounding,
)
from qjax.nnx.quantization.observing import OBSERVER, FloatFunctional, Observed
from qjax.nnx.quantization.one_call import name_of_settings
from qjax.nnx.quantization.propagation import SettingsOf, settings_of
from qjax.nnx.quantization.quantization_mappings import CELLS, GENERAL, LSTM_GATES, keeps_children, parts_of
from qjax.nnx.quantization.reasons import why_float
from qjax.nnx.quantization.reporting import rounding_of
from qjax.nnx.quantization.training import Trained
from qjax.nnx.rounded import RoundedLayer, ScaledRounding
from qjax.quantization import QConfig, QConfigDynamic


def from_torch(
    model: nnx.Module,
    tensors: Mapping[str, np.ndarray],
    qconfig: SettingsOf[QConfig | QConfigDynamic] | None = None,
) -> nnx.Module:
    """A copy of a model with the arrays of the same model in PyTorch: floats, observers, or integers.

    Modules are found by their dotted names, in which a Sequential's layers are "0", "1", ... as in PyTorch. Kernels are
    transposed, and the two biases of a recurrent cell are added. If `tensors` has integers of a layer, as after
    qtorch's `convert` and `quantize_dynamic`, a layer of `qjax.nnx.quantized` replaces the layer and returns the same
    integers as in PyTorch. If `tensors` has ranges of observers, `model` must be prepared in the same way; a converted
    model takes the integers of a model that was converted in the same way. An `nnx.RNN` corresponds to an LSTM, a GRU
    or an RNN of one layer and direction.

    Args:
        model: the float model, or a prepared or converted one; it is not changed.
        tensors: NumPy arrays by the names of a `state_dict`, for example the result of `safetensors.numpy.load_file`.
        qconfig: the settings of the model in PyTorch, as for `prepare`, or a `QConfigDynamic` for layers of
            `quantize_dynamic`. They give the integers or formats of results and weights. None means quint8 for results,
            and for weights all integers of their dtype, or 4 bits if they are packed two in a byte.

    Returns:
        The model with these arrays.

    Raises:
        ValueError: if an array is missing, has another shape, or belongs to no module.

    Example:
        >>> import numpy as np
        >>> layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> from_torch(layer, {"weight": np.float32([[1, 2]]), "bias": np.float32([3])})(
        ...     jnp.float32([1, 1])
        ... )
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

    made = rebuilt(model, change, keeps_children)
    modules = modules_of(made)
    for path, module in modules.items():
        if isinstance(module, nnx.List):  # which are not rebuilt
            fill(module, entries.of(name_of(path, modules)))
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
    if type(module) in GENERAL:
        flat, linear = flattened(module)
        made = _carried(linear, entries, settings, name)
        if made is linear:
            take_matrix(module, linear)
            return module
        flat.module, flat.layer_name = made, name
        return flat
    made = from_integers(name, module, entries, settings)
    if made is None:
        fill(module, entries)
        if isinstance(settings, QConfig) and not why_float(module) and rounds_results(entries.tensors):
            return with_rounding(module, settings, entries)
        return module
    made.layer_name = name
    if settings is not None and isinstance(made, (quantized.Quantized, RoundedLayer)):
        made.observed_by = rounding_of(settings.activation).name
    return made


def _fill_observer(observer: Any, entries: Entries) -> None:
    """Fills an observer's state; an array may have another shape with the same number of elements."""
    if isinstance(observer, ScaledRounding):
        fill_integers(observer, entries)
        return
    state = checkpoint.restore(observer.state.get_value(), entries.tensors, entries.prefix[:-1])
    entries.used.update(name for name in entries.tensors if name.startswith(entries.prefix))
    observer.load(jax.tree.map(jnp.asarray, state))


def to_torch(model: nnx.Module) -> dict[str, np.ndarray]:
    """The arrays of a model by their names in PyTorch: the inverse of `from_torch`.

    Kernels are transposed, a recurrent cell's bias becomes two, and a batch norm's count of batches is 0. A layer with
    several names gets the first one. Entries of qtorch's observers other than ranges (`eps`) are left out.

    Args:
        model: a float, prepared or converted model.

    Returns:
        NumPy arrays, for `safetensors.numpy.save_file`. A module's own `nnx.Param` has its name, as have other
        variables, which are buffers there (not random states and caches). An `nnx.LinearGeneral` or `nnx.Einsum` has
        the weight of a linear layer.

    Raises:
        ValueError: if an `nnx.LinearGeneral` or `nnx.Einsum` is no linear layer, or a variable has several arrays.

    Example:
        >>> {name: array.shape for name, array in to_torch(nnx.Linear(2, 3, rngs=nnx.Rngs(0))).items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    check_model("model", model)
    modules = modules_of(model)
    inside = [path for path, module in modules.items() if keeps_children(module)]
    arrays = {}
    for path, module in modules.items():
        if any(len(path) > len(outer) and path[: len(outer)] == outer for outer in inside):
            continue
        prefix = name_of(path, modules)
        try:
            found = _arrays_of(module)
        except ValueError as error:
            raise ValueError(f"{shown(prefix)} has no arrays in PyTorch: {error}") from error
        for name, array in found.items():
            arrays[f"{prefix}.{name}" if prefix else name] = np.asarray(array, order="C")  # 0 dimensions stay 0
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
    return arrays_of(flattened(module)[1] if type(module) in GENERAL else module)


def _states(name: str, observer: Any) -> dict[str, Any]:
    if isinstance(observer, ScaledRounding):
        return {f"{name}.scale": np.asarray(observer.scale[...])}
    return checkpoint.flatten({name: jax.tree.map(np.asarray, observer.state.get_value())})[0]


class _Way(NamedTuple):
    """A variable, its name in PyTorch, and the conversions to PyTorch and back."""

    attribute: str
    name: str
    to_flax: Callable[[Any], Any] = jnp.asarray
    to_torch: Callable[[Any], Any] = np.asarray


_KERNEL = [
    _Way("kernel", "weight", flax_layout, lambda kernel: np.moveaxis(np.asarray(kernel), (-1, -2), (0, 1))),
    _Way("bias", "bias"),
]
_TRANSPOSED = [
    _Way(
        "kernel",
        "weight",
        lambda weight: flax_layout(jnp.swapaxes(jnp.asarray(weight), 0, 1), True),
        lambda kernel: np.asarray(mirrored(jnp.moveaxis(jnp.asarray(kernel), (-2, -1), (0, 1)))),
    ),
    _Way("bias", "bias"),
]
_NORM = [_Way("scale", "weight"), _Way("bias", "bias")]
_WAYS: dict[type[nnx.Module], list[_Way]] = {
    nnx.Linear: _KERNEL,
    nnx.Conv: _KERNEL,
    nnx.ConvTranspose: _TRANSPOSED,
    nnx.BatchNorm: [*_NORM, _Way("mean", "running_mean"), _Way("var", "running_var")],
    nnx.LayerNorm: _NORM,
    nnx.RMSNorm: _NORM[:1],
    nnx.GroupNorm: _NORM,
    nnx.InstanceNorm: _NORM,
    PReLU: [_Way("weight", "weight")],
    nnx.Embed: [_Way("embedding", "weight")],
}


def _ways_of(module: nnx.Module) -> list[_Way]:
    ways = next((ways for kind, ways in _WAYS.items() if isinstance(module, kind)), [])
    known = {way.attribute for way in ways}
    own = [name for name, value in vars(module).items() if _is_kept(module, value) and name not in known]
    if several := [name for name in own if not hasattr(getattr(module, name), "ndim")]:
        raise ValueError(f"{several[0]} is a variable of several arrays; allowed are variables of one")
    return [
        *(way for way in ways if getattr(module, way.attribute) is not None),
        *(_Way(name, name) for name in own),
    ]


_PASSING = nnx.RngState, nnx.Cache, nnx.Intermediate, nnx.Perturbation  # variables of a run, which no checkpoint has


def _is_kept(module: nnx.Module, value: Any) -> bool:
    """True of a parameter, and of another variable of a user's module, which PyTorch has as a buffer."""
    kind = type(module)
    if kind not in (nnx.List, nnx.Dict) and kind.__module__.partition(".")[0] in ("flax", "qjax"):
        return isinstance(value, nnx.Param)
    return isinstance(value, nnx.Variable) and not isinstance(value, _PASSING)


def fill(module: Any, entries: Entries) -> None:
    """Fills the variables of a float module."""
    if isinstance(module, Fused):  # PyTorch's is a Sequential, but in training one layer with a part `bn`
        apart = "0.weight" in entries
        fill(module.layer, entries.of("0") if apart else entries)
        if module.bn is not None:
            fill(module.bn, entries.of("1" if apart else "bn"))
    elif isinstance(module, nnx.RNN) and isinstance(module.cell, CELLS):
        _fill_cell(module.cell, entries, "_l0")
    elif isinstance(module, CELLS):
        _fill_cell(module, entries, "")
    for way in _ways_of(module):
        _set(module, way.attribute, way.to_flax(entries.read(way.name, getattr(module, way.attribute).ndim)), way.name)


def arrays_of(module: Any, trained: bool = False) -> dict[str, Any]:
    """The variables of a float module by PyTorch's names, without those of children (except of fused layers and cells).

    `trained` is True if a fused layer is one layer in PyTorch, as in training.
    """
    if isinstance(module, Fused):
        parts = [("" if trained else "0.", module.layer), ("bn." if trained else "1.", module.bn)]
        return {prefix + name: x for prefix, part in parts if part is not None for name, x in arrays_of(part).items()}
    if isinstance(module, nnx.RNN) and isinstance(module.cell, CELLS):
        return {f"{name}_l0": array for name, array in _arrays_of_cell(module.cell).items()}
    if isinstance(module, CELLS):
        return _arrays_of_cell(module)
    arrays = {way.name: way.to_torch(getattr(module, way.attribute)[...]) for way in _ways_of(module)}
    return arrays | ({"num_batches_tracked": np.int64(0)} if isinstance(module, nnx.BatchNorm) else {})


def _set(module: Any, attribute: str, value: Any, name: str) -> None:
    variable = getattr(module, attribute)
    if value.shape != variable.shape:
        raise ValueError(f"{name} becomes {attribute} of shape {value.shape}; allowed is {variable.shape}")
    variable.set_value(value.astype(variable.dtype))


def _fill_cell(cell: Any, entries: Entries, suffix: str) -> None:
    """Fills the weights of a cell, which has one bias: the sum of PyTorch's two."""
    size = cell.hidden_features
    of_input, of_hidden = (flax_layout(entries.read(f"weight_{side}{suffix}", 2)) for side in ("ih", "hh"))
    found = [entries.maybe(f"bias_{side}{suffix}", 1) for side in ("ih", "hh")]
    biases = [np.zeros(of_input.shape[-1], np.float32) if bias is None else bias for bias in found]
    if isinstance(cell, nnx.GRUCell) and biases[1][2 * size :].any():
        raise ValueError(
            f"bias_hh{suffix} is not 0 for the last gate, for which flax's GRUCell has no bias; allowed are zeros "
            "there, or integers, as quantize_dynamic in PyTorch leaves them"
        )
    bias = biases[0] + biases[1]
    if isinstance(cell, nnx.LSTMCell):
        for number, names in enumerate(zip(*LSTM_GATES, strict=True)):
            rows = slice(number * size, (number + 1) * size)
            for name, kernel in zip(names, (of_input, of_hidden), strict=True):
                _set(getattr(cell, name), "kernel", kernel[:, rows], "weight")
            _set(getattr(cell, names[1]), "bias", bias[rows], "bias")
        return
    _set(cell.dense_i, "kernel", of_input, f"weight_ih{suffix}")
    _set(cell.dense_h, "kernel", of_hidden, f"weight_hh{suffix}")
    _set(cell.dense_h if cell.dense_i.bias is None else cell.dense_i, "bias", bias, f"bias_ih{suffix}")


def _arrays_of_cell(cell: Any) -> dict[str, Any]:
    arrays = {}
    for side, (weight, bias) in zip(("ih", "hh"), parts_of(cell).weights, strict=True):
        arrays[f"weight_{side}"] = np.asarray(weight)
        arrays[f"bias_{side}"] = np.zeros(weight.shape[0], np.float32) if bias is None else np.asarray(bias)
    return arrays
