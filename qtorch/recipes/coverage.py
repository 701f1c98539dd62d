"""The first call of a model that a recipe lowers: a warning if most of its work stays wide."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from qcore import Recipe
from qcore.notices import warn
from qcore.recipes.coverage import shortfall
from qcore.report import RunReport
from qtorch.recipes.layers import multiplies, named_layers
from qtorch.recipes.listing import listed
from qtorch.recipes.modes import Listing, listing

# The measurement that runs, of one call of one model.
_running: ContextVar[tuple[_FirstCall, AbstractContextManager[Listing], Listing] | None] = ContextVar(
    "running", default=None
)


def measure_first_call(model: nn.Module, recipe: Recipe) -> None:
    """Makes a model list the products of its first call, and warn if the recipe lowers less than half of them."""
    if multiplies(model):  # a layer is all of its work
        return
    first = _FirstCall(recipe)
    # The handles are kept because one that is unpickled tells torch that its number is taken.
    first.handles = (
        model.register_forward_pre_hook(first.begin, prepend=True),
        model.register_forward_hook(first.end, always_call=True),
    )


class _FirstCall:
    """The hooks of a model around its first call.

    They stay: a program that torch.compile has made would be compiled again for a model without them.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.comes = recipe, True
        self.handles: Any = ()

    def begin(self, model: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or not self.comes or listing.get() is not None:
            return
        self.comes = False
        # The model's own hooks run now, and must not change.
        measurement = listed([(name, module) for name, module in named_layers(model) if module is not model])
        _running.set((self, measurement, measurement.__enter__()))

    def end(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or (running := _running.get()) is None or running[0] is not self:
            return
        _running.set(None)
        _, measurement, found = running
        measurement.__exit__(None, None, None)
        if sys.exc_info()[0] is not None:  # the model failed, so that its products are not all there
            self.comes = True
            return
        if message := shortfall(self.recipe, RunReport(found.rows)):
            warn(f"{message}. qtorch.recipes.report(model, *inputs) lists all products")
