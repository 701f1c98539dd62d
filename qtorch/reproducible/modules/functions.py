"""Torch's functions with defined bits: which of our functions takes the place of each, and which round nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qtorch.reproducible.training import FUNCTIONS

DEFINED: dict[Any, Callable[..., Any]] = {}


def defines(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Says that a function computes what some of torch's do, with the same arguments."""

    def remember(function: Callable[..., Any]) -> Callable[..., Any]:
        DEFINED.update(dict.fromkeys(functions, function))
        return function

    return remember


def refuse(**given: bool) -> None:
    """Refuses options that have no law."""
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} has no defined bits here; allowed is the default")


def _numbers(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands as tensors."""
    like = a if isinstance(a, Tensor) else b
    return tuple(x if isinstance(x, Tensor) else FUNCTIONS.number(x, like) for x in (a, b))  # type: ignore[return-value]


@defines(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def _add(a: Any, b: Any, alpha: float = 1) -> Tensor:
    refuse(alpha=alpha != 1)
    return FUNCTIONS.add(*_numbers(a, b))


@defines(torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__)
def _subtract(a: Any, b: Any, alpha: float = 1) -> Tensor:
    refuse(alpha=alpha != 1)
    return FUNCTIONS.subtract(*_numbers(a, b))


@defines(Tensor.__rsub__)
def _subtract_from(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.subtract(*_numbers(b, a))


@defines(torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)
def _multiply(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.multiply(*_numbers(a, b))


@defines(torch.div, torch.divide, Tensor.div, Tensor.divide, Tensor.__truediv__)
def _divide(a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    refuse(rounding_mode=rounding_mode is not None)
    return FUNCTIONS.divide(*_numbers(a, b))


@defines(torch.pow, Tensor.pow, Tensor.__pow__)
def _pow(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.pow(*_numbers(a, b))


@defines(Tensor.__rpow__)
def _power_of(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.pow(*_numbers(b, a))


@defines(torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.__matmul__)
def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return FUNCTIONS.matmul(a, b)


@defines(torch.sum, Tensor.sum)
def _sum(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return FUNCTIONS.sum(x, dim, keepdim)


@defines(torch.mean, Tensor.mean)
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return FUNCTIONS.mean(x, dim, keepdim)


@defines(torch.var, Tensor.var)
def _var(
    x: Tensor, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: int | None = None
) -> Tensor:
    if isinstance(dim, bool):  # torch takes `unbiased` in its place
        dim, unbiased = None, dim
    return FUNCTIONS.var(x, dim, keepdim, int(unbiased) if correction is None else correction)


@defines(torch.logsumexp, Tensor.logsumexp)
def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return FUNCTIONS.logsumexp(x, dim, keepdim)


@defines(torch.amax, Tensor.amax)
def _amax(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return FUNCTIONS.max(x, None if dim == () else dim, keepdim)


@defines(torch.linalg.vector_norm)
def _norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    refuse(ord=ord != 2, dtype=dtype is not None)
    return FUNCTIONS.norm(x, dim, keepdim)


@defines(torch.chunk, Tensor.chunk)
def _chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return FUNCTIONS.chunk(x, chunks, dim)


@defines(torch.narrow, Tensor.narrow)
def _narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return FUNCTIONS.narrow(x, dim, start, length)


@defines(torch.select, Tensor.select)
def _select(x: Tensor, dim: int, index: int) -> Tensor:
    return FUNCTIONS.narrow(x, dim, index + x.shape[dim] * (index < 0), 1).squeeze(dim)


@defines(Tensor.__getitem__)
def _part(x: Tensor, index: Any) -> Tensor:
    """Ints, slices of step 1, None and an Ellipsis."""
    if not x.is_floating_point():
        return x[index]
    given = list(index) if isinstance(index, tuple) else [index]
    refuse(
        index=not all(
            one is None or one is ... or (isinstance(one, int | slice) and not isinstance(one, bool)) for one in given
        )
    )
    axes = x.ndim - sum(one is not None and one is not ... for one in given)
    place = given.index(...) if ... in given else len(given)
    given[place : place + 1] = [slice(None)] * axes
    axis, shape = 0, []
    for one in given:
        if one is None:
            shape.append(1)
            continue
        start, stop, step = slice(*_ends(one, x.shape[axis])).indices(x.shape[axis])
        refuse(step=step != 1)
        length = max(stop - start, 0)
        if length != x.shape[axis]:
            x = FUNCTIONS.narrow(x, axis, start, length)
        shape += [length] if isinstance(one, slice) else []
        axis += 1
    return x.reshape(shape)


def _ends(one: Any, length: int) -> tuple[Any, ...]:
    """Start, stop and step of an index along an axis of a length."""
    if isinstance(one, slice):
        return one.start, one.stop, one.step
    if not -length <= one < length:
        raise IndexError(f"index {one} is out of bounds of an axis of length {length}")
    return one, one + 1 or None, 1


@defines(F.relu, torch.relu, Tensor.relu)
def _relu(x: Tensor, inplace: bool = False) -> Tensor:
    return FUNCTIONS.relu(x)


@defines(F.gelu)
def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return FUNCTIONS.gelu(x, approximate)


@defines(F.silu)
def _silu(x: Tensor, inplace: bool = False) -> Tensor:
    return FUNCTIONS.silu(x)


@defines(F.softplus)
def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    refuse(beta=beta != 1, threshold=threshold < 20)  # from 20 on log(1 + exp(x)) rounds to x
    return FUNCTIONS.softplus(x)


@defines(F.softmax, torch.softmax, Tensor.softmax)
def _softmax(x: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    refuse(dtype=dtype is not None)
    return FUNCTIONS.softmax(x, dim)


@defines(F.log_softmax, torch.log_softmax, Tensor.log_softmax)
def _log_softmax(x: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    refuse(dtype=dtype is not None)
    return FUNCTIONS.log_softmax(x, dim)


for _name in ("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt", "rsqrt", "reciprocal"):
    DEFINED[getattr(torch, _name)] = DEFINED[getattr(Tensor, _name)] = getattr(FUNCTIONS, _name)
DEFINED[F.tanh], DEFINED[F.sigmoid] = FUNCTIONS.tanh, FUNCTIONS.sigmoid

# What moves numbers and rounds none, also in the gradient.
EXACT = {
    *(Tensor.reshape, Tensor.view, Tensor.flatten, Tensor.unflatten, Tensor.permute, Tensor.transpose, Tensor.swapaxes),
    *(Tensor.movedim, Tensor.unsqueeze, Tensor.squeeze, Tensor.contiguous, Tensor.clone, Tensor.detach, Tensor.t),
    *(torch.reshape, torch.flatten, torch.permute, torch.transpose, torch.swapaxes, torch.movedim, torch.unsqueeze),
    *(torch.squeeze, torch.clone, torch.cat, torch.concat, torch.stack, Tensor.size, Tensor.dim, Tensor.numel),
    *(Tensor.masked_fill, Tensor.__len__, Tensor.is_floating_point, Tensor.argmax, torch.argmax, Tensor.neg),
    *(Tensor.__neg__, torch.neg, Tensor.view_as, Tensor.reshape_as, Tensor.requires_grad_, Tensor.is_contiguous),
}
