"""Rows of the registry: arithmetic, reductions and elementary functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.modules.registry import DEFINED, defines, float32, in_place, named, placed, refuse


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


@defines(torch.rsub, Tensor.__rsub__)
def _subtract_from(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.subtract(*numbers(b, a))


@defines(torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__, operator.mul)
def _multiply(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.multiply(*numbers(a, b))


@defines(*named("div divide true_divide __truediv__", torch, Tensor), operator.truediv)
def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Tensor:
    refuse(rounding_mode=rounding_mode is not None)
    return FUNCTIONS.divide(*numbers(a, b))


@defines(Tensor.__rtruediv__, Tensor.__rdiv__)
def _divide_by(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.divide(*numbers(b, a))


@defines(torch.pow, Tensor.pow, Tensor.__pow__, operator.pow)
def _pow(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.pow(*numbers(a, b))


@defines(Tensor.__rpow__)
def _power_of(a: Any, b: Any) -> Tensor:
    return FUNCTIONS.pow(*numbers(b, a))


@defines(torch.square, Tensor.square)
def _square(x: Tensor) -> Tensor:
    return FUNCTIONS.multiply(x, x)


@defines(torch.maximum, Tensor.maximum)
def _maximum(a: Tensor, b: Tensor) -> Tensor:
    return FUNCTIONS.maximum(*numbers(a, b))


@defines(torch.minimum, Tensor.minimum)
def _minimum(a: Tensor, b: Tensor) -> Tensor:
    return FUNCTIONS.minimum(*numbers(a, b))


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


@defines(F.relu)
def _relu(x: Tensor, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.relu, x)


@defines(F.gelu)
def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return FUNCTIONS.gelu(x, approximate)


@defines(F.silu)
def _silu(x: Tensor, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.silu, x)


@defines(F.leaky_relu)
def _leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.leaky_relu, x, negative_slope)


@defines(F.prelu, torch.prelu, Tensor.prelu)
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    """One weight, or one for each channel on the second axis."""
    return FUNCTIONS.prelu(x, weight if len(weight) == 1 else weight.reshape(-1, *(1,) * (x.ndim - 2)))


@defines(F.hardtanh)
def _hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.hardtanh, x, min_val, max_val)


@defines(F.relu6)
def _relu6(x: Tensor, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.hardtanh, x, 0.0, 6.0)


@defines(F.hardsigmoid)
def _hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.hardsigmoid, x)


@defines(F.hardswish)
def _hardswish(x: Tensor, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.hardswish, x)


@defines(F.elu)
def _elu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.elu, x, alpha)


@defines(F.selu)
def _selu(x: Tensor, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.selu, x)


@defines(F.celu)
def _celu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return placed(inplace, FUNCTIONS.celu, x, alpha)


@defines(F.mish)
def _mish(x: Tensor, inplace: bool = False) -> Tensor:
    return placed(inplace, lambda x: FUNCTIONS.multiply(x, FUNCTIONS.tanh(FUNCTIONS.softplus(x))), x)


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
