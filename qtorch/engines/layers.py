"""Layers around attention as an engine computes them: norms, sums, rotary embeddings, routers and heads."""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qcore.engines.engine import HALVES, PAIRS, ROUNDED, Engine
from qcore.engines.layers import rms_norm
from qcore.formats.number import Number
from qtorch._classes import change_class, plain_class, restore_class
from qtorch._rounding.dispatch import quantize
from qtorch.engines.tensors import Attending
from qtorch.reproducible.modules.guard import run_unguarded

_ROLE = "engine"
_HOOKS = "qtorch_engine_hooks"
# Functions of torch between layers whose results a program in 16 bits would round; and those that write into a tensor.
_SUMS = {getattr(room, name) for room in (torch, torch.Tensor) for name in ("add", "sub")}
_SUMS |= {torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__sub__}
_PRODUCTS = {getattr(room, name) for room in (torch, torch.Tensor) for name in ("mul", "pow", "tanh")}
_PRODUCTS |= {torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.Tensor.__pow__}
_WRITING = {torch.Tensor.index_add_, torch.Tensor.__iadd__, torch.Tensor.__imul__, torch.Tensor.add_}
_LINEAR = {torch.nn.functional.linear}
# Layers of torch whose own code adds and multiplies.
_WIDE = nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer


class _State(threading.local):
    """Whether an inner layer's function runs: torch's modes are per thread, and Dynamo traces no ContextVar."""

    def __init__(self) -> None:
        self.inside = False


_STATE = _State()


