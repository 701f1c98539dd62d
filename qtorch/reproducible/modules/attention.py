"""Attention modules of torch.nn by the functions of `qtorch.reproducible`."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import nn

from qtorch.reproducible.modules.guard import paused
from qtorch.reproducible.training import FUNCTIONS


class MultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention`: `linear`, `scaled_dot_product_attention` by heads, and `linear`.

    Where query, key and value are one tensor, one product projects it to all three. Masks are those of torch, of bools.
    """

    def forward(  # type: ignore[override]
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output, and the weights if they are asked for; is_causal masks keys after the query's position."""
        turned = query.ndim == 3 and not self.batch_first
        with paused():
            q, k, v = self._projected((query, key, value), turned)
            mask = _counting(attn_mask, key_padding_mask, self.num_heads, is_causal, q, k)
            weights = FUNCTIONS.attention_weights(q, k, mask, False, 1 / sqrt(self.head_dim))
            y = FUNCTIONS.matmul(weights, v).transpose(-3, -2).flatten(-2)
            y = FUNCTIONS.linear(y, self.out_proj.weight, self.out_proj.bias)
            y = y.transpose(0, 1) if turned else y
            if not need_weights:
                return y, None
            return y, FUNCTIONS.mean(weights, -3) if average_attn_weights else weights

    def _projected(self, given: tuple[torch.Tensor, ...], turned: bool) -> list[torch.Tensor]:
        """Queries, keys and values by heads."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        query, key, value = given
        if query is key and key is value:
            x = query.transpose(0, 1) if turned else query
            parts = FUNCTIONS.chunk(FUNCTIONS.linear(x, weight, bias), 3)
        else:
            weights = FUNCTIONS.chunk(weight, 3, 0)
            biases = (None,) * 3 if bias is None else FUNCTIONS.chunk(bias, 3, 0)
            given = tuple(x.transpose(0, 1) for x in given) if turned else given
            parts = tuple(map(FUNCTIONS.linear, given, weights, biases))
        return [x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2) for x in parts]


def _counting(attn_mask: Any, padding: Any, heads: int, is_causal: bool, q: torch.Tensor, k: torch.Tensor) -> Any:
    """Which keys count, from torch's masks of those that do not; None if all do."""
    for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
        if mask is not None and mask.dtype is not torch.bool:
            raise TypeError(f"{name} has dtype {mask.dtype}; allowed is torch.bool")
    found = None
    if is_causal:
        found = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    elif attn_mask is not None:
        found = ~(attn_mask.unflatten(0, (-1, heads)) if attn_mask.ndim == 3 else attn_mask)
    if padding is not None:
        found = ~padding[..., None, None, :] if found is None else found & ~padding[..., None, None, :]
    return found


def check_attention_layer(where: str, layer: nn.MultiheadAttention) -> None:
    """Raises ValueError for what `MultiheadAttention` has not."""
    given = {
        "dropout": layer.dropout != 0,
        "add_bias_kv": layer.bias_k is not None,
        "add_zero_attn": layer.add_zero_attn,
        "kdim or vdim": layer.in_proj_weight is None,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{where} has {wrong[0]}, which has no defined bits here; allowed is the default")
