"""The products of a run, listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qcore.recipes.recipe import CONV, LINEAR
from qcore.report import RunReport
from qtorch._classes import check_model
from qtorch._torch_internals import name_of
from qtorch.linalg.modules import products_of
from qtorch.recipes.functions import OPENED, PRODUCTS
from qtorch.recipes.layers import multiplies, named_layers
from qtorch.recipes.modes import (
    KINDS,
    Listing,
    Lowering,
    ProductMode,
    is_product,
    list_operator,
    list_wide,
    listing,
    tensors_in,
)


def report(model: nn.Module, *inputs: object, **options: object) -> RunReport:
    """Runs a model once, and lists every product of the run: its place, its formats, and its part of the work.

    It lists the products of torch's functions that multiply, and of layers of `qtorch.linalg`. The model runs in its
    current mode and without gradients; a compiled model runs without its programs.

    Args:
        model: any module, lowered or not.
        inputs, options: the arguments of the model.

    Returns:
        One row for each forward product, in order. `print` shows a table.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> [(row.path, row.multiply_adds, row.reason) for row in report(model, torch.ones(5, 2))]
        [('0', 30, 'the model is not lowered'), ('2', 15, 'the model is not lowered')]
    """
    check_model("model", model)
    names = named_layers(model)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), listed(names) as found:
        model(*inputs, **options)
    return RunReport(found.rows, found.functions)


@contextmanager
def listed(modules: list[tuple[str, nn.Module]]) -> Iterator[Listing]:
    """Lists all products of modules, given with their names, that run within."""
    lowerings = [(vars(module).get("qtorch_lowering"), name) for name, module in modules]
    paths = {id(lowering): name for lowering, name in lowerings if lowering is not None}
    found = Listing(paths)
    is_lowered = any(multiplies(module) or "qtorch_lowering" in vars(module) for _, module in modules)
    wide = _Wide(found, "no rule or entry is for it" if is_lowered else "the model is not lowered")
    handles = []
    for name, module in modules:
        handles.append(module.register_forward_pre_hook(wide.entering(name), prepend=True))
        handles.append(module.register_forward_hook(wide.leaving(name), always_call=True))
    token = listing.set(found)
    try:
        with wide:
            yield found
    finally:
        listing.reset(token)
        for handle in handles:
            handle.remove()


class _Wide(ProductMode):
    """Lists the products that no module's own mode computes, as functions that stay in high precision."""

    def __init__(self, found: Listing, reason: str) -> None:
        super().__init__(Lowering(""))
        self.found, self.reason = found, reason
        self.paths = [""]

    def entering(self, name: str) -> Any:
        def enter(module: nn.Module, inputs: Any) -> None:
            self.paths.append(name)

        return enter

    def leaving(self, name: str) -> Any:
        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            self.paths.pop()
            if multiplies(module) and isinstance(output, torch.Tensor):
                self.list_layer(name, module, inputs[0], output)

        return leave

    def list_layer(self, name: str, layer: Any, input: torch.Tensor, output: torch.Tensor) -> None:
        """Lists the product of a layer of `qtorch.linalg`."""
        kind = LINEAR if isinstance(layer, nn.Linear) else CONV
        work = output.numel() * layer.weight[0].numel()
        self.found.add(name, kind, (input.shape, layer.weight.shape), work, products_of(layer))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        name = name_of(func)
        if name in OPENED:
            return super().__torch_function__(func, types, args, kwargs)
        y = func(*args, **kwargs)
        list_operator(self.found, self.paths[-1], func, args)
        tensors = tensors_in((*args, *kwargs.values()))
        if name in PRODUCTS and is_product(tensors):
            found = self.kinds_of(name, args)
            reasons: dict[str, str] = dict.fromkeys(KINDS, self.reason)
            list_wide(self.found, self, self.paths[-1], name, found, args, kwargs, y, reasons)
        return y
