"""The registry of torch's functions: the function with defined bits that replaces each, and functions that stay.

A function has one row, in one of these tables:

- `DEFINED`: its replacement, with the same arguments. The decorator `defines` makes a row.
- `EXACT`: it moves numbers, or returns facts about them, and so do its gradients. It stays.
- `MAKERS`: it returns floating numbers without floating arguments. It stays.
- `RANDOM`: it draws from torch's generator, and raises.

All other functions stay if neither arguments nor results are floating numbers, and raise otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from qtorch._torch_internals import constant_result

DEFINED: dict[Any, Callable[..., Any]] = {}
METHODS: dict[str, Callable[..., Any]] = {}


def named(names: str, *rooms: Any) -> set[Any]:
    """The functions with these names in several rooms, such as torch and Tensor."""
    return {getattr(room, name) for name in names.split() for room in rooms if hasattr(room, name)}


def row(computes: Callable[..., Any], *functions: Any) -> None:
    """Registers a function as the replacement of some of torch's functions, with the same arguments."""
    DEFINED.update(dict.fromkeys(functions, computes))
    METHODS.update(dict.fromkeys(python_methods(functions), computes))


def python_methods(functions: Iterable[Any]) -> list[str]:
    """The names of methods that torch has in Python: Dynamo finds these functions in no dictionary."""
    own = {one for one in vars(Tensor).values() if isinstance(one, FunctionType)}
    return [one.__name__ for one in functions if one in own]


def defines(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`row` as a decorator."""

    def remember(function: Callable[..., Any]) -> Callable[..., Any]:
        row(function, *functions)
        return function

    return remember


def refuse(**given: bool) -> None:
    """Raises for options without a law."""
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} has no defined bits here; allowed is the default")


def placed(inplace: bool, function: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    """function(x, *arguments), where inplace is True put into x."""
    return x.copy_(function(x.clone(), *arguments)) if inplace else function(x, *arguments)


def in_place(function: Callable[..., Tensor], *functions: Any) -> None:
    """Registers functions of torch that write the result of a function into their first argument."""

    def replace(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        y = function(x.clone(), *arguments, **options)
        if x.dtype is not y.dtype:
            raise TypeError(f"the result has dtype {y.dtype}, its place {x.dtype}; allowed is one dtype")
        return x.copy_(y)

    row(replace, *functions)


def has_floats(arguments: Iterable[Any]) -> bool:
    """True if there is a tensor of floating numbers, in lists too."""
    for x in arguments:
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()):
            return True
        if isinstance(x, tuple | list) and has_floats(x):
            return True
    return False


def float32(x: Any) -> Any:
    """A tensor of integers or bools as float32; other arguments unchanged."""
    return x if not isinstance(x, Tensor) or x.is_floating_point() else x.to(torch.float32)


EXACT = named(
    "reshape flatten permute transpose swapaxes swapdims movedim moveaxis unsqueeze squeeze ravel t adjoint "
    "clone detach flip fliplr flipud rot90 roll tril triu diag diagonal diag_embed "
    "atleast_1d atleast_2d atleast_3d cat concat concatenate stack hstack vstack dstack column_stack row_stack "
    "neg negative numel is_floating_point is_complex isnan isinf isfinite isposinf isneginf "
    "zeros_like ones_like full_like empty_like pixel_shuffle pixel_unshuffle channel_shuffle",
    torch,
    Tensor,
    torch.nn.functional,
) | named(
    "view view_as reshape_as contiguous is_contiguous stride storage_offset size dim ndimension nelement item tolist "
    "numpy cpu cuda data_ptr requires_grad_ detach_ element_size get_device __len__ __neg__ __iter__ "
    "__float__ __int__ __repr__ __format__ __deepcopy__ fill_ zero_ squeeze_ unsqueeze_ transpose_ t_ neg_ tril_ triu_ "
    "new_zeros new_ones new_full new_empty new_tensor backward retain_grad register_hook",
    Tensor,
)
EXACT |= {torch.unflatten, operator.neg}


@constant_result
def stays(function: Any) -> bool:
    """True for functions in `EXACT`. A constant of programs, which else compare all of them with the set then."""
    return function in EXACT


EXACT_METHODS = frozenset(python_methods(EXACT))

MAKERS = named(
    "zeros ones full empty eye tensor as_tensor scalar_tensor zeros_like ones_like full_like empty_like from_numpy "
    "where empty_strided asarray finfo iinfo",
    torch,
) | named("new_zeros new_ones new_full new_empty new_tensor", Tensor)

RANDOM = named(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson binomial",
    torch,
) | named(
    "random_ uniform_ normal_ bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial", Tensor
)
