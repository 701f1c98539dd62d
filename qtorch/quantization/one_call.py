"""The whole workflow in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from qcore.arguments import check_type, quoted
from qcore.workflow.settings import check_effects, dynamic_entries
from qtorch._affine.qconfig import QConfig, QConfigDynamic, default_dynamic_qconfig, float16_dynamic_qconfig
from qtorch._classes import plain_class
from qtorch.quantization.conversion import Conversion, convert, finished
from qtorch.quantization.preparation import prepare, prepare_qat
from qtorch.quantization.propagation import propagate_qconfig_
from qtorch.quantization.quantization_mappings import get_default_dynamic_quant_module_mappings
from qtorch.quantization.tree import LayerType, NameOrType, check_classes, copied

_BY_DTYPE = {torch.qint8: default_dynamic_qconfig, torch.float16: float16_dynamic_qconfig}


def quantize(
    model: nn.Module,
    run_fn: Callable[..., object],
    run_args: Iterable[object],
    mapping: Mapping[LayerType, type[nn.Module]] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """The model prepared, calibrated and converted: quantization after training.

    Args:
        model: the float model, with a `qconfig`; it is quantized in evaluation.
        run_fn: run_fn(model, *run_args) runs the prepared model on calibration data.
        run_args: the other arguments of run_fn.
        mapping: as for `convert`.
        inplace: whether model itself is changed.

    Returns:
        The converted model.

    Raises:
        TypeError, ValueError: as `prepare` and `convert` do.

    Example:
        >>> import torch
        >>> from qtorch.quantization import QuantWrapper, default_qconfig
        >>> model = QuantWrapper(nn.Linear(2, 2))
        >>> model.qconfig = default_qconfig
        >>> type(quantize(model, lambda model, x: model(x), [torch.randn(8, 2)]).module)
        <class 'qtorch.nn.quantized.linear.Linear'>
    """
    check_type("run_fn", run_fn, Callable, "a function of the model")
    _check_arguments(run_args)
    model = copied(model, inplace)
    model.eval()
    model = prepare(model, inplace=True)
    run_fn(model, *run_args)
    return convert(model, mapping, inplace)


def quantize_qat(
    model: nn.Module, run_fn: Callable[..., object], run_args: Iterable[object], inplace: bool = False
) -> nn.Module:
    """The model prepared, trained with simulated quantization, and converted.

    Args:
        model: the float model, with a `qconfig`; it is trained in training mode and converted in evaluation.
        run_fn: run_fn(model, *run_args) trains the prepared model.
        run_args: the other arguments of run_fn.
        inplace: whether model itself is changed.

    Returns:
        The converted model.

    Raises:
        TypeError, ValueError: as `prepare_qat` and `convert` do.

    Example:
        >>> import torch
        >>> from qtorch.quantization import QuantWrapper, default_qat_qconfig
        >>> model = QuantWrapper(nn.Linear(2, 2))
        >>> model.qconfig = default_qat_qconfig
        >>> type(quantize_qat(model, lambda model, x: model(x), [torch.randn(8, 2)]).module)
        <class 'qtorch.nn.quantized.linear.Linear'>
    """
    check_type("run_fn", run_fn, Callable, "a function of the model")
    _check_arguments(run_args)
    model = copied(model, inplace)
    model.train()
    model = prepare_qat(model, inplace=inplace)
    run_fn(model, *run_args)
    return convert(model.eval(), None, inplace)


def quantize_dynamic(
    model: nn.Module,
    qconfig_spec: Mapping[NameOrType, QConfig | QConfigDynamic | None] | Iterable[str | type[nn.Module]] | None = None,
    dtype: torch.dtype = torch.qint8,
    mapping: Mapping[LayerType, type[nn.Module]] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """A copy of a model whose layers have quantized weights, and quantize their input by its own range.

    Args:
        model: the float model.
        qconfig_spec: settings by name or type of modules, or a set of names and types; an entry holds for the modules
            inside as well. None for all types in the mapping except `torch.nn.Embedding`.
        dtype: torch.qint8 or torch.float16; it chooses the settings that qconfig_spec does not give.
        mapping: types of float layers to classes with `from_float(module)`; None for the default.
        inplace: whether model itself is changed.

    Returns:
        The converted model, in evaluation.

    Raises:
        ValueError: if an entry of qconfig_spec quantizes nothing, or inplace=True and the model itself is such a layer.

    Example:
        >>> type(quantize_dynamic(nn.Linear(2, 2)))
        <class 'qtorch.nn.quantized.dynamic.product.Linear'>
    """
    classes = get_default_dynamic_quant_module_mappings() if mapping is None else mapping
    check_classes("mapping", classes)
    if not isinstance(dtype, torch.dtype) or dtype not in _BY_DTYPE:
        raise ValueError(f"dtype={quoted(dtype)}; allowed are {', '.join(map(str, _BY_DTYPE))}")
    model = copied(model, inplace)
    model.eval()
    settings = _BY_DTYPE[dtype]
    if qconfig_spec is None:
        present = {plain_class(module) for module in model.modules()}
        entries: Mapping[Any, Any] = {
            kind: settings for kind in classes if kind in present and kind is not nn.Embedding
        }
        if not entries:
            raise ValueError(f"model has no layer that is quantized dynamically; {_allowed(classes)}")
    else:
        entries = dynamic_entries(qconfig_spec, settings)
    propagate_qconfig_(model, entries)
    modules = list(model.named_modules(remove_duplicate=False))
    done = [path for path, layer in modules if plain_class(layer) in classes and layer.qconfig is not None]
    check_effects(entries, modules, plain_class, nn, done, f"layer that is quantized dynamically; {_allowed(classes)}")
    return finished(Conversion(classes, {}).changed(model, {}), model if inplace else None)


def _check_arguments(run_args: Any) -> None:
    if not isinstance(run_args, Iterable) or isinstance(run_args, (str, torch.Tensor)):
        raise TypeError(f"run_args is a {type(run_args).__name__}; allowed is a list of the other arguments of run_fn")


def _allowed(mapping: Mapping[Any, Any]) -> str:
    names = ", ".join(kind.__name__ for kind in mapping)
    return f"allowed are exactly {names}, or a mapping that has more"


def default_eval_fn(model: nn.Module, calib_data: Iterable[Sequence[object]]) -> None:
    """Runs a model on the first element of each pair; a run_fn for `quantize`.

    Args:
        model: any module.
        calib_data: pairs of inputs and targets.

    Returns:
        Nothing; observers in the model have seen the inputs.

    Raises:
        TypeError: if model is not callable, or calib_data has an element that is not a pair.

    Example:
        >>> import torch
        >>> default_eval_fn(nn.Linear(2, 2), [(torch.zeros(1, 2), None)])
    """
    check_type("model", model, Callable, "a torch.nn.Module")
    if not isinstance(calib_data, Iterable):
        raise TypeError(f"calib_data is a {type(calib_data).__name__}; allowed are pairs of inputs and targets")
    for pair in calib_data:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"calib_data has a {type(pair).__name__}; allowed are pairs of inputs and targets")
        model(pair[0])
