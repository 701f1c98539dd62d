"""The watch over a model: statistics of all its roundings, by hooks that `close` removes.

Hooks and watched products are not part of compiled programs; each watched quantizer is a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from types import MethodType, NoneType
from typing import Any

import torch
from torch import nn

from qcore import Number
from qcore.arguments import check_flag, check_int, check_type, quoted
from qcore.insight import Record, Site, Statistics
from qcore.report import numbered
from qtorch._classes import change_class, check_model, restore_class
from qtorch._torch_internals import forward_hooks, without_program
from qtorch.insight.tensors import digest_of, lanes_between, packed_between
from qtorch.linalg.operator import observed_by
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer
from qtorch.recipes.layers import RoundedPair, RoundingHook, RoundWeight, multiplies, named_layers, without_wrappers
from qtorch.recipes.modes import Lowering

_WATCHED = "watched"  # the role of the classes of quantizers while they are watched


class Watch:
    """What `watch` returns: a context manager that ends the watch.

    Attributes:
        record: the statistics of all steps that have ended.
        steps: the number of steps that have ended.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), Quantizer("e4m3fn", forward_rounding="nearest"))
        >>> watching = Watch(model, name="tiny")
        >>> y = model(torch.ones(5, 2))
        >>> watching.step()
        >>> watching.close()
        >>> watching.steps, watching.record.model, str(watching.record.sites[0])
        (1, 'tiny', '1:output')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimLP | None = None,
        name: str | None = None,
        digests: bool = False,
        every: int = 1,
    ) -> None:
        model = _checked(model, optimizer)
        self._every = check_int("every", every, 1)
        check_flag("digests", digests)
        self.record = Record(type(model).__name__ if name is None else name)
        self.steps = 0
        self._digests = digests
        self._found: dict[Site, list[Statistics]] = {}
        self._handles: list[Callable[[], None]] = []  # which end the watch
        self._optimizer = optimizer
        names = [(without_wrappers(model, name), parameter) for name, parameter in model.named_parameters()]
        self._names = {parameter: _plain_name(name) for name, parameter in names}
        sites = [(site._replace(path=without_wrappers(model, site.path)), one) for site, one in _quantizers(model)]
        layers = [(path, layer) for path, layer in named_layers(model) if _multiplies(layer)]
        if not (sites or layers or optimizer):
            raise ValueError(f"model has no site: {type(model).__name__} rounds nothing; allowed is a lowered one")
        for site, quantizer in sites:
            self._watch_quantizer(site, quantizer)
        for path, layer in layers:
            self._watch_products(path, layer)
        self._watch_optimizer()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _looks(self) -> bool:
        """True if statistics of this step are wanted."""
        return self.steps % self._every == 0

    def _watch_optimizer(self) -> None:
        if self._optimizer is not None:
            self._optimizer.observer = self._observe_state if self._looks else None

    def close(self) -> None:
        """Ends the watch: roundings after the last `step` are dropped; the record stays."""
        for end in reversed(self._handles):
            end()
        self._handles.clear()
        self._found.clear()
        if self._optimizer is not None:
            self._optimizer.observer = None

    def state_dict(self) -> dict[str, object]:
        """The record and the number of ended steps, as lists, numbers and texts that `torch.save` can keep."""
        return {"steps": self.steps, "record": self.record.to_json()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continues a watch from its `state_dict`.

        Raises:
            ValueError: if it is not the result of `state_dict`, or belongs to the watch of another model.
        """
        if not isinstance(state, Mapping) or set(state) != {"steps", "record"}:
            raise ValueError(f"state={quoted(state)}; allowed is what Watch.state_dict returns")
        steps = check_int("steps", state["steps"], 0)
        record: Any = state["record"]  # checked by Record
        self.record, self.steps = Record.from_json(record, self.record.model), steps
        self._found = {}
        self._watch_optimizer()

    def step(self) -> None:
        """Ends a step: adds all roundings since the last step to the record.

        Raises:
            RuntimeError: if there were no roundings, because the model did not run.
        """
        if self._looks and not self._found:
            raise RuntimeError("nothing was rounded in this step; allowed is a model that runs")
        for site, parts in self._found.items():
            for found in parts:
                self.record.add(self.steps, site, found)
        self._found = {}
        self.steps += 1
        self._watch_optimizer()

    def _observe(self, site: Site, before: torch.Tensor, after: torch.Tensor, number: Number) -> None:
        if self._digests:  # which are not packed
            lanes = torch.cat([lanes_between(before, after, number), digest_of(after)])
            found = Statistics(number.text, lanes)
        else:
            found = packed_between(before, after, number)
        self._found.setdefault(site, []).append(found)

    def _observe_state(
        self, parameter: torch.Tensor, role: str, before: torch.Tensor, after: torch.Tensor, number: Number
    ) -> None:
        name = self._names.get(parameter)  # type: ignore[arg-type]
        if name is None:
            raise ValueError("optimizer has a parameter that is not the model's; allowed is an optimizer of the model")
        self._observe(Site(name, "state", role), before, after, number)

    def _watch_quantizer(self, site: Site, quantizer: Quantizer) -> None:
        forward, backward = quantizer.quantization.forward_number, quantizer.quantization.backward_number
        gradient = Site(site.path, "gradient", site.role)

        @torch.compiler.disable  # a compiled quantizer is then a program of its own
        def see(_: Any, inputs: tuple[Any, ...], y: torch.Tensor) -> None:
            if not (self._handles and self._looks):  # compiled programs call hooks that are removed
                return
            if forward is not None:
                self._observe(site, inputs[0], y, forward)
            if backward is not None and y.grad_fn is not None:
                # The node of the rounding, or of a compiled quantizer: its hook has the gradients before and after.
                y.grad_fn.register_hook(see_gradient)

        def see_gradient(after: tuple[Any, ...], before: tuple[Any, ...]) -> None:
            self._observe(gradient, before[0], next(x for x in after if x is not None), backward)  # type: ignore[arg-type]

        self._handles.append(quantizer.register_forward_hook(see).remove)  # type: ignore[arg-type]
        change_class(quantizer, _WATCHED)
        self._handles.append(partial(restore_class, quantizer, _WATCHED))

    def _watch_products(self, path: str, layer: nn.Module) -> None:
        def observe(
            kind: str, role: str, before: torch.Tensor, after: torch.Tensor, number: Number, place: int = 0
        ) -> None:
            self._observe(Site(numbered(path, place), kind, role), before, after, number)

        own = vars(layer).get("forward")

        @torch.compiler.disable  # gradients have their observer from the forward pass
        def watched(layer: nn.Module, *inputs: Any, **options: Any) -> Any:
            forward = partial(type(layer).forward, layer) if own is None else own
            with observed_by(observe) if self._handles and self._looks else nullcontext():
                return forward(*inputs, **options)

        def restore() -> None:
            del layer.forward
            if own is not None:
                layer.forward = own

        layer.forward = MethodType(watched, layer)  # which copies of the layer have as theirs
        self._handles.append(restore)


def watch(
    model: nn.Module,
    optimizer: OptimLP | None = None,
    name: str | None = None,
    digests: bool = False,
    every: int = 1,
) -> Watch:
    """Collects statistics of all roundings of a model, until the watch is closed.

    The sites are: outputs and gradients of `Quantizer`s and of layers that `qtorch.recipes` lowered, by the modules'
    dotted paths; weights that are rounded; operands and accumulators of products, by the places of a report ("block #1"
    is the second product that "block" computes itself); gradients, accumulators, weights and states in an `OptimLP`, by
    the parameters' names. An accumulator's error is its distance from the exact sum, rounded to float32, which is
    computed beside it.

    A model that is not watched is not slower. A watched model has the same bits. A forward pass that a checkpoint
    repeats is counted again.

    A model may be compiled before the watch or during it. Each site ends a graph, so torch does not accept
    fullgraph=True while a model is watched.

    Args:
        model: the model, or the compiled model.
        optimizer: its optimizer, if the optimizer rounds.
        name: the name of the model in the record; None is the model's class.
        digests: True keeps digests of the bits of all results, for `qcore.insight.compare`.
        every: the record has the steps 0, every, 2 * every, ...; all other steps cost next to nothing.

    Returns:
        A context manager. Call its `step()` at the end of every step; its `record` has the statistics.

    Raises:
        ValueError: if the model rounds nothing.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), Quantizer("e4m3fn", forward_rounding="nearest"))
        >>> with watch(model) as watching:
        ...     y = model(torch.ones(5, 2) * 1e6)
        ...     watching.step()
        >>> watching.record.entries[0].site, watching.record.entries[0].statistics.elements
        (Site(path='1', kind='output', role=''), 10)
    """
    return Watch(model, optimizer, name, digests, every)


def _checked(model: Any, optimizer: Any) -> nn.Module:
    """The model, or the model inside the result of torch.compile."""
    check_model("model", model)
    check_type("optimizer", optimizer, (OptimLP, NoneType), "an OptimLP; leave out one that rounds nothing")
    return without_program(model)


def _multiplies(layer: nn.Module) -> bool:
    """True for modules whose own products have formats."""
    lowering = vars(layer).get("qtorch_lowering")
    return multiplies(layer) or (isinstance(lowering, Lowering) and any(lowering.products.values()))


def _quantizers(model: nn.Module) -> Iterator[tuple[Site, Quantizer]]:
    """The quantizers of a model with the sites of their results."""
    for path, module in model.named_modules():
        hook = getattr(module, "rounding_hook", None)
        if isinstance(hook, RoundingHook):
            yield Site(path, "output"), hook.quantizer
        lowering = vars(module).get("qtorch_lowering")
        if isinstance(lowering, Lowering) and lowering.weight is not None:
            yield Site(path, "weight"), lowering.weight
        for rounding, _ in forward_hooks(module, True):
            if isinstance(rounding, RoundWeight):
                yield Site(path, "weight", "" if rounding.name == "weight" else rounding.name), rounding.quantizer
        if isinstance(module, Quantizer):
            yield _site_of(path, model), module


def _site_of(path: str, model: nn.Module) -> Site:
    """The site of a quantizer that is a module: a layer's weight, the output of a pair, or its own."""
    parts = path.split(".")
    if len(parts) >= 3 and parts[-3] == "parametrizations":
        weight = parts[-2]
        return Site(".".join(parts[:-3]), "weight", "" if weight == "weight" else weight)
    parent = ".".join(parts[:-1])
    inside = isinstance(model.get_submodule(parent), RoundedPair) and path
    return Site(parent if inside else path, "output")


def _plain_name(name: str) -> str:
    """The name of a parameter in the model before its weights were rounded."""
    parts = name.split(".")
    if len(parts) >= 3 and parts[-3] == "parametrizations":
        parts = [*parts[:-3], parts[-2]]
    return ".".join(parts)
