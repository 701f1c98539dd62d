"""Attention of engines on tensors."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from qcore.arguments import check_flag, check_float, check_type
from qcore.engines.arrays import check_call
from qcore.engines.engine import Engine, EngineLike
from qcore.engines.law import attend, gradients
from qcore.reproducible.operations import SMALLEST
from qtorch._rounding.cache import literal
from qtorch._rounding.dense import check_dense
from qtorch._rounding.dispatch import quantize
from qtorch._rounding.gradients import apart, is_differentiated, refuse_recording
from qtorch._rounding.sharded import check_not_sharded
from qtorch.linalg.call import in_float32
from qtorch.linalg.matrices import matmul
from qtorch.reproducible.operations import Names


class Attending(Names):
    """The array namespace of attention."""

    exp2 = staticmethod(torch.exp2)

    @staticmethod
    def settled_positive(x: torch.Tensor) -> torch.Tensor:
        """In one pass over memory; of negative numbers it would lose the sign."""
        return torch.nn.functional.hardshrink(x, SMALLEST)

    @staticmethod
    def multiply(a: Any, b: Any, c: Any, operands: Any, accumulator: Any) -> torch.Tensor:
        return matmul(a, b, c, operands=operands, accumulator=accumulator)

    @staticmethod
    def quantized(x: Any, number: Any) -> torch.Tensor:
        return quantize(x, number)


@in_float32
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    engine: EngineLike,
    causal: bool = True,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention as an engine computes it: softmax(scale q k^T) v, of keys and values that passed its cache.

    It has the bits of `qcore.engines.attention`, which says more, eagerly and in programs of `torch.compile`. Its
    gradients are those of exact attention at the rounded operands: straight through all roundings, with the bits of
    `qjax.engines`. They have no derivatives.

    Args:
        q: float32 tensor of shape (batch, heads, queries, head size). Bfloat16 and float16 tensors, and
            `torch.autocast`, are as for products: the numbers are those of float32, and the result is rounded once.
        k: tensor of shape (batch, key heads, keys, head size).
        v: tensor of k's shape.
        engine: a name of `qcore.engines.ENGINES`, such as "fa3.hopper.fp8", an `Engine`, or its text.
        causal: True lets query i of L see the first keys - L + 1 + i keys.
        scale: of the scores, rounded to float32; None is 1 / sqrt(head size).
        mask: bools that broadcast to (batch, heads, queries, keys), True where a key counts.

    Returns:
        A tensor of q's shape and dtype. Queries without keys have zeros.

    Raises:
        ValueError: if shapes do not fit, or the engine does not know tiles for this head size.
        NotImplementedError: for second derivatives, and those of forward mode.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 97, 128, generator=torch.Generator().manual_seed(0))
        >>> step, whole = attention(q[:, :, -1:], k, v, "exact"), attention(q, k, v, "exact")
        >>> bool((step == whole[:, :, -1:]).all())
        True
    """
    given = {"q": q, "k": k, "v": v} if mask is None else {"q": q, "k": k, "v": v, "mask": mask}
    for name, x in given.items():
        check_type(name, x, torch.Tensor, "a torch.Tensor")
        check_dense(name, x)
        check_not_sharded(x, name)
    check_type("engine", engine, Engine | str, "an Engine, its text, or a name such as 'fa3.hopper.fp8'")
    check_flag("causal", causal)
    if scale is not None:
        scale = check_float("scale", scale, "a finite number", isfinite)
    text = literal(engine if isinstance(engine, str) else engine.text)
    differentiated = any(is_differentiated(x) for x in (q, k, v))
    run = _Attention.apply if differentiated else torch.ops.qtorch.attention
    return run(*apart(q, k, v), mask, text, causal, scale)


class _Attention(torch.autograd.Function):
    """(q, k, v, mask, the engine's text, causal, scale) -> attention."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Any, k: Any, v: Any, mask: Any, engine: str, causal: bool, scale: float | None) -> torch.Tensor:
        return torch.ops.qtorch.attention(q, k, v, mask, engine, causal, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.call = inputs[4:]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        refuse_recording(gradient)
        run = torch.ops.qtorch.attention_gradients if torch.compiler.is_dynamo_compiling() else _Gradients.apply
        return *run(*ctx.saved_tensors, gradient, *ctx.call), None, None, None, None


class _Gradients(torch.autograd.Function):
    """The gradients of q, k and v, which have no derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[torch.Tensor, ...]:
        return torch.ops.qtorch.attention_gradients(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError("engines.attention has no second derivatives; allowed is one backward pass")


def run_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    engine: str,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """`qtorch::attention`, which compiled programs hold."""
    call = check_call(q, k, v, mask, engine, causal, scale)
    return Attending.one_nan(attend(Attending, q, k, v, mask, call))


def attention_shape(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, *call: Any) -> torch.Tensor:
    """A tensor of the result's shape. Sizes that are known are checked; others are when the program runs."""
    if all(type(size) is int for x in (q, k, v) for size in x.shape):
        check_call(q, k, v, mask, *call)
    return q.new_empty((*q.shape[:3], v.shape[3]))


def run_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    gradient: torch.Tensor,
    engine: str,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, ...]:
    """`qtorch::attention_gradients`."""
    call = check_call(q, k, v, mask, engine, causal, scale)
    return tuple(Attending.one_nan(x) for x in gradients(Attending, q, k, v, mask, gradient, call))


def gradients_shape(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    """Tensors of the gradients' shapes."""
    return tuple(x.new_empty(x.shape) for x in (q, k, v))
