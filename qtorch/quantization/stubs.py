"""Modules that mark where a model's numbers are quantized, and where they are dequantized."""

from __future__ import annotations

from typing import Any

import torch

from qcore.arguments import check_flag
from qtorch._affine.qconfig import QConfig, QConfigDynamic
from qtorch._classes import check_model
from qtorch.quantization.tree import children, is_leaf


class QuantStub(torch.nn.Module):
    """Marks where a float tensor becomes a quantized one: `convert` puts `Quantize` in its place.

    Before that it returns its input, which is observed.

    Args:
        qconfig: its settings; None means those of the model.

    Example:
        >>> QuantStub()(torch.tensor([0.3]))
        tensor([0.3000])
    """

    def __init__(self, qconfig: QConfig | QConfigDynamic | None = None) -> None:
        super().__init__()
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class DeQuantStub(QuantStub):
    """Marks where a quantized tensor becomes a float one: `convert` puts `DeQuantize` in its place.

    Args:
        qconfig: as for `QuantStub`; with settings of None it stays as it is.

    Example:
        >>> DeQuantStub()(torch.tensor([0.3]))
        tensor([0.3000])
    """


class QuantWrapper(torch.nn.Module):
    """A module between a `QuantStub` and a `DeQuantStub`, so that it takes and returns floats when it is converted.

    Attributes that it does not have are those of the module: `wrapper.weight`.

    Args:
        module: the wrapped module; its qconfig becomes that of all three.
        quant, dequant: whether there is a `QuantStub`, and a `DeQuantStub`.

    Example:
        >>> QuantWrapper(torch.nn.Linear(2, 3))(torch.zeros(1, 2)).shape
        torch.Size([1, 3])
    """

    def __init__(self, module: torch.nn.Module, quant: bool = True, dequant: bool = True) -> None:
        super().__init__()
        check_model("module", module)
        check_flag("quant", quant)
        check_flag("dequant", dequant)
        qconfig = getattr(module, "qconfig", None)
        if qconfig is not None:
            self.qconfig = qconfig
        self.quant = QuantStub(qconfig) if quant else torch.nn.Identity()
        self.dequant = DeQuantStub(qconfig) if dequant else torch.nn.Identity()
        self.module = module
        self.train(module.training)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("module", "qconfig"):
                raise
            return getattr(self.module, name)

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        """The module's result; of its arguments the first, or the one named `input`, is quantized."""
        if args:
            args = self.quant(args[0]), *args[1:]
        elif kwargs:
            name = "input" if "input" in kwargs else next(iter(kwargs))
            kwargs = kwargs | {name: self.quant(kwargs[name])}
        return self.dequant(self.module(*args, **kwargs))


def add_quant_dequant(module: torch.nn.Module) -> torch.nn.Module:
    """Wraps every layer that has a qconfig into a `QuantWrapper`.

    Args:
        module: changed in place, unless it is such a layer itself.

    Returns:
        module, or its wrapper.

    Example:
        >>> from qtorch.quantization import default_qconfig, propagate_qconfig_
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        >>> model.qconfig = default_qconfig
        >>> propagate_qconfig_(model)
        >>> [name for name, _ in add_quant_dequant(model)[0].named_children()]
        ['quant', 'dequant', 'module']
    """
    check_model("module", module)
    if isinstance(module, QuantWrapper):
        return module
    if is_leaf(module) and getattr(module, "qconfig", None) is not None:
        return QuantWrapper(module)
    wrapped: dict[int, torch.nn.Module] = {}
    for name, child in children(module):
        setattr(module, name, wrapped.setdefault(id(child), add_quant_dequant(child)))
    return module