class _Instead(torch.autograd.Function):
    """(what a layer computes, its numbers by the engine) -> these numbers, with the gradient of the layer."""

    generate_vmap_rule = True

    @staticmethod
    def forward(computed: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, None


class _Between(TorchFunctionMode):
    """Rounds what torch's functions return while a layer's own code runs; of nested layers the innermost does.

    Args:
        formats: a format for each function.
        operands: functions whose operands are rounded instead, and not their results.
    """

    def __init__(self, formats: dict[Any, Number], operands: dict[Any, Number]) -> None:
        super().__init__()
        self.formats, self.operands = formats, operands

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        number = self.formats.get(func)
        if _STATE.inside or (number is None and func not in self.operands):
            with _taken():
                return func(*args, **kwargs)
        with _taken():
            if number is None:
                return func(*(_quantized(x, self.operands[func]) for x in args), **kwargs)
            found = func(*args, **kwargs)
            if func not in _WRITING:
                return _quantized(found, number)
            with torch.no_grad():
                found.copy_(_quantized(found, number))
            return found


@contextmanager
def _taken() -> Iterator[None]:
    before, _STATE.inside = _STATE.inside, True
    try:
        yield
    finally:
        _STATE.inside = before


def _quantized(x: Any, number: Number | None) -> Any:
    """A floating tensor in a format; anything else, and a format of None, unchanged."""
    if number is None or not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    return run_unguarded(partial(quantize, number=number), x)


def _entering(base: type) -> dict[str, Any]:
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        before, _STATE.inside = _STATE.inside, False
        try:
            with _Between(*self.qtorch_between):
                return base.forward(self, *arguments, **options)
        finally:
            _STATE.inside = before

    return {"forward": forward}


def realize(model: nn.Module, engine: Engine) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Makes the layers around attention compute as an engine says, in place, instead of another engine before.

    Returns:
        The classes of the layers that compute each field, and what of some fields is not computed.
    """
    _restore(model)
    realizing = _Realizing(model, engine)
    for name, layer in list(model.named_modules()):
        realizing.visit(name, layer)
    return realizing.kinds, realizing.undefined


def _restore(model: nn.Module) -> None:
    for layer in model.modules():
        for handle in vars(layer).pop(_HOOKS, ()):
            handle.remove()
        vars(layer).pop("qtorch_rope", None)
        if vars(layer).pop("qtorch_between", None) is not None:
            restore_class(layer, _ROLE)


class _Realizing:
    """The layers of a model that were taken so far."""

    def __init__(self, model: Any, engine: Engine) -> None:
        self.model, self.engine = model, engine
        self.kinds: dict[str, list[str]] = {}
        self.undefined: dict[str, str] = {}
        self.head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None

    def count(self, layer: nn.Module, *names: str) -> None:
        for name in names:
            self.kinds.setdefault(name, []).append(plain_class(layer).__name__)

    def visit(self, name: str, layer: nn.Module) -> None:
        """Gives one layer what the engine says of it."""
        engine, kind = self.engine, plain_class(layer).__name__
        if layer is self.head:
            self.hook(layer, _rounding(engine.head), "head")
        elif kind.endswith("RMSNorm"):
            self.visit_norm(name, layer)
        elif isinstance(layer, nn.LayerNorm):
            if engine.norm is not None:
                self.undefined["norm"] = f"{name} is a LayerNorm, whose result alone is rounded"
            self.hook(layer, _rounding(engine.activations), "activations")
        elif kind.endswith("RotaryEmbedding"):
            self.between(layer, {})
            self.hook(layer, _rounding(engine.tables), "tables")
        elif kind.endswith("Router"):
            self.between(layer, dict.fromkeys(_LINEAR, engine.router))
            if engine.router is not None:
                self.count(layer, "router")
        elif isinstance(layer, _WIDE):
            if engine.activations is not None:
                self.undefined["activations"] = f"{name} is a {kind}, whose own sums and products are not rounded"
        elif isinstance(layer, nn.Linear | nn.Embedding) or kind == "Conv1D" or self.is_function(layer):
            self.hook(layer, _rounding(engine.activations), "activations")
        elif layer is not self.model and not plain_class(layer).__module__.startswith(("torch.", "qtorch.")):
            self.visit_code(layer, kind)
        if hasattr(layer, "embed_scale") and engine.activations is not None:
            self.undefined["activations"] = f"{name}.embed_scale stays a float32 number"

    @staticmethod
    def is_function(layer: nn.Module) -> bool:
        """True of activation functions of torch and transformers."""
        return plain_class(layer).__module__ in ("torch.nn.modules.activation", "transformers.activations")

    def visit_norm(self, name: str, layer: nn.Module) -> None:
        if self.engine.norm is None:
            self.hook(layer, _rounding(self.engine.activations), "activations")
            return
        offset = _weight_offset(layer)
        if offset is None:
            self.undefined["norm"] = f"{name} is a {plain_class(layer).__name__} with a law of its own"
            return
        self.between(layer, {})
        self.hook(layer, partial(_normed, self.engine, offset), "norm", "root")

    def visit_code(self, layer: Any, kind: str) -> None:
        """Layers whose own code adds and multiplies."""
        engine, operands = self.engine, {}
        if engine.rope is not None and kind.endswith("Attention") and "rotate_half" in _names_of(layer):
            layer.qtorch_rope = _rotary_layout(layer)
            if layer.qtorch_rope is None:
                self.undefined["rope"] = f"{kind} does not turn halves or pairs of all numbers of a head"
            else:
                self.count(layer, "rope")
        if engine.activations is None:
            return
        formats = dict.fromkeys(_SUMS | _PRODUCTS | _WRITING | _LINEAR, engine.activations)
        if kind.endswith("Attention") and engine.tables is None:
            formats = {func: number for func, number in formats.items() if func not in _PRODUCTS}
        elif kind.endswith(("DecoderLayer", "Block")) and hasattr(layer, "mlp"):
            self.count(layer, "residual")
            if engine.residual != ROUNDED:
                operands = dict.fromkeys(_SUMS, engine.activations)
                formats = {func: number for func, number in formats.items() if func not in _SUMS}
        self.between(layer, formats, operands)
        self.count(layer, "activations")

    def between(self, layer: Any, formats: dict[Any, Any], operands: dict[Any, Any] | None = None) -> None:
        found = {func: one for func, one in formats.items() if one is not None}
        if not found and not operands and self.engine.activations is None:
            return  # nothing is rounded in or around it; and Dynamo does not trace what is entered
        layer.qtorch_between = found, operands or {}
        change_class(layer, _ROLE, _entering)

    def hook(self, layer: nn.Module, hook: Callable[..., Any] | None, *names: str) -> None:
        if hook is None:
            return
        vars(layer).setdefault(_HOOKS, []).append(layer.register_forward_hook(hook))
        self.count(layer, *names)


def _names_of(layer: nn.Module) -> dict[str, Any]:
    """What the file of a layer's class defines."""
    return vars(sys.modules[plain_class(layer).__module__])


def _rotary_layout(layer: Any) -> str | None:
    """Which numbers of a head a layer of transformers turns together, by a probe; None if it does not, or otherwise."""
    rotate = _names_of(layer).get("rotate_half")
    rope = getattr(getattr(layer, "config", None), "rope_parameters", None) or {}
    if rotate is None or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return None
    found = tuple(rotate(torch.arange(1.0, 5.0)).tolist())
    return {(-3, -4, 1, 2): HALVES, (-2, 1, -4, 3): PAIRS}.get(found)


def _rounding(number: Number | None) -> Callable[..., Any] | None:
    return None if number is None else partial(_rounded_output, number)


def _rounded_output(number: Number, layer: nn.Module, arguments: Any, output: Any) -> Any:
    if isinstance(output, tuple):  # of tables
        return tuple(_quantized(x, number) for x in output)
    return _quantized(output, number)


def _weight_offset(layer: Any) -> float | None:
    """What an RMS norm adds to its weight, 0 or 1, found by a probe; None for another law."""
    weight = getattr(layer, "weight", None)
    if weight is None or weight.dim() != 1:
        return None
    with torch.no_grad():
        found = layer(torch.full_like(weight, 1000.0))  # beside which eps is nothing
    near = (offset for offset in (0.0, 1.0) if torch.allclose(found, weight + offset, rtol=1e-4, atol=1e-4))
    return next(near, None)


def _normed(engine: Engine, offset: float, layer: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
    eps = layer.variance_epsilon if hasattr(layer, "variance_epsilon") else layer.eps
    eps = torch.finfo(torch.float32).eps if eps is None else eps

    def law(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        weight = weight + offset if offset else weight
        return Attending.one_nan(rms_norm(Attending, x, weight, eps, engine))

    with torch.no_grad():
        numbers = run_unguarded(law, arguments[0].detach(), layer.weight.detach())
    return run_unguarded(_Instead.apply, output, numbers)
