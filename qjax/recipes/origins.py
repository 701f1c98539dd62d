"""The origin of a value of a traced program: it distinguishes weights and biases from activations.

Origins have an order:

    2 n         part of the program's argument number n, a container such as a module or dictionary
    2 n + 1     computed from parts of that argument and constants alone, such as a normalized weight
    CAPTURED    an array that the program's functions captured; CAPTURED + 1 is computed from such arrays alone
    BARE        an argument that is one array
    COMPUTED    the result of arithmetic on any of these
    CONSTANT    the same for all inputs

Reshaping, casting and slicing keep the origin. Of two weights, the one with the lower order is more likely a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_CAPTURED, _BARE, _COMPUTED, _CONSTANT = ((1 << 30) + 2 * step for step in range(4))

_SHAPES = {"broadcast_in_dim", "reshape", "squeeze", "transpose"}
_KEEPING = _SHAPES | {"convert_element_type", "copy", "stop_gradient", "slice", "dynamic_slice"}
_KEEPING |= {"pvary", "reshard", "sharding_constraint"}

Place = tuple[str, ...]


class Origin(NamedTuple):
    """Where a value comes from.

    Attributes:
        order: see above.
        place: the module that owns the parameter, or that holds the layers whose results the value was computed from;
            None if no parameter is in it.
        scores: the number of the product of two tensors whose result, one by one, the value was computed from.
        is_exponential: True if their exponentials are in it, as in softmax.
    """

    order: int
    place: Place | None = None
    scores: int | None = None
    is_exponential: bool = False


CAPTURED, BARE, COMPUTED, CONSTANT = map(Origin, (_CAPTURED, _BARE, _COMPUTED, _CONSTANT))


def part_of(argument: int, place: Place) -> Origin:
    """The origin of a part of a container."""
    return Origin(2 * argument, place)


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
    """Which of two factors, 0 or 1, is the weight; `tie` if both may be, and None if none is."""
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
    if not varying:
        return CONSTANT
    name = equation.primitive.name
    if name in _KEEPING:
        return origins[0]
    traced = next((origin for origin in varying if origin.scores is not None), varying[0])
    of_one = len({origin.order // 2 for origin in varying}) == 1 and varying[0].order < _BARE
    order = varying[0].order // 2 * 2 + 1 if of_one else _COMPUTED
    return Origin(order, common_place(varying), traced.scores, traced.is_exponential or name in ("exp", "exp2"))


def common_place(origins: Sequence[Origin]) -> Place | None:
    """The innermost module around the places of values."""
    places = [origin.place for origin in origins if origin.place is not None]
    if not places:
        return None
    depth = next((depth for depth, parts in enumerate(zip(*places, strict=False)) if len(set(parts)) > 1), None)
    return min(places, key=len) if depth is None else places[0][:depth]
