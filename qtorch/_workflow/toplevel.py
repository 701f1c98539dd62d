"""The whole workflow in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from qtorch._workflow.steps.conversion import convert
from qtorch._workflow.steps.preparation import prepare, prepare_qat
from qtorch._workflow.tree import copied

__all__ = ["default_eval_fn", "quantize", "quantize_qat"]


def quantize(
    model: nn.Module,
    run_fn: Callable[..., Any],
    run_args: Iterable[Any],
    mapping: Mapping[Any, Any] | None = None,
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
    model = copied(model, inplace)
    model.eval()
    model = prepare(model, inplace=True)
    run_fn(model, *run_args)
    return convert(model, mapping, inplace)


def quantize_qat(
    model: nn.Module, run_fn: Callable[..., Any], run_args: Iterable[Any], inplace: bool = False
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
    model = copied(model, inplace)
    model.train()
    model = prepare_qat(model, inplace=inplace)
    run_fn(model, *run_args)
    return convert(model.eval(), None, inplace)


def default_eval_fn(model: nn.Module, calib_data: Iterable[tuple[Any, Any]]) -> None:
    """Runs a model on the first of each pair: a run_fn for `quantize`.

    Args:
        model: any module.
        calib_data: pairs of inputs and targets.

    Example:
        >>> import torch
        >>> default_eval_fn(nn.Linear(2, 2), [(torch.zeros(1, 2), None)])
    """
    for data, _ in calib_data:
        model(data)
