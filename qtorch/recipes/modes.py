"""Modules whose own products are lowered: a mode around their methods finds torch's functions that multiply.

Such a module gets a new class, whose methods enter the mode. The innermost mode computes a product: the mode of the
module that multiplies.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from qcore.arguments import quoted
from qcore.formats.block import BlockNumber
from qcore.linalg.convolution import WeightLayout, weight_layout
from qcore.linalg.product import Products
from qcore.notices import frames, warn
from qcore.recipes.recipe import CONV, LINEAR, MATMUL, OUTPUT, SCORES
from qcore.report import FunctionReport, ProductReport, short_product, with_own_gradients
from qtorch import linalg
from qtorch._states import apply_but_states, keep_states
from qtorch._torch_internals import (
    COLLECTIVES,
    base_of,
    constant_result,
    function_of,
    hidden_products,
    is_checkpoint,
    map_tree,
    name_of,
    operator_of,
    own_parameters,
    show_to_modes,
    traced_part,
    unseen_by_modes,
)
from qtorch.arithmetic.composed import Tensors
from qtorch.linalg.call import call_in_float32, refuse_tracers
from qtorch.linalg.modules import reset_states
from qtorch.linalg.operator import OBSERVER, observed_by
from qtorch.quant import Quantizer
from qtorch.recipes.elementwise import CALLS, HOLDING
from qtorch.recipes.functions import (
    BODIES,
    LOOPS,
    OPENED,
    PRODUCTS,
    SPARSE_SUMS,
    UnknownCallError,
    left_work,
    stored_part,
    why_left,
    why_refused,
)

LOWERED = "lowered"  # the role of the made classes
KINDS: tuple[str, ...] = (LINEAR, CONV, SCORES, OUTPUT, MATMUL)
_CONVOLUTIONS = {1: linalg.conv1d, 2: linalg.conv2d, 3: linalg.conv3d}
_GROUPS = 6  # the place of a convolution's groups among its arguments
_TORCHS = frozenset(("", "aten", "prims", "prim", "higher_order", "qtorch", "c10d", COLLECTIVES, "profiler"))
_SOME_FUNCTION = "the torch.autograd.Function around it"


@dataclass
class Lowering:
    """The formats of the products that a module computes itself.

    Attributes:
        path: the module's dotted name.
        products: the products by kind; None leaves a kind in high precision.
        reasons: the reasons by kind why products stay in high precision.
        weight: the quantizer of the weights that are multiplied, before a recipe's products round them; or None.
        states: for each own weight the name of the buffer with the state of its delayed scales.
        warned: the functions with a warning so far.
        first_call: what measures the first call of a whole model in a trace; None for its parts.
        functions: the formats of the steps of functions, by kind.
    """

    path: str
    products: Mapping[str, Products | None] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    weight: Quantizer | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    first_call: Any = None
    functions: Mapping[str, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arguments = {kind: None if one is None else product_arguments(one) for kind, one in self.products.items()}


def product_arguments(products: Products) -> dict[str, Any]:
    """Products as keyword arguments of `linalg.linear` and of the convolutions."""
    return {
        "operands": products.forward.operands,
        "accumulator": products.forward.accumulator,
        "grad_input": products.grad_a,
        "grad_weight": products.grad_b,
    }


@dataclass
class Listing:
    """The products of a run, in order, while `report` runs a model; and the modules' paths in this model."""

    paths: dict[int, str] = field(default_factory=dict)  # by the `id` of a `Lowering`
    rows: list[ProductReport] = field(default_factory=list)
    functions: list[FunctionReport] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def path_of(self, lowering: Lowering) -> str:
        """The path of a module, which may have been lowered as a part of another model."""
        return self.paths.get(id(lowering), lowering.path)

    def add(self, path: str, kind: str, shapes: Any, work: int | None, products: Any = None, reason: str = "") -> None:
        number = self.counts[path] = self.counts.get(path, -1) + 1
        sizes = tuple(tuple(map(int, shape)) for shape in shapes)
        self.rows.append(ProductReport(path, number, kind, sizes, work, products, reason))


listing: ContextVar[Listing | None] = ContextVar("listing", default=None)


