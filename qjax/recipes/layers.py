"""Layers of a traced program: their names, their groups, and the origins of the values that they compute with.

The origin of a value distinguishes weights and biases from activations. Origins have an order:

    2 n         part of the program's argument number n, a container such as a module or dictionary
    2 n + 1     computed from parts of that argument and constants alone, such as a normalized weight
    CAPTURED    an array that the program's functions captured; CAPTURED + 1 is computed from such arrays alone
    BARE        an argument that is one array
    COMPUTED    the result of arithmetic on any of these
    CONSTANT    the same for all inputs

Reshaping, casting and slicing keep the origin. Of two weights, the one with the lower order is more likely a weight.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from qcore.law.carrier import CARRIERS
from qjax._jaxprs import CUSTOM
from qjax._parameters import parameters

_TRANSFORMATION = re.compile(r"\w+\(|\)")
_CLASS = "eqx.nn."  # begins the scopes of equinox's layers

_CAPTURED, _BARE, _COMPUTED, _CONSTANT = ((1 << 30) + 2 * step for step in range(4))

_SHAPES = {"broadcast_in_dim", "reshape", "squeeze", "transpose"}
_KEEPING = _SHAPES | {"convert_element_type", "copy", "stop_gradient", "slice", "dynamic_slice"}
_KEEPING |= {"pvary", "reshard", "sharding_constraint"}

Path = tuple[str, ...]


class Origin(NamedTuple):
    """The origin of a value.

    Attributes:
        order: see above.
        owner: the module that owns the parameter, or that holds the layers whose results the value was computed from;
            None if no parameter is in it.
        scores: the number of the product of two tensors from whose result the value was computed, element by element.
        is_exponential: True if it contains exponentials of this result, as in softmax.
        loops: the depths of the loops around it of whose iteration it is a slice, or a number.
        argument: the path of the argument, or of its part, that it is, perhaps in another shape; "" if it is none, or
            the owner has the name.
    """

    order: int
    owner: Path | None = None
    scores: int | None = None
    is_exponential: bool = False
    loops: frozenset[int] = frozenset()
    argument: str = ""

    def of_loop(self, depth: int) -> Origin:
        """The origin of a slice of the value in a loop's iteration."""
        return self._replace(loops=self.loops | {depth})


CAPTURED, BARE, COMPUTED, CONSTANT = map(Origin, (_CAPTURED, _BARE, _COMPUTED, _CONSTANT))


def part_of(argument: int, owner: Path, path: str) -> Origin:
    """The origin of a part of a container; the path is the part's name if it has one of its own."""
    return Origin(2 * argument, owner, argument=path)


def is_input(origin: Origin) -> bool:
    """True if a value is an input of the program, perhaps in another shape or dtype."""
    return origin.order <= _BARE and origin.order % 2 == 0


def is_bare(origin: Origin) -> bool:
    """True if a value is an argument that is one array."""
    return origin.order == _BARE


def is_constant(origin: Any) -> bool:
    """True if a value is the same for all inputs."""
    return isinstance(origin, Origin) and origin.order == _CONSTANT


def weight_among(first: Origin, second: Origin, tie: int) -> int | None:
    """The index of the factor that is the weight; `tie` if both may be weights, None if neither can."""
    orders = first.order, second.order
    if min(orders) > _BARE:
        return None
    if orders[0] == orders[1]:
        return None if orders[0] % 2 else tie
    # Data in a container may be computed from it alone, and a captured array is then the weight.
    for which in (0, 1):
        if orders[which] == _CAPTURED and orders[1 - which] % 2:
            return which
    return int(orders[1] < orders[0])


