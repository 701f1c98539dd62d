"""Rows of the registry: arithmetic, reductions and elementary functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.modules.registry import DEFINED, defines, float32, in_place, named, placed, refuse, row


def numbers(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands as tensors of floating numbers."""
    like = a if isinstance(a, Tensor) else b
    return tuple(float32(x) if isinstance(x, Tensor) else FUNCTIONS.number(x, like) for x in (a, b))  # type: ignore[return-value]


@defines(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, operator.add)
def _add(a: Any, b: Any, *, alpha: float = 1) -> Tensor:
    refuse(alpha=alpha != 1)
    return FUNCTIONS.add(*numbers(a, b))


@defines(torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__, operator.sub)
def _subtract(a: Any, b: Any, *, alpha: float = 1) -> Tensor:
    refuse(alpha=alpha != 1)
    return FUNCTIONS.subtract(*numbers(a, b))


@defines(*named("div divide true_divide __truediv__", torch, Tensor), operator.truediv)
def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Tensor:
    refuse(rounding_mode=rounding_mode is not None)
    return FUNCTIONS.divide(*numbers(a, b))


@defines(torch.square, Tensor.square)
def _square(x: Tensor) -> Tensor:
    return FUNCTIONS.multiply(x, x)


def _of_two(function: Callable[..., Tensor], *functions: Any, swapped: bool = False) -> Callable[[Any, Any], Tensor]:
    """Registers a function of two operands, of swapped ones where torch's has them in the other order."""

    def replace(a: Any, b: Any) -> Tensor:
        return function(*(numbers(b, a) if swapped else numbers(a, b)))

    row(replace, *functions)
    return replace


_multiply = _of_two(FUNCTIONS.multiply, *named("mul multiply __mul__ __rmul__", torch, Tensor), operator.mul)
_pow = _of_two(FUNCTIONS.pow, *named("pow __pow__", torch, Tensor), operator.pow)
_of_two(FUNCTIONS.maximum, *named("maximum", torch, Tensor))
_of_two(FUNCTIONS.minimum, *named("minimum", torch, Tensor))
_of_two(FUNCTIONS.subtract, *named("rsub __rsub__", torch, Tensor), swapped=True)
_of_two(FUNCTIONS.divide, *named("__rtruediv__ __rdiv__", Tensor), swapped=True)
_of_two(FUNCTIONS.pow, *named("__rpow__", Tensor), swapped=True)
_of_two(FUNCTIONS.less, *named("lt less", torch, Tensor), Tensor.__lt__, operator.lt)
_of_two(FUNCTIONS.less, *named("gt greater", torch, Tensor), Tensor.__gt__, operator.gt, swapped=True)
_of_two(FUNCTIONS.less_equal, *named("le less_equal", torch, Tensor), Tensor.__le__, operator.le)
_of_two(FUNCTIONS.less_equal, *named("ge greater_equal", torch, Tensor), Tensor.__ge__, operator.ge, swapped=True)
equal = _of_two(FUNCTIONS.equal, *named("eq", torch, Tensor), Tensor.__eq__, operator.eq)


@defines(torch.clamp, torch.clip, Tensor.clamp, Tensor.clip)
def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        x = x if min is None else FUNCTIONS.maximum(*numbers(x, min))
        return x if max is None else FUNCTIONS.minimum(*numbers(x, max))
    return FUNCTIONS.clamp(x, min, max)


@defines(torch.clamp_min, Tensor.clamp_min)
def _clamp_min(x: Tensor, min: Any) -> Tensor:
    return _clamp(x, min)


@defines(torch.clamp_max, Tensor.clamp_max)
def _clamp_max(x: Tensor, max: Any) -> Tensor:
    return _clamp(x, None, max)


in_place(_add, Tensor.add_, Tensor.__iadd__, operator.iadd)
in_place(_subtract, Tensor.sub_, Tensor.subtract_, Tensor.__isub__, operator.isub)
in_place(_multiply, Tensor.mul_, Tensor.multiply_, Tensor.__imul__, operator.imul)
in_place(_divide, Tensor.div_, Tensor.divide_, Tensor.__itruediv__, Tensor.__idiv__, operator.itruediv)
in_place(_pow, Tensor.pow_, Tensor.__ipow__)
in_place(_clamp, torch.clamp_, Tensor.clamp_, Tensor.clip_)
in_place(_clamp_min, torch.clamp_min_, Tensor.clamp_min_)
in_place(_clamp_max, torch.clamp_max_, Tensor.clamp_max_)


@defines(torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.__matmul__, operator.matmul)
def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return FUNCTIONS.matmul(a, b)


@defines(torch.addmm, Tensor.addmm)
def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """addmm: `linear` if the bias has one axis."""
    refuse(beta=beta != 1, alpha=alpha != 1)
    if bias.ndim == 1 and len(bias) == b.shape[-1]:
        return FUNCTIONS.linear(a, b.t(), bias)
    return FUNCTIONS.add(FUNCTIONS.matmul(a, b), bias)


