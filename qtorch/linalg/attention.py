"""Attention whose two products have defined accumulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from qcore.arguments import check_type
from qcore.linalg.attention import check_attention, check_mask, softmax, softmax_gradient
from qcore.linalg.product import ProductArguments
from qtorch._rounding.dense import check_dense
from qtorch._rounding.gradients import refuse_recording
from qtorch._rounding.keys import Key, fold_in, key_tensor
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import check_one_tangent
from qtorch.linalg.call import check_operand, in_float32
from qtorch.linalg.matrices import matmul
from qtorch.linalg.namespace import Float64


class _Softmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(scores: torch.Tensor) -> torch.Tensor:
        return softmax(Float64, scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        refuse_recording(gradient)
        return _derivative(ctx.saved_tensors[0], gradient)


class _WithTangent(_Softmax):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(inputs[0])  # a saved output has no tangent, so `jvp` computes the output from the input

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        check_one_tangent()
        return _derivative(_WithTangent.apply(ctx.saved_tensors[0]), tangent)


class _Derivative(torch.autograd.Function):
    """(y, v) -> the derivative of softmax with the result y, which is a symmetric matrix, times v."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return softmax_gradient(Float64, y, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, Any]:  # type: ignore[override]
        y, v = ctx.saved_tensors
        along = (y * gradient).sum(-1, keepdim=True)
        return gradient * (v - (y * v).sum(-1, keepdim=True)) - v * along, _derivative(y, gradient)

    @staticmethod
    def jvp(ctx: Any, of_y: torch.Tensor, of_v: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        check_one_tangent()
        y, v = ctx.saved_tensors
        found = torch.zeros_like(y) if of_v is None else _derivative(y, of_v)
        if of_y is None:
            return found
        return found + of_y * (v - (y * v).sum(-1, keepdim=True)) - y * (of_y * v).sum(-1, keepdim=True)


def _derivative(y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    # A Function of its own where gradients of gradients may be asked for: the law itself has no derivative.
    recorded = torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling()
    return _Derivative.apply(y, v) if recorded else softmax_gradient(Float64, y, v)


@in_float32
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    scores: ProductArguments | None = None,
    output: ProductArguments | None = None,
    rounding_key: Key = None,
) -> torch.Tensor:
    """softmax(scale * query @ key^T + mask) @ value, whose two products and their gradients are `matmul`s.

    The query is multiplied with the scale in float32 first. Softmax takes the exponential in float64, rounds it to
    float32, sums in float64 by halves, and divides; each result is rounded to float32.

    Args:
        query: float32 tensor of shape (..., L, E).
        key: float32 tensor of shape (..., S, E), with query's leading dimensions.
        value: float32 tensor of shape (..., S, V), with the same.
        attn_mask: bool tensor that broadcasts to (..., L, S), True where a key counts, or float32 tensor that is added
            to the scores; or None.
        is_causal: True masks keys after the query's position.
        scale: None is 1 / sqrt(E).
        scores, output: keyword arguments of the two `matmul`s as dictionaries: operands, accumulator, grad_a, grad_b.
        rounding_key: for stochastic rounding, see `matmul`; the scores have `fold_in(rounding_key, 1)`, the output
            `fold_in(rounding_key, 2)`.

    Returns:
        A float32 tensor of shape (..., L, V).

    Raises:
        ValueError: if shapes do not fit, or an argument is out of range.

    Example:
        >>> x = torch.eye(2)
        >>> scaled_dot_product_attention(
        ...     x, x, x, is_causal=True, scores={"operands": ("e4m3fn", "e4m3fn")}
        ... )[0]
        tensor([1., 0.])
    """
    of_scores: ProductArguments = settings_of("scores", scores)
    of_output: ProductArguments = settings_of("output", output)
    keys = _keys(rounding_key)

    def multiply_scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return matmul(query, key.mT, **of_scores, key=keys[0])

    def multiply_output(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return matmul(weights, value, **of_output, key=keys[1])

    return attention(query, key, value, attn_mask, is_causal, scale, multiply_scores, multiply_output)


Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    scores: Multiply,
    output: Multiply,
    dropout_p: float = 0.0,
) -> torch.Tensor:
    """`scaled_dot_product_attention` with any two products.

    `scores` computes query @ key^T from the scaled query, `output` weights @ value. `dropout_p` is the probability with
    which a weight becomes zero.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_operand(name, x)
    if isinstance(attn_mask, torch.Tensor):
        check_dense("attn_mask", attn_mask)
    factor = check_attention(tuple(query.shape), tuple(key.shape), tuple(value.shape), attn_mask, is_causal, scale)
    check_mask(attn_mask, tuple(query.shape), tuple(key.shape))
    # The scale goes to the query, which is rounded once for it; the law has no step between scores and mask.
    found = scores(query * factor, key)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        found = found.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        found = found + attn_mask
    apply = _Softmax.apply if torch.compiler.is_dynamo_compiling() else _WithTangent.apply
    weights = apply(found)
    return output(torch.nn.functional.dropout(weights, dropout_p) if dropout_p else weights, value)


def settings_of(name: str, settings: Any) -> Any:
    """Checks keyword arguments of a product; None is an empty dictionary."""
    settings = {} if settings is None else settings
    check_type(name, settings, Mapping, "a dict")
    return settings


def _keys(key: Key) -> tuple[Any, Any]:
    if key is None:
        return None, None
    words = key_tensor(key, "rounding_key")
    plain = is_plain_tensor(words)
    return fold_in(words, 1, plain), fold_in(words, 2, plain)
