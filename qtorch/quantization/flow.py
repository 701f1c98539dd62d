"""The data flow between a model's layers: hooks and a function mode record one run of the model.

`qcore.workflow.flow` draws the conclusions; it names tensors by numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from qcore.affine import UINT8, QParams
from qcore.affine.rows import OPERATIONS
from qcore.workflow.flow import Bounds, Call, Flow
from qcore.workflow.settings import Arguments, HasRunError
from qtorch._affine import pools
from qtorch._affine.tensor import QTensor
from qtorch._classes import plain_class
from qtorch._torch_internals import forward_hooks, map_tree, name_of
from qtorch.quantization.computed import held_tensors
from qtorch.quantization.quantization_mappings import get_default_static_quant_module_mappings, keeps_children
from qtorch.quantization.reasons import ROUNDING
from qtorch.quantization.tree import is_leaf, walk

# Functions that read a tensor's properties, not its numbers.
_ABOUT = {"size", "dim", "ndimension", "numel", "is_floating_point", "is_complex", "stride", "element_size"}
# Pools: the means of integers are rounded to the input's scale, so a pool may stand between integer layers.
_MEANS = {name for name in pools.__all__ if OPERATIONS[name[:-2]].rounds}
# Functions whose result has the numbers of several tensors.
_JOINS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack"}
# A power of two near 0: clamps change nothing there, and a number that a function inserts is too large.
_STEP, _ZERO_POINT = 2.0**-10, 96


def leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that are one step of a run: layers, and modules without children except `torch.nn.Identity`."""
    known = tuple(get_default_static_quant_module_mappings())

    def is_known(path: str, module: nn.Module) -> bool:
        return keeps_children(path, module) or isinstance(module, known)

    return (
        (path, module)
        for path, module in walk(model, is_known)
        if (is_leaf(module) or is_known(path, module)) and type(module) is not nn.Identity
    )


def record(
    model: nn.Module, arguments: Any, keep: Callable[[str, nn.Module], Any] = lambda path, layer: False
) -> tuple[Flow, dict[str, torch.Tensor]]:
    """The flow of a model's call, in evaluation, and the inputs of layers by path; a copy runs.

    Args:
        model: stays as it is.
        arguments: those of the call, by place and by name; copies are used.
        keep: true for a layer whose input is in the result, if the input is one tensor.
    """
    model, recorder = deepcopy(model).eval(), _Recorder()
    hooked = [module for module in model.modules() if _has_hooks(module)]
    for path, module in leaves(model):
        recorder.watch(path, module, bool(keep(path, module)))
    for module in hooked:
        recorder.show(module)
    args, kwargs = copied_tensors(arguments)
    with torch.no_grad(), recorder:
        recorder.numbered((args, kwargs))
        result = model(*args, **kwargs)
        recorder.shown += recorder.numbered(result)
    recorder.shown += recorder.numbered(
        [*held_tensors([args, kwargs, result, *map(vars, model.modules())])], known=True
    )
    return Flow(recorder.calls, recorder.shown), recorder.inputs


def _has_hooks(module: nn.Module) -> bool:
    """True of a module with hooks but those of transformers, which show nothing but what the model returns.

    A model has them from its first call on, and a model that never ran must become the same.
    """
    hooks = (hook for before in (True, False) for hook, _ in forward_hooks(module, before))
    return any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in a tree, and in the fields of dataclasses in it, which are leaves for torch."""
    found = list[torch.Tensor]()

    def add(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            map_tree(add, [getattr(leaf, field.name, None) for field in fields(leaf)])
        return leaf

    map_tree(add, tree)
    return found


def copied_tensors(tree: Any) -> Any:
    """Copies of the tensors and objects in a tree, since a model may change its arguments, such as caches."""
    return map_tree(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else deepcopy(leaf), tree)


def with_same_parameters(model: nn.Module) -> nn.Module:
    """A copy of a model in evaluation; only the parameters are the same tensors."""
    return deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).eval()


def results(model: nn.Module, arguments: Arguments) -> list[torch.Tensor]:
    """The tensors that a model returns, with the same random numbers at each call."""
    args, kwargs = copied_tensors(arguments)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return tensors_of(model(*args, **kwargs))


def way(model: nn.Module, arguments: Arguments) -> tuple[str, ...]:
    """The layers that a call of a model runs, and the functions outside of layers, by name."""
    names = _NameListing()
    for path, module in leaves(model):
        names.watch(path, module)
    try:
        with names:
            results(model, arguments)
    finally:
        for handle in names.handles:
            handle.remove()
    return tuple(names.found)


class _NameListing(torch.overrides.TorchFunctionMode):
    """Lists the names of layers, by hooks, and of functions between them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.handles: list[Any] = []
        self._inside = 0

    def watch(self, path: str, module: nn.Module) -> None:
        """Adds hooks to a layer."""

        def before(module: nn.Module, args: Any) -> None:
            self._note(path)
            self._inside += 1

        def after(module: nn.Module, args: Any, output: Any) -> None:
            self._inside -= 1

        self.handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]

    def _note(self, name: str) -> None:
        if not self._inside:
            self.found.append(name)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note(name_of(function))
        return function(*args, **(kwargs or {}))


def stopping(model: nn.Module) -> nn.Module:
    """A copy of a model that ends a run at its first call."""

    def stop(module: nn.Module, args: Any, kwargs: Any) -> None:
        raise HasRunError(copied_tensors((args, kwargs)))

    model = deepcopy(model)
    model.register_forward_pre_hook(stop, prepend=True, with_kwargs=True)
    return model