def result_origin(equation: Any, origins: Sequence[Origin]) -> Origin:
    """The origin of the results of an equation of a jaxpr with operands of these origins."""
    varying = [origin for origin in origins if not is_constant(origin)]
    loops = frozenset[int]().union(*(origin.loops for origin in origins))
    if not varying:
        return CONSTANT._replace(loops=loops)
    name = equation.primitive.name
    if name in _KEEPING:
        return origins[0]._replace(loops=loops)
    traced = next((origin for origin in varying if origin.scores is not None), varying[0])
    of_one = len({origin.order // 2 for origin in varying}) == 1 and varying[0].order < _BARE
    order = varying[0].order // 2 * 2 + 1 if of_one else _COMPUTED
    return Origin(order, common_owner(varying), traced.scores, traced.is_exponential or name in ("exp", "exp2"), loops)


def common_owner(origins: Sequence[Origin]) -> Path | None:
    """The innermost module around the owners of values."""
    owners = [origin.owner for origin in origins if origin.owner is not None]
    if not owners:
        return None
    depth = next((depth for depth, parts in enumerate(zip(*owners, strict=False)) if len(set(parts)) > 1), None)
    return min(owners, key=len) if depth is None else owners[0][:depth]


class Group(NamedTuple):
    """The names of JAX's primitives, and of functions under jit, custom_jvp or custom_vjp, that are layers."""

    primitives: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


def _group(primitives: str = "", functions: str = "") -> Group:
    return Group(frozenset(primitives.split()), frozenset(functions.split()))


GROUPS = {
    "conv": _group("conv_general_dilated"),
    "linear": _group("dot_general ragged_dot_general"),
    "embedding": _group("gather dynamic_slice"),
    "pool": _group("reduce_window reduce_window_max reduce_window_min reduce_window_sum"),
    "pad": _group("pad", "_pad"),
    "activation": _group(
        "tanh logistic",
        "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid log_softmax mish relu "
        "relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus swish",
    ),
    "normalization": _group("", "batch_norm group_norm instance_norm layer_norm rms_norm standardize"),
}

_BY_PRIMITIVE = {name: label for label, group in GROUPS.items() for name in group.primitives}
_BY_FUNCTION = {name: label for label, group in GROUPS.items() for name in group.functions}


def group_of(equation: Any, origins: Sequence[Origin]) -> str | None:
    """The group of an equation whose operands have these origins; None if it is not a layer."""
    label = _BY_PRIMITIVE.get(equation.primitive.name) or _BY_FUNCTION.get(function_name(equation) or "")
    if label is None or all(map(is_constant, origins)) or not any(map(is_carrier, equation.outvars)):
        return None
    if label == "embedding" and (not is_input(origins[0]) or all(map(is_constant, origins[1:]))):
        return None  # a part of a computed value, such as the logits of labels, or at constant indices
    return label


def function_name(equation: Any) -> str | None:
    """The name of the Python function that an equation calls; None if it is not a call."""
    params = parameters(equation)
    if equation.primitive.name in CUSTOM:
        return params.call_jaxpr.jaxpr.debug_info.func_name
    return None if params.jaxpr is None else params.name


def is_carrier(variable: Any) -> bool:
    """True if values of a variable of a jaxpr can be rounded."""
    return getattr(getattr(variable.aval, "dtype", None), "name", None) in CARRIERS


def is_backward(equation: Any) -> bool:
    """True if an equation is a part of a reverse-mode derivative."""
    return "transpose(" in str(equation.source_info.name_stack)


def name_of(scope: str, equation: Any) -> str:
    """The dotted name scope of an equation of a jaxpr that runs in a scope.

    Without the names of transformations, and the formulas that `jnp.einsum` has as names.
    """
    own = _TRANSFORMATION.sub("", str(equation.source_info.name_stack))
    return ".".join(part for part in (scope, *own.split("/")) if part and "->" not in part)


def product_name(scope: str, owner: Path | None, argument: str) -> str:
    """The name of a product in a name scope: the scope, or else the path of the weight or of the module that owns it.

    Equinox's scopes are names of classes, which all layers of a kind share.
    """
    path = argument or ".".join(owner or ())
    return path if path and _CLASS in scope else scope or path


def trips(equation: Any) -> int | None:
    """How often the programs in an equation run; None if that follows from values."""
    if equation.primitive.name == "while":
        return None
    return parameters(equation).length if equation.primitive.name == "scan" else 1


def kernel_trips(equation: Any) -> int | None:
    """How often a kernel's program runs: once for each point of its grid; None if that follows from values."""
    mapping = parameters(equation).grid_mapping
    if mapping is None or not all(isinstance(size, int) for size in mapping.grid):
        return None
    return prod(mapping.grid)
