"""The first call of a model that a recipe lowers: a warning if most of its work stays in high precision."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from qcore import Recipe
from qcore.linalg.convolution import geometry_of
from qcore.linalg.geometry import FORWARD
from qcore.linalg.product import Products
from qcore.notices import warn
from qcore.recipes.coverage import shortfall
from qcore.recipes.recipe import LINEAR
from qcore.report import RunReport
from qtorch._torch_internals import constant_result, is_compiled, name_of, traced_calls, traced_program
from qtorch.linalg.native import product_of
from qtorch.recipes.functions import PRODUCTS
from qtorch.recipes.layers import multiplies, named_layers
from qtorch.recipes.listing import listed
from qtorch.recipes.modes import (
    KINDS,
    Listing,
    Lowering,
    ProductMode,
    is_product,
    list_wide,
    listing,
    tensors_in,
)

# The measurement that runs, of one call of one model.
_running: ContextVar[tuple[_FirstCall, ExitStack, Listing] | None] = ContextVar("running", default=None)


def measure_first_call(model: nn.Module, recipe: Recipe) -> None:
    """Makes a model list the products of its first call, and warn if the recipe lowers less than half of them."""
    if multiplies(model):  # a layer is all of its work
        return
    first = _FirstCall(recipe)
    # The handles are kept because one that is unpickled tells torch that its number is taken.
    lowering = vars(model).get("qtorch_lowering")
    if lowering is not None:
        lowering.first_call = first
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
        self.program: Any = None  # that Dynamo traces now, and the model began in

    def begin(self, model: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            self.begin_traced()
        if torch.compiler.is_compiling() or not self.comes or listing.get() is not None:
            return
        self.comes = False
        measurement = ExitStack()
        if any(map(is_compiled, model.modules())):  # whose programs would be traced with the list's hooks
            measurement.enter_context(torch.compiler.set_stance("force_eager"))
        # The model's own hooks run now, and must not change.
        parts = [(name, module) for name, module in named_layers(model) if module is not model]
        _running.set((self, measurement, measurement.enter_context(listed(parts))))

    def end(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            self.end_traced()
        if torch.compiler.is_compiling() or (running := _running.get()) is None or running[0] is not self:
            return
        _running.set(None)
        _, measurement, found = running
        measurement.close()
        if sys.exc_info()[0] is not None:  # the model failed, so that its products are not all there
            self.comes = True
            return
        self.warn(found)

    def begin_traced(self) -> None:
        """The beginning of a call that Dynamo traces, or of a part of it."""
        _begin_traced(self)

    def end_traced(self) -> None:
        _end_traced(self)

    def warn(self, found: Listing) -> None:
        if message := shortfall(self.recipe, RunReport(found.rows)):
            warn(f"{message}. qtorch.recipes.report(model, *inputs) lists all products")


@constant_result  # traced programs are measured when they are traced
def _begin_traced(first: _FirstCall) -> int:
    first.program = traced_program() if first.comes else None
    return 0


@constant_result
def _end_traced(first: _FirstCall) -> int:
    program, first.program = first.program, None
    # A model that is traced in several programs has no list of all its products in one.
    if program is not None and program is traced_program():
        first.comes = False
        first.warn(_traced_products(program))
    return 0


def _traced_products(program: Any) -> Listing:
    """The products of a traced program; places are not known there."""
    found, mode = Listing(), ProductMode(Lowering(""))
    reasons = dict.fromkeys(KINDS, "no entry of the recipe is for it")
    for function, args, kwargs, y in traced_calls(program):
        name = function if isinstance(function, str) else name_of(function)
        if function is torch.ops.qtorch.product:
            first, second, *_, other, _, geometry, which, text = args
            if which == FORWARD:
                terms = (
                    geometry_of(geometry)
                    .contraction(which, tuple(first.shape), tuple(second.shape), tuple(other))
                    .terms
                )
                products = Products(product_of(text), product_of(text), product_of(text))
                found.add("", LINEAR, (first.shape, second.shape), y.numel() * terms, products)
        elif name in PRODUCTS and is_product(tensors_in((*args, *kwargs.values()))):
            list_wide(found, mode, "", name, mode.kinds_of(name, args), args, kwargs, y, reasons)
    return found