class _Recorder(torch.overrides.TorchFunctionMode):
    """Records the calls of layers by hooks, and the calls of functions as a function mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.shown: list[int] = []  # what the model returns, stores, or shows to hooks: it stays in floats
        self.inputs: dict[str, torch.Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._tensors: list[torch.Tensor] = []  # the recorder keeps them, so that no id is used again
        self._inside: list[nn.Module] = []

    def watch(self, path: str, module: nn.Module, keep: bool) -> None:
        """Adds hooks to a layer."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._inside.append(module)
            if keep and len(args) == 1 and isinstance(args[0], torch.Tensor) and not kwargs:
                self.inputs.setdefault(path, args[0].clone())
            if len(self._inside) == 1:
                keeps = next(module.parameters(), None) is None and keeps_scale(module.forward, args, kwargs)
                keeps = keeps or plain_class(module) in ROUNDING
                self.calls.append(Call(path, self.numbered((args, kwargs)), [], keeps, _bounds_of_layer(module)))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            self._inside.pop()
            if not self._inside:
                self.calls[-1].gives = self.numbered(output)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def show(self, module: nn.Module) -> None:
        """Notes what hooks of a module see, and what they return, by hooks before and behind them."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.shown += self.numbered((args, kwargs))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            self.shown += self.numbered(output)

        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        for first in (True, False):
            module.register_forward_hook(after, prepend=first)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken = [] if self._inside else self.numbered((args, kwargs), known=True)
        result = function(*args, **kwargs)
        if taken:
            given = self.numbered(result)
            if given or not _only_reads(function):
                keeps = len(taken) == 1 and keeps_scale(function, args, kwargs)
                bounds, joins = _bounds_of_function(function, args, kwargs), name_of(function) in _JOINS
                self.calls.append(Call(None, taken, given, keeps, bounds, joins))
        return result

    def numbered(self, tree: Any, known: bool = False) -> list[int]:
        """The numbers of all tensors in a tree; new ones get the next numbers, or with known=True are left out."""
        found: list[int] = []
        for tensor in tensors_of(tree):
            number = self._numbers.get(id(tensor))
            if number is None and not known:
                number = self._numbers[id(tensor)] = len(self._tensors)
                self._tensors.append(tensor)
            if number is not None and number not in found:
                found.append(number)
        return found


def keeps_scale(function: Any, args: Any, kwargs: Any) -> bool:
    """True if a function, or layer, of one tensor takes a quantized tensor, and its result has the same parameters.

    It is called with integers instead of the tensor: the result must equal its result for their numbers. No table of
    names tells that: `pad` with 0 keeps the parameters, with 0.3 it rounds, and a user's layer is any code.
    """

    def quantized(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        device = "cpu" if leaf.is_meta else leaf.device  # numbers are compared, which meta does not have
        bytes_ = torch.arange(leaf.numel(), device=device).mul(37).remainder(251).to(torch.uint8)
        scale, zero_point = torch.tensor(_STEP), torch.tensor(_ZERO_POINT, dtype=torch.int32)
        made = QTensor(bytes_.reshape(leaf.shape), QParams(scale.to(device), zero_point.to(device)), UINT8)
        tensors.append(made)
        return made

    def dequantized(leaf: Any) -> Any:
        return leaf.dequantize() if isinstance(leaf, QTensor) else leaf

    def of_integers(*args: Any, **kwargs: Any) -> Any:
        if isinstance(getattr(function, "__self__", None), nn.Module):
            return function(*args, **kwargs)
        return QTensor.__torch_function__(function, (QTensor,), args, kwargs)  # methods of torch.Tensor do not ask it

    tensors = list[QTensor]()
    given, settings = map_tree(quantized, (tuple(args), dict(kwargs)))
    if len(tensors) != 1:
        return False
    qparams = tensors[0].qparams
    exact, exact_settings = map_tree(dequantized, (given, settings))
    try:
        results = of_integers(*given, **settings)
        numbers = function(*exact, **exact_settings)
    except Exception:  # a function that does not take integers may raise any error
        return False
    if isinstance(results, QTensor):
        results, numbers = [results], [numbers]
    return (
        isinstance(results, (tuple, list))
        and all(isinstance(one, QTensor) and one.qparams is qparams for one in results)
        and (name_of(function) in _MEANS or all(map(torch.equal, map(QTensor.dequantize, results), numbers)))
    )


def _only_reads(function: Any) -> bool:
    """True for a function or attribute that reads a property of a tensor, and exists for quantized tensors too."""
    name = name_of(function)
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", "")
        return hasattr(QTensor, name)
    return name in _ABOUT and hasattr(QTensor, name)


def _bounds_of_layer(module: nn.Module) -> Bounds:
    """The bounds to which a layer clamps."""
    if isinstance(module, nn.Hardtanh):  # a ReLU6 is one
        return module.min_val, module.max_val
    return (0.0 if isinstance(module, nn.ReLU) else None), None


def _bounds_of_function(function: Any, args: Any, kwargs: Any) -> Bounds:
    """The bounds to which a function clamps, by its name."""
    name = name_of(function).removesuffix("_")
    if name in ("relu", "relu6"):
        return 0.0, 6.0 if name == "relu6" else None
    if name == "hardtanh":
        bounds = {"min_val": -1.0, "max_val": 1.0} | dict(zip(("min_val", "max_val"), args[1:3], strict=False)) | kwargs
        return bounds["min_val"], bounds["max_val"]
    return None, None
