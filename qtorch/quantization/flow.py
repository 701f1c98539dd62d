"""What flows between the layers of a model: a recorded run says what can be fused and where integers can stay.

A recorded run is a list of calls, of layers and of functions between them, and for each tensor the call that gave it
and the calls that took it. A tensor that a call returns as it came (a ReLU in place) stays one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from qtorch._torch_internals import map_tree
from qtorch.quantization.quantization_mappings import get_default_static_quant_module_mappings, is_whole
from qtorch.quantization.tree import is_leaf, walk

# Functions whose result has the scale of their input, for quantized tensors as well.
_KEEPING = {
    *("relu", "relu_", "relu6", "hardtanh", "flatten", "view", "reshape", "permute", "transpose", "squeeze"),
    *("unsqueeze", "max_pool1d", "max_pool2d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d"),
    *("adaptive_avg_pool3d", "dropout"),
}


@dataclass
class Call:
    """One call of a layer, or of a function outside of all layers.

    Attributes:
        path: the layer's name; None for functions.
        module: the layer.
        keeps: True of a function whose result has the scale of its input.
        takes, gives: numbers of the tensors.
    """

    path: str | None
    module: nn.Module | None
    keeps: bool
    takes: list[int]
    gives: list[int] = field(default_factory=list)


class Flow:
    """A recorded run.

    Attributes:
        calls: in order.
        returned: numbers of the tensors that the model returned.
    """

    def __init__(self, calls: list[Call], returned: list[int]) -> None:
        self.calls, self.returned = calls, set(returned)
        self.by_path: dict[str, list[Call]] = {}
        self.takers: dict[int, list[Call]] = {}
        self.givers: dict[int, Call] = {}
        for call in calls:
            if call.path is not None:
                self.by_path.setdefault(call.path, []).append(call)
            for tensor in call.takes:
                self.takers.setdefault(tensor, []).append(call)
            for tensor in call.gives:
                self.givers.setdefault(tensor, call)

    def only_next(self, call: Call) -> Call | None:
        """The layer's call that alone sees what a call returns; what follows a change in place sees the change."""
        if len(call.gives) != 1 or call.gives[0] in call.takes:
            return None
        takers = self.takers.get(call.gives[0], [])
        if not takers or takers[0].path is None:
            return None
        first = takers[0]
        in_place = call.gives[0] in first.gives
        alone = len(takers) == 1 and call.gives[0] not in self.returned
        return first if in_place or alone else None

    def integers(self, takes: Callable[[Call], bool], passes: Callable[[Call], bool]) -> set[int]:
        """The tensors that may be integers: layers in integers give them, and all who take them can.

        Args:
            takes: True of a layer in integers.
            passes: True of what takes and gives both floats and integers.
        """
        suited = {tensor for tensor in self.takers if tensor not in self.returned}
        changed = True
        while changed:  # what passes a tensor on takes integers if its result may be integers
            fit = {
                tensor
                for tensor in suited
                if all(takes(call) or (passes(call) and suited.issuperset(call.gives)) for call in self.takers[tensor])
            }
            changed, suited = fit != suited, fit
        found: set[int] = set()
        for call in self.calls:  # a giver comes before all takers
            if takes(call) or (passes(call) and found.issuperset(call.takes)):
                found |= {tensor for tensor in call.gives if tensor in suited and self.givers[tensor] is call}
        return found


def leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that are one step of a run: layers, and what has no modules in it."""
    known = tuple(get_default_static_quant_module_mappings())

    def whole(path: str, module: nn.Module) -> bool:
        return is_whole(path, module) or isinstance(module, known)

    return ((path, module) for path, module in walk(model, whole) if is_leaf(module) or whole(path, module))


def record(model: nn.Module, run: Callable[[nn.Module], Any]) -> Flow:
    """The flow of a model's first forward pass, in evaluation; a copy runs.

    Args:
        model: stays as it is.
        run: runs the model it gets; it is stopped when the model has run once.

    Raises:
        ValueError: if it does not run the model.
    """
    model = deepcopy(model).eval()
    recorder = _Recorder()
    model.register_forward_pre_hook(recorder.start, prepend=True, with_kwargs=True)
    for path, module in leaves(model):
        recorder.watch(path, module)
    model.register_forward_hook(recorder.stop)
    try:
        with torch.no_grad():
            run(model)
    except _HasRunError:
        return Flow(recorder.calls, recorder.returned)
    finally:
        recorder.leave()
    raise ValueError("calibrate has not run the model; allowed are inputs, and a function that calls the model")


class _HasRunError(BaseException):
    """Ends a run after the model's first forward pass; user's handlers of exceptions let it through."""


class _Recorder(torch.overrides.TorchFunctionMode):
    """Sees the calls of layers by hooks, and those of functions as a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.returned: list[int] = []
        self._numbers: dict[int, int] = {}
        self._tensors: list[torch.Tensor] = []  # kept, so that no id is used again
        self._inside: list[nn.Module] = []
        self._active = False

    def watch(self, path: str, module: nn.Module) -> None:
        """Adds hooks to a layer."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._active:
                if not self._inside:
                    self.calls.append(Call(path, module, False, self._numbered((args, kwargs))))
                self._inside.append(module)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if self._active:
                self._inside.pop()
                if not self._inside:
                    self.calls[-1].gives = self._numbered(output)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def start(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A hook before the model runs."""
        if not self._active:
            self._active = True
            self._numbered((args, kwargs))
            self.__enter__()

    def stop(self, module: nn.Module, args: Any, output: Any) -> None:
        """A hook after the model has run."""
        self.leave()
        self.returned = self._numbered(output)
        raise _HasRunError

    def leave(self) -> None:
        """Sees nothing from now on."""
        if self._active:
            self._active = False
            self.__exit__(None, None, None)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        taken = [] if self._inside else self._numbered((args, kwargs), known=True)
        result = function(*args, **kwargs)
        if taken:
            given = self._numbered(result)
            name = getattr(function, "__name__", "")
            if given or name not in _ABOUT:
                self.calls.append(Call(None, None, name in _KEEPING and len(taken) == len(given) == 1, taken, given))
        return result

    def _numbered(self, tree: Any, known: bool = False) -> list[int]:
        """The numbers of all tensors in a tree; new ones get the next numbers, or with known=True are left out."""
        found: list[int] = []

        def add(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                number = self._numbers.get(id(leaf))
                if number is None and not known:
                    number = self._numbers[id(leaf)] = len(self._tensors)
                    self._tensors.append(leaf)
                if number is not None and number not in found:
                    found.append(number)
            return leaf

        map_tree(add, tree)
        return found


# What reads a tensor's properties, and not its numbers.
_ABOUT = {"__get__", "size", "dim", "ndimension", "numel", "is_floating_point", "is_complex", "stride", "element_size"}
