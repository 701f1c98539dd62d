"""Attention of engines on tensors."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from qcore.arguments import check_flag, check_float, check_size, check_type
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
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
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
        window: the number of keys that a query sees, the last of them its own; None is all.
        softcap: a bound of scores; None is none.
        sinks: tensor of shape (heads,): for each head one more score, which has no value; None is none.

    Returns:
        A tensor of q's shape and dtype. Queries without keys have zeros.

    Raises:
        ValueError: if shapes do not fit, or the engine does not know tiles for this head size, windows, soft caps or
            sinks.
        NotImplementedError: for second derivatives, and those of forward mode.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 97, 128, generator=torch.Generator().manual_seed(0))
        >>> step, whole = attention(q[:, :, -1:], k, v, "exact"), attention(q, k, v, "exact")
        >>> bool((step == whole[:, :, -1:]).all())
        True
    """
    given: dict[str, torch.Tensor] = {"q": q, "k": k, "v": v}
    given |= {name: x for name, x in (("mask", mask), ("sinks", sinks)) if x is not None}
    for name, x in given.items():
        check_type(name, x, torch.Tensor, "a torch.Tensor")
        check_dense(name, x)
        check_not_sharded(x, name)
    check_type("engine", engine, Engine | str, "an Engine, its text, or a name such as 'fa3.hopper.fp8'")
    check_flag("causal", causal)
    if scale is not None:
        scale = check_float("scale", literal(scale), "a finite number", isfinite)
    text = literal(engine if isinstance(engine, str) else engine.text)
    if softcap is not None:
        softcap = check_float("softcap", softcap, "a number above 0", lambda x: x > 0)
    if window is not None:
        check_size("window", window)
    differentiated = any(is_differentiated(x) for x in (q, k, v, *([] if sinks is None else [sinks])))
    run = _Attention.apply if differentiated else torch.ops.qtorch.attention
    return run(*apart(q, k, v), mask, sinks, text, causal, scale, window, softcap)


class _Attention(torch.autograd.Function):
    """(q, k, v, mask, sinks, the engine's text, causal, scale, window, softcap) -> attention."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> torch.Tensor:
        return torch.ops.qtorch.attention(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.call = inputs[5:]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        refuse_recording(gradient)
        run = torch.ops.qtorch.attention_gradients if torch.compiler.is_dynamo_compiling() else _Gradients.apply
        of_q, of_k, of_v, of_sinks = run(*ctx.saved_tensors, gradient, *ctx.call)
        sinks = None if ctx.saved_tensors[4] is None else of_sinks
        return of_q, of_k, of_v, None, sinks, *[None] * len(ctx.call)


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
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor | None, *call: Any
) -> torch.Tensor:
    """`qtorch::attention`, which compiled programs hold."""
    known = check_call(q, k, v, mask, sinks, *call)
    return Attending.one_nan(attend(Attending, q, k, v, mask, sinks, known))


def attention_shape(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, sinks: Any, *call: Any) -> Any:
    """A tensor of the result's shape. Sizes that are known are checked; others are when the program runs."""
    if all(type(size) is int for x in (q, k, v) for size in x.shape):
        check_call(q, k, v, mask, sinks, *call)
    return q.new_empty((*q.shape[:3], v.shape[3]))


def run_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    gradient: torch.Tensor,
    *call: Any,
) -> tuple[torch.Tensor, ...]:
    """`qtorch::attention_gradients`; without sinks theirs is empty."""
    known = check_call(q, k, v, mask, sinks, *call)
    found = gradients(Attending, q, k, v, mask, sinks, gradient, known)
    return tuple(q.new_empty(0) if x is None else Attending.one_nan(x) for x in found)


def gradients_shape(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, sinks: Any, *others: Any
) -> tuple[torch.Tensor, ...]:
    """Tensors of the gradients' shapes."""
    return *(x.new_empty(x.shape) for x in (q, k, v)), q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)
