"""Twins of converted models: the float model whose weights and results are only rounded, to judge the converted one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

import torch
from torch import nn

from qcore.workflow.front import Noises
from qcore.workflow.settings import Arguments
from qtorch._affine.conversion import quantize
from qtorch._affine.tensor import QTensor
from qtorch._classes import has_role
from qtorch.nn.intrinsic import Fused
from qtorch.nn.quantized.base import Quantized
from qtorch.nn.quantized.quantize import Quantize
from qtorch.nn.quantized.weights import Weight
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization.flow import results, with_same_parameters
from qtorch.quantization.observing import NAME


def noises(model: nn.Module, made: nn.Module, arguments: Arguments) -> Noises:
    """The power of the errors of results, and of layers' results, by path: of the converted model, and of rounding.

    Args:
        model: the float model with the layers of the converted one; it stays as it is.
        made: the converted model.
        arguments: those of a call.
    """
    known = {path for path, _ in model.named_modules()}
    layers = {path: layer for path, layer in made.named_modules() if path in known and _is_converted(layer)}
    judged = [path for path, layer in layers.items() if not isinstance(layer, Quantize)]
    twin = with_same_parameters(model)
    for path, layer in layers.items():
        _round(twin.get_submodule(path), layer)
    expected = defaultdict[str, list[torch.Tensor]](list)
    # Copies: code behind a layer may change its result in place.
    exact = _watched(model, judged, lambda path, y: expected[path].append(y.clone()), arguments)
    found, errors = _errors(made, expected, arguments)
    rounding = _errors(twin, expected, arguments)[1]
    floats = [(x.double(), y.double()) for x, y in zip(exact, found, strict=True) if x.is_floating_point()]
    signal, error = sum(_power(x) for x, _ in floats), sum(_power(y - x) for x, y in floats)
    powers = {path: sum(map(_power, ones)) for path, ones in expected.items()}
    return Noises(signal, error, {path: (power, errors[path], rounding[path]) for path, power in powers.items()})


def _is_converted(layer: nn.Module) -> bool:
    return isinstance(layer, (Quantized, RoundedLayer)) or has_role(layer, "weight")


def _round(layer: Any, made: Any) -> None:
    """Gives a float layer the weight of a converted one, and rounds its results as that does."""
    weight = getattr(made, "rounded_weight", getattr(made, "weight", None))
    inner = layer[0] if isinstance(layer, Fused) else layer
    if isinstance(weight, Weight) and inner._parameters.get("weight") is not None:
        old: Any = inner.weight
        inner.weight = nn.Parameter(weight.numbers().reshape(old.shape).to(old.dtype), requires_grad=False)
    output = made.output if isinstance(made, RoundedLayer) else getattr(made, NAME, None)

    def rounded(layer: nn.Module, inputs: Any, y: torch.Tensor) -> torch.Tensor:
        if isinstance(made, Quantized):
            result: Any = QTensor(quantize(y, made.output, made.form), made.output, made.form)
        else:
            result = y if output is None else output(y)
        return _numbers(result).to(y.dtype)

    layer.register_forward_hook(rounded)


def _numbers(y: Any) -> torch.Tensor:
    return y.dequantize() if isinstance(y, QTensor) else y


def _watched(
    model: nn.Module, paths: Iterable[str], see: Callable[[str, torch.Tensor], Any], arguments: Any
) -> list[torch.Tensor]:
    """The results of a call of a model; it shows the results of layers."""

    def hook(path: str) -> Any:
        return lambda layer, inputs, y: see(path, _numbers(y)) and None

    handles = [model.get_submodule(path).register_forward_hook(hook(path)) for path in paths]
    try:
        return results(model, arguments)
    finally:
        for handle in handles:
            handle.remove()


def _errors(
    model: nn.Module, expected: Mapping[str, list[torch.Tensor]], arguments: Arguments
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """A model's results, and the power of its layers' errors; infinite if there are more or fewer, or others."""
    powers = {path: list[float]() for path in expected}

    def see(path: str, y: torch.Tensor) -> None:
        other = expected[path][min(len(powers[path]), len(expected[path]) - 1)]
        powers[path].append(_power(y.double() - other.double()) if y.shape == other.shape else inf)

    found = _watched(model, expected, see, arguments)
    return found, {path: sum(ones) if len(ones) == len(expected[path]) else inf for path, ones in powers.items()}


def _power(x: torch.Tensor) -> float:
    return float(x.double().square().sum())