@defines(torch.baddbmm, Tensor.baddbmm)
def _baddbmm(term: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    y = FUNCTIONS.matmul(a, b)
    y = y if alpha == 1 else _multiply(y, alpha)
    if beta == 0:
        return y
    return FUNCTIONS.add(y, term if beta == 1 else _multiply(term, beta))


def _checked_dtype(dtype: Any) -> None:
    refuse(dtype=dtype is not None and dtype is not torch.float32)


@defines(torch.sum, Tensor.sum)
def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    _checked_dtype(dtype)
    return FUNCTIONS.sum(float32(x), _axes(dim), keepdim)


@defines(torch.mean, Tensor.mean)
def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    _checked_dtype(dtype)
    return FUNCTIONS.mean(float32(x), _axes(dim), keepdim)


def _axes(dim: Any) -> Any:
    """No axes are all axes."""
    return None if isinstance(dim, tuple | list) and not dim else dim


@defines(torch.var, Tensor.var)
def _var(
    x: Tensor, dim: Any = None, unbiased: Any = True, keepdim: bool = False, *, correction: int | None = None
) -> Tensor:
    if isinstance(dim, bool):  # torch takes `unbiased` in its place
        dim, unbiased = None, dim
    return FUNCTIONS.var(x, _axes(dim), keepdim, int(unbiased) if correction is None else correction)


@defines(torch.std, Tensor.std)
def _std(*arguments: Any, **options: Any) -> Tensor:
    return FUNCTIONS.sqrt(_var(*arguments, **options))


@defines(torch.var_mean)
def _var_mean(x: Tensor, dim: Any = None, unbiased: Any = True, keepdim: bool = False, **options: Any) -> Any:
    return _var(x, dim, unbiased, keepdim, **options), FUNCTIONS.mean(x, _axes(dim), keepdim)


@defines(torch.logsumexp, Tensor.logsumexp)
def _logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return FUNCTIONS.logsumexp(x, dim, keepdim)


@defines(torch.amax, Tensor.amax)
def _amax(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return FUNCTIONS.max(x, _axes(dim), keepdim)


@defines(torch.amin, Tensor.amin)
def _amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return -FUNCTIONS.max(-x, _axes(dim), keepdim)


@defines(torch.linalg.vector_norm, torch.linalg.norm)
def _norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    refuse(ord=ord not in (2, None))
    _checked_dtype(dtype)
    return FUNCTIONS.norm(x, _axes(dim), keepdim)


@defines(torch.norm, Tensor.norm)
def _norm_of(x: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    refuse(p=p not in ("fro", 2, None))
    return _norm(x, 2, dim, keepdim, dtype=dtype)


@defines(F.normalize)
def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Tensor:
    refuse(p=p != 2, out=out is not None)
    return FUNCTIONS.divide(x, FUNCTIONS.clamp(FUNCTIONS.norm(x, dim, True), eps))


def _elementary(name: str) -> Callable[..., Tensor]:
    function = getattr(FUNCTIONS, name)
    return lambda x: function(float32(x))


for _name in "exp expm1 log log1p tanh sigmoid erf sin cos sqrt rsqrt reciprocal abs relu".split():
    _function = _elementary(_name)
    defines(*named(_name, torch, Tensor, torch.special))(_function)
    in_place(_function, *named(f"{_name}_", torch, Tensor))
defines(F.tanh)(DEFINED[torch.tanh])
defines(F.sigmoid, torch.special.expit)(DEFINED[torch.sigmoid])
defines(Tensor.__abs__, torch.absolute, Tensor.absolute)(DEFINED[torch.abs])


@defines(F.gelu)
def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return FUNCTIONS.gelu(x, approximate)


@defines(F.prelu, torch.prelu, Tensor.prelu)
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    """One weight, or one for each channel on the second axis."""
    return FUNCTIONS.prelu(x, weight if len(weight) == 1 else weight.reshape(-1, *(1,) * (x.ndim - 2)))


def _activation(function: Any, computes: Callable[..., Tensor]) -> None:
    """Registers the replacement of a function of torch.nn.functional whose last argument is `inplace`."""
    settings = [(one.name, one.default) for one in signature(function).parameters.values()][1:]

    def replace(x: Tensor, *given: Any, **options: Any) -> Tensor:
        values = list(given)
        for name, default in settings[len(given) :]:  # without a function of its own, on the path of each call
            values.append(options.get(name, default))
        return placed(values.pop(), computes, x, *values)

    row(replace, function)


for _name in "relu silu leaky_relu hardtanh hardsigmoid hardswish elu selu celu".split():
    _activation(getattr(F, _name), getattr(FUNCTIONS, _name))
_activation(F.relu6, lambda x: FUNCTIONS.hardtanh(x, 0.0, 6.0))
_activation(F.mish, lambda x: FUNCTIONS.multiply(x, FUNCTIONS.tanh(FUNCTIONS.softplus(x))))


@defines(F.logsigmoid)
def _logsigmoid(x: Tensor) -> Tensor:
    return -FUNCTIONS.softplus(-x)


@defines(F.softsign)
def _softsign(x: Tensor) -> Tensor:
    return FUNCTIONS.divide(*numbers(x, FUNCTIONS.add(*numbers(FUNCTIONS.abs(x), 1.0))))


@defines(F.tanhshrink)
def _tanhshrink(x: Tensor) -> Tensor:
    return FUNCTIONS.subtract(x, FUNCTIONS.tanh(x))


@defines(F.glu)
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = FUNCTIONS.chunk(x, 2, dim)
    return FUNCTIONS.multiply(value, FUNCTIONS.sigmoid(gate))


@defines(F.softplus)
def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    refuse(beta=beta != 1, threshold=threshold < 20)  # from 20 on log(1 + exp(x)) rounds to x
    return FUNCTIONS.softplus(x)


@defines(F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax)
def _softmax(x: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    _checked_dtype(dtype)
    return FUNCTIONS.softmax(x, dim)


@defines(F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax)
def _log_softmax(x: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    _checked_dtype(dtype)
    return FUNCTIONS.log_softmax(x, dim)
