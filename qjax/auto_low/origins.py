"""The origin of a value of a traced program, as an int: it distinguishes weights and biases from activations.

    0, 1, 2, ...    part of that argument of the program, which is a container such as a module or dictionary
    CAPTURED        an array that the program's functions captured
    BARE            an argument that is one array
    COMPUTED        the result of arithmetic on any of these
    CONSTANT        the same for all inputs

Reshaping, casting and slicing keep the origin. Of two inputs, the one with the lower origin is more likely a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CAPTURED, BARE, COMPUTED, CONSTANT = (1 << 30) + 0, (1 << 30) + 1, (1 << 30) + 2, (1 << 30) + 3

_SHAPES = {"broadcast_in_dim", "reshape", "squeeze", "transpose"}
_KEEPING = _SHAPES | {"convert_element_type", "copy", "stop_gradient", "slice", "dynamic_slice"}
_KEEPING |= {"pvary", "reshard", "sharding_constraint"}


def is_input(origin: int) -> bool:
    """True if a value is an input of the program, perhaps in another shape or dtype."""
    return origin <= BARE


def is_constant(origin: int) -> bool:
    return origin == CONSTANT


def result_origin(equation: Any, origins: Sequence[int]) -> int:
    """The origin of the results of an equation of a jaxpr with operands of these origins."""
    if all(map(is_constant, origins)):
        return CONSTANT
    return origins[0] if equation.primitive.name in _KEEPING else COMPUTED