class ProductMode(TorchFunctionMode):
    """Computes torch's products with the formats of a `Lowering`, while a method of a module runs.

    It keeps torch's own `__enter__` and `__exit__`: without them `torch.compile` does not break graphs within a mode.
    """

    def __init__(
        self,
        lowering: Lowering,
        names: Sequence[str] = (),
        weights: Sequence[Any] = (),
        states: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.lowering, self.states = lowering, states or {}
        # The module's own weights, and tensors computed from weights alone under the name of the first of these.
        self.names, self.weights = list(names), list(weights)
        self.computed: list[str] = []  # the module's parametrized weights, each access of which is another tensor
        self.heads: list[str] = []  # the kinds of the next two products of an attention layer
        self.rounded = 0  # how many weights were rounded
        self.calls = 0  # of functions with lowered products
        self.places: dict[Any, int] = {}  # the numbers of their products, by the call, the kind and the weight
        self.has_gradients = torch.is_grad_enabled()
        self.part = traced_part() if torch.compiler.is_dynamo_compiling() else ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        name = name_of(func)
        if self.lowering.functions:
            found = self.by_steps(name, args, kwargs)
            if found is not None:
                return found
        if name in PRODUCTS:
            return self.multiply(name, func, args, kwargs)
        if name in OPENED:
            self.heads = [OUTPUT, SCORES]
            with self:
                return OPENED[name](*args, **kwargs)
        if name == "unflatten":  # torch.compile cannot trace Tensor.unflatten in a mode
            return torch.unflatten(*args, **kwargs)
        if name in BODIES:
            mode = self.lowering, self.names, self.weights, self.states
            args = tuple([partial(_in_mode, x, *mode) if callable(x) else x for x in args])
        if name in LOOPS:
            _warn_once(self.lowering, name, "the products of its functions cannot be lowered, but those of modules are")
        y = func(*args, **kwargs)
        # In compiled programs x.T is not a function; `is_weight` finds the weight behind such a view.
        if name != "__get__":
            self.note(args, y)
        return y

    def note(self, args: Any, y: Any) -> None:
        """Keeps a result that is computed from weights alone, which then counts as a weight.

        Not inside a torch.autograd.Function, where gradients are off: torch.compile cannot keep tensors from in there.
        """
        if len(args) == 0 or not isinstance(y, torch.Tensor) or (name := self.name_of(args[0])) is None:
            return
        if torch.is_grad_enabled() is not self.has_gradients:
            return
        if all(self.is_weight(x) for x in args[1:] if isinstance(x, torch.Tensor)):
            self.names.append(name)
            self.weights.append(y)

    def is_weight(self, x: Any) -> bool:
        """True if a tensor is a parameter, or was computed from parameters only."""
        return self.name_of(x) is not None

    def name_of(self, x: Any) -> str | None:
        """The module's name of a weight, "" for a weight of another module, None for all other tensors."""
        for one in (x, base_of(x) if isinstance(x, torch.Tensor) else None):
            for name, weight in zip(self.names, self.weights, strict=True):
                if weight is one:
                    return name
            if type(one) is nn.Parameter:
                return ""
        return None

    def multiply(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function that multiplies."""
        part = self.part_of_function()
        if part == "backward":
            return func(*args, **kwargs)
        if name == "einsum" and len(args) == 2 and isinstance(args[1], list | tuple):
            args = (args[0], *args[1])
        tensors = tensors_in((*args, *kwargs.values()))
        if not is_product(tensors):
            y = func(*args, **kwargs)
            self.note(args, y)
            return y
        first = tensors[0]
        if self.lowering.weight is not None:
            self.refuse_checkpoint(name)
            args, kwargs = self.with_rounded_weights(name, args, kwargs)
            if not self.lowering.products:
                return func(*args, **kwargs)
            tensors = tensors_in((*args, *kwargs.values()))
        found = self.kinds_of(name, args)
        # A product that matches a recipe but cannot be lowered stays in high precision, with a warning.
        reason = ""
        if any(self.lowering.arguments[kind] is not None for kind in found):
            reason = why_left(name, kwargs) or why_refused(tensors)
            if not reason:
                self.refuse_checkpoint(name)
                of_products: Any = PRODUCTS[name].law
                names = [self.name_of(x) for x in tensors]
                own = self.own_function(name, part)

                def law(*args: Any, **kwargs: Any) -> Any:
                    given = tensors_in((*args, *kwargs.values()))  # which may be copies in float32
                    return of_products(_RoundingMultiplier(self, found, given, names, own), *args, **kwargs)

                try:
                    with unseen_by_modes():
                        return call_in_float32(law, first, args, kwargs)
                except UnknownCallError as error:
                    reason = str(error)
            _warn_once(self.lowering, name, reason)
        with unseen_by_modes():
            y = func(*args, **kwargs)
        if not torch.compiler.is_dynamo_compiling() and (lists := listing.get()) is not None:
            why = {kind: reason or self.lowering.reasons.get(kind, "") for kind in KINDS}
            list_wide(lists, self, lists.path_of(self.lowering), name, found, args, kwargs, y, why)
        self.note(args, y)
        return y

    def by_steps(self, name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
        """The result of a function whose steps have formats; None for all others, with a warning where it should."""
        if self.part_of_function() == "backward":
            return None
        kind = CALLS[name].kind if name in CALLS else ""
        steps = self.lowering.functions.get(kind)
        if steps is None:
            for inner in HOLDING.get(name, ()):
                if inner in self.lowering.functions:
                    self.list_function(name, inner, args, "", f"it is inside of {name}, which is one function of torch")
            return None
        self.refuse_checkpoint(name)
        try:
            found: torch.Tensor = CALLS[name].function(steps, *args, **kwargs)
        except UnknownCallError as error:
            self.list_function(name, kind, args, "", str(error))
            return None
        self.list_function(name, kind, args, steps.steps.text, "")
        return found

    def list_function(self, name: str, kind: str, args: Any, arithmetic: str, reason: str) -> None:
        """Lists a call of a function while a run is listed; warns once of one that stays in high precision."""
        if reason:
            _warn_once(self.lowering, name if name == kind else f"{kind} of {name}", reason)
        if not torch.compiler.is_dynamo_compiling() and (lists := listing.get()) is not None:
            shape = tuple(args[0].shape) if args else ()
            lists.functions.append(FunctionReport(lists.path_of(self.lowering), kind, shape, arithmetic, reason))

    def refuse_checkpoint(self, name: str) -> None:
        """Raises if a checkpoint runs a function that is neither a module nor a method of a module.

        The checkpoint's backward pass runs the function again without this mode: torch raises, or gradients are wrong.
        """
        if torch.compiler.is_dynamo_compiling() or not self.has_gradients:
            return
        if any(map(is_checkpoint, _frames_within())):
            raise RuntimeError(
                f"{_where(self.lowering, name)} is in a function that torch.utils.checkpoint runs again for the "
                "backward pass, where it would stay in high precision; allowed are modules and their methods, and "
                "torch.compile"
            )

    def part_of_function(self) -> str:
        """The part of a program's torch.autograd.Function that Dynamo traces within this mode; "" outside, and eagerly.

        In eager programs a backward runs without the mode.
        """
        if not torch.compiler.is_dynamo_compiling() or torch.is_grad_enabled():
            return ""
        part = traced_part()
        return "" if part == self.part else part

    def own_function(self, name: str, part: str) -> str:
        """The torch.autograd.Function of the program whose forward multiplies, with a warning; "" outside of one.

        Its backward runs without this mode, so the gradients are the program's. Gradients are off in its forward.
        """
        is_off = self.has_gradients and not torch.is_grad_enabled()
        if torch.compiler.is_dynamo_compiling():
            own = _SOME_FUNCTION if part == "forward" and self.has_gradients else ""
        else:
            around = _frames_within() if is_off or listing.get() is not None else ()
            function = next(filter(None, map(function_of, around)), None)
            # torch's own run modules again, as checkpoints do, or move tensors.
            own = "" if function is None or function.__module__.startswith("torch.") else function.__name__
        if own and own not in self.lowering.warned:
            _warn_of_gradients(_where(self.lowering, name), own)
            self.lowering.warned.add(own)
        return own

    def kinds_of(self, name: str, args: Any) -> tuple[str, ...]:
        """The kinds of the products that a function has."""
        function = PRODUCTS[name]
        if function.kinds:
            return function.kinds
        if name == "einsum" and len(args) > 3:
            return (LINEAR, MATMUL)  # as each product is
        if name in ("bmm", "baddbmm") and self.heads:
            return (self.heads.pop(),)
        pair = args[function.first : function.first + 2]
        return (LINEAR,) if len(pair) == 2 and self.is_weight(pair[0]) != self.is_weight(pair[1]) else (MATMUL,)

    def with_rounded_weights(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a function with the weights rounded that it multiplies by."""
        function = PRODUCTS[name]
        begin, index = function.first, function.weight
        if index is not None:
            groups = None
            if function.kinds == (CONV,):
                groups = kwargs.get("groups", args[_GROUPS] if len(args) > _GROUPS else 1)
            round_weight = partial(self.rounded_weight, groups=groups, is_transposed=function.is_transposed)
            if "weight" in kwargs:
                return args, {**kwargs, "weight": round_weight(kwargs["weight"])}
            return (*args[:index], round_weight(args[index]), *args[index + 1 :]), kwargs
        if function.law is None:
            return args, kwargs
        if function.several or (name == "einsum" and len(args) > 3):
            return map_tree(self.rounded_matrix, args), kwargs
        are_weights = [self.is_weight(x) for x in args[begin : begin + 2]]
        if sum(are_weights) != 1:  # a product of two weights is a part of a weight
            return args, kwargs
        place = are_weights.index(True)
        index = begin + place
        return (*args[:index], self.rounded_weight(args[index], place == function.right), *args[index + 1 :]), kwargs

    def rounded_matrix(self, x: Any) -> Any:
        """The rounded matrix if it is a weight, else the matrix itself."""
        return self.rounded_weight(x) if self.is_weight(x) and x.dim() >= 2 else x

    def rounded_weight(
        self, x: torch.Tensor, is_right: bool = False, groups: int | None = None, is_transposed: bool = False
    ) -> torch.Tensor:
        """A weight rounded, which is a weight of the same name. Its blocks lie as in a product of a recipe.

        Args:
            x: the weight.
            is_right: True if it is the right matrix of a product, (inputs, outputs).
            groups, is_transposed: those of a convolution; None for other products.
        """
        self.rounded += 1
        quantizer: Any = self.lowering.weight
        number = quantizer.quantization.forward_number
        if groups is not None:
            y = rounded_in(weight_layout(number, x.shape[2:], groups, is_transposed), quantizer, x)
        elif is_right and x.dim() > 1 and isinstance(number, BlockNumber):
            y = quantizer(x.mT).mT
        else:
            y = quantizer(x)
        self.note((x,), y)
        return y


def rounded_in(layout: WeightLayout | None, quantizer: Quantizer, weight: torch.Tensor) -> torch.Tensor:
    """A weight, rounded in the layout of its blocks."""
    return quantizer(weight) if layout is None else layout.put_back(quantizer(layout.laid_out(weight)))


class _RoundingMultiplier:
    """A `Multiplier` that computes with the products of a `Lowering`."""

    def __init__(
        self,
        mode: ProductMode,
        kinds: tuple[str, ...],
        given: Sequence[torch.Tensor],
        names: Sequence[str | None],
        own: str,
    ) -> None:
        self.mode, self.kinds, self.given, self.names, self.own = mode, kinds, given, names, own
        mode.calls += 1

    def is_weight(self, x: torch.Tensor) -> bool:
        return self.name_of(x) is not None

    def name_of(self, x: torch.Tensor) -> str | None:
        """The module's name of a weight, or of the weight that a tensor is a view of; None for all other tensors."""
        # `given` are the arguments in float32, which may be copies; the mode finds states by the original tensors.
        base = base_of(x)
        for one, name in zip(self.given, self.names, strict=True):
            if one is x or one is base:
                return name
        return self.mode.name_of(x)

    def rows(self, kind: str, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if len(self.kinds) == 1:  # the mode has found the kind, as of the products of an attention layer
            kind = self.kinds[0]
        arguments = self.mode.lowering.arguments[kind]
        # One of attention's two products may stay in high precision while the other is lowered.
        if arguments is None:
            y = a @ b.mT
        else:
            with self.observed(kind, b):
                y = linalg.linear(a, b, bias, **arguments, scaling=self.state(kind, b))
        self.list(kind, (a.shape, b.shape), y.numel() * a.shape[-1])
        return y

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: Any, *settings: Any, zeros: int = 1
    ) -> torch.Tensor:
        arguments: Any = self.mode.lowering.arguments[CONV]
        scaling = self.state(CONV, weight)
        with self.observed(CONV, weight):
            y = _CONVOLUTIONS[weight.dim() - 2](x, weight, bias, *settings, **arguments, scaling=scaling)
        self.list(CONV, (x.shape, weight.shape), y.numel() * weight[0].numel() // zeros)
        return y

    def observed(self, kind: str, weight: torch.Tensor) -> Any:
        """A context in which the observer of a watched model knows the product by its number in the module.

        The products of all steps of a recurrent layer with one weight have one number.
        """
        observer: Any = None if torch.compiler.is_dynamo_compiling() else OBSERVER.get()  # of a watch
        if observer is None:
            return nullcontext()
        key = self.mode.calls, kind, self.name_of(weight)
        return observed_by(partial(observer, place=self.mode.places.setdefault(key, len(self.mode.places))))

    def state(self, kind: str, weight: torch.Tensor) -> torch.Tensor | None:
        """The state of delayed scales, which all products of an own weight share."""
        products = self.mode.lowering.products[kind]
        if products is None or products.history is None:
            return None
        name = self.name_of(weight)
        if name is None:  # a law may have made the tensor of an argument
            pairs = zip(self.given, self.names, strict=True)
            name = next((one for x, one in pairs if one is not None and x.dim() >= 2), None)
        if name is None and len(self.mode.computed) == 1:
            name = self.mode.computed[0]
        if name is None or name not in self.mode.states:
            raise UnknownCallError(
                "delayed scales need a state, which a module has for each weight of its own; multiply in the module "
                "that owns the weight, or use scales just in time"
            )
        return self.mode.states[name]

    def list(self, kind: str, shapes: Any, work: int) -> None:
        if torch.compiler.is_dynamo_compiling() or (lists := listing.get()) is None:
            return
        lowering = self.mode.lowering
        products = lowering.products[kind]
        reason = "" if products else lowering.reasons[kind]
        if products and self.own:
            products, reason = with_own_gradients(products, self.own)
        lists.add(lists.path_of(lowering), kind, shapes, work, products, reason)


class _Listed:
    """A `Multiplier` that lists products, of tensors without numbers."""

    def __init__(
        self, add: Callable[[str, Any, int], None], kinds: tuple[str, ...], weights: Sequence[torch.Tensor]
    ) -> None:
        self.add, self.kinds, self.weights = add, kinds, weights

    def is_weight(self, x: torch.Tensor) -> bool:
        return any(weight is x for weight in self.weights)

    def rows(self, kind: str, a: torch.Tensor, b: torch.Tensor, bias: Any = None) -> torch.Tensor:
        y = a.new_empty((*a.shape[:-1], b.shape[-2]))
        self.add(self.kinds[0] if len(self.kinds) == 1 else kind, (a.shape, b.shape), y.numel() * a.shape[-1])
        return y

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: Any, *settings: Any, zeros: int = 1
    ) -> torch.Tensor:
        function: Any = (torch.conv1d, torch.conv2d, torch.conv3d)[weight.dim() - 3]
        y = function(x, weight, None, *settings)
        self.add(CONV, (x.shape, weight.shape), y.numel() * weight[0].numel() // zeros)
        return y


def list_wide(
    lists: Listing,
    mode: ProductMode,
    path: str,
    name: str,
    kinds: tuple[str, ...],
    args: Any,
    kwargs: Any,
    y: Any,
    reasons: Mapping[str, str],
) -> None:
    """Lists the products of a function that was not replaced, with the reason for each kind."""

    tensors = tensors_in((*args, *kwargs.values()))
    part = stored_part(tensors[1:] if name in SPARSE_SUMS else tensors)

    def add(kind: str, shapes: Any, work: int | None) -> None:
        lists.add(path, kind, shapes, work and round(work * part), None, reasons[kind])

    weights = []

    def shape_only(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        y = torch.empty(x.shape, dtype=x.dtype, device="meta")
        if mode.is_weight(x):
            weights.append(y)
        return y

    shapes = [x.shape for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and not x.is_nested]
    if any(x.is_nested for x in tensors):
        add(kinds[0], shapes[:2], None)
        return
    kwargs = {key: x for key, x in kwargs.items() if key != "out"}
    if kinds == (SCORES, OUTPUT):
        query, key, value = shapes[:3]
        y = y[0] if isinstance(y, tuple) else y
        work = y.numel() // value[-1] * key[-2]
        add(SCORES, (query, key), work * query[-1])
        add(OUTPUT, ((*y.shape[:-1], key[-2]), value), work * value[-1])
        return
    law = PRODUCTS[name].law
    if law is not None:
        try:
            with unseen_by_modes(), torch.no_grad():
                meta = map_tree(shape_only, (list(args), kwargs))
                law(_Listed(add, kinds, weights), *meta[0], **meta[1])
        # A list must not be the reason why a program fails.
        except (UnknownCallError, RuntimeError, TypeError, ValueError, IndexError):
            add(kinds[0], shapes[:2], None)
        return
    lists.add(path, name, shapes[:2], left_work(name, shapes, y), None, reasons[kinds[0]])


def list_operator(lists: Listing, path: str, func: Any, args: Any) -> None:
    """Lists a call of a program's own operator, which may multiply: what it computes is not known."""
    space = getattr(func, "namespace", operator_of(func).partition("::")[0])
    if isinstance(space, str) and space not in _TORCHS:
        shapes = [x.shape for x in tensors_in(args)]
        name = operator_of(func) or func.name()
        lists.add(path, name, shapes, None, None, "an operator of the program, whose products are not known")


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors among arguments, and in lists there."""
    found: list[torch.Tensor] = []
    for x in values:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, tuple | list):
            found += tensors_in(x)
    return found


def is_product(tensors: Sequence[torch.Tensor]) -> bool:
    """True if a function that multiplies has two tensors of numbers that are not integers: einsum may only move one."""
    return len(tensors) > 1 and (tensors[0].is_floating_point() or tensors[0].is_complex())


def _frames_within() -> Iterator[types.FrameType]:
    """The frames between a product and the method of the module that multiplies, innermost first."""
    return takewhile(lambda one: one.f_code.co_filename != __file__ or one.f_code.co_name != "entered", frames())


def _in_mode(
    body: Callable[..., Any],
    lowering: Lowering,
    names: Sequence[str],
    weights: Sequence[Any],
    states: Mapping[str, torch.Tensor],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A function of a program, run in a mode: compiled operators run functions without the modes that are on."""
    with ProductMode(lowering, names, weights, states):
        return body(*args, **kwargs)


def _where(lowering: Lowering, name: str) -> str:
    return f"{name} in {quoted(lowering.path)}" if lowering.path else f"{name} in the model itself"


def _warn_once(lowering: Lowering, name: str, reason: str) -> None:
    if name not in lowering.warned:
        _warn(_where(lowering, name), reason)
        lowering.warned.add(name)


@constant_result
def _show_products() -> int:
    show_to_modes(hidden_products())
    return 0


@constant_result  # traced programs warn when they are traced
def _warn(where: str, reason: str) -> int:
    warn(f"{where} stays in high precision: {reason}; qtorch.recipes.report(model, *inputs) lists all products")
    return 0


@constant_result
def _warn_of_gradients(where: str, own: str) -> int:
    warn(
        f"gradients of {where} stay in high precision: they are those of {own}, whose backward a recipe does not "
        "reach; a product outside of torch.autograd.Function has gradients of the recipe"
    )
    return 0


def weights_of(module: nn.Module) -> tuple[list[str], list[Any]]:
    """The names and tensors of a module's own weights; of a parametrized weight, the parameters that it is made of."""
    found = list(own_parameters(module).items())
    if parametrize.is_parametrized(module):
        for name, one in module.parametrizations.items():  # type: ignore[union-attr, operator]
            found += [(name, x) for x in own_parameters(one).values()]
    if isinstance(module, nn.MultiheadAttention):
        found += [(f"out_proj.{name}", x) for name, x in own_parameters(module.out_proj).items()]
    return [name for name, _ in found], [x for _, x in found]


def entering(base: type) -> dict[str, Any]:
    """The members of the class of a module with a `Lowering`: its methods, run within the mode.

    Methods other than forward are among them, as checkpoints and programs call them directly.
    """
    members: dict[str, Any] = {}
    for kind in reversed(base.__mro__):
        if not issubclass(kind, nn.Module) or kind is nn.Module:
            continue
        is_torchs = kind.__module__.startswith("torch.")
        for name, value in vars(kind).items():
            if isinstance(value, types.FunctionType) and (name == "forward" or not (is_torchs or _is_inherited(name))):
                members[name] = _entered(value)
    if hasattr(base, "reset_parameters"):
        members["reset_parameters"] = _resetting(base)

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        return apply_but_states(self, _states_of(self), partial(base._apply, self), fn, recurse)

    def load(self: Any, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        keep_states(self, _states_of(self), state_dict, prefix)
        base._load_from_state_dict(self, state_dict, prefix, *arguments)

    return members | {"extra_repr": _extra_repr(base), "_apply": apply, "_load_from_state_dict": load}


def _states_of(module: Any) -> list[str]:
    """The names of a module's buffers with states of delayed scales."""
    lowering = vars(module).get("qtorch_lowering")
    return [] if lowering is None else list(lowering.states.values())


def _resetting(base: Any) -> Callable[[Any], None]:
    def reset_parameters(self: Any) -> None:
        base.reset_parameters(self)
        reset_states(self, _states_of(self))

    return reset_parameters


def _is_inherited(name: str) -> bool:
    """True of names that torch's modules have: such methods are not the model's arithmetic."""
    return name.startswith("__") or hasattr(nn.Module, name)


def _entered(method: Callable[..., Any]) -> Callable[..., Any]:
    is_forward = method.__name__ == "forward"

    @wraps(method)  # programs read the signature
    def entered(self: Any, *args: Any, **kwargs: Any) -> Any:
        lowering = getattr(self, "qtorch_lowering", None)
        if lowering is None:  # a new module, made from a class that a registry has kept
            return method(self, *args, **kwargs)
        refuse_tracers(args[0] if args else None)
        first_call = None
        if torch.compiler.is_dynamo_compiling():
            _show_products()
            first_call = lowering.first_call if is_forward else None
        if first_call is not None:  # here as well: Dynamo may trace a model's hooks as programs of their own
            first_call.begin_traced()
        names, weights = weights_of(self)
        states = {name: getattr(self, buffer) for name, buffer in lowering.states.items()}
        mode = ProductMode(lowering, names, weights, states)
        if parametrize.is_parametrized(self):
            mode.computed = list(self.parametrizations)
        with mode:
            y = method(self, *args, **kwargs)
        if first_call is not None:
            first_call.end_traced()
        if is_forward and lowering.weight is not None and mode.rounded == 0:
            raise ValueError(
                f"{lowering.path or 'the model itself'} multiplies by no weight that lower finds; allowed are linear, "
                "matmul, einsum and convolutions of weights, and layers of torch.nn"
            )
        return y

    return entered


def enter_forward(module: nn.Module) -> None:
    """Wraps a forward that is an attribute of the module and not of its class."""
    own = vars(module).get("forward")
    if own is None:
        return

    @wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    forward.__name__ = "forward"
    module.forward = types.MethodType(_entered(forward), module)


def _extra_repr(base: Any) -> Callable[[Any], str]:
    def extra_repr(self: Any) -> str:
        lowering = vars(self).get("qtorch_lowering")
        return ", ".join(filter(None, [base.extra_repr(self), "" if lowering is None else _shown(lowering)]))

    return extra_repr


def _shown(lowering: Lowering) -> str:
    """The formats of the forward products."""
    texts = dict.fromkeys(short_product(one.forward) for one in lowering.products.values() if one is not None)
    return f"products={' or '.join(texts)}" if texts else ""
