"""Layers that replace torch's layers in a converted model: layers with products, dropout and attention."""

from __future__ import annotations

from math import sqrt
from typing import Any
from zlib import crc32

import torch
from torch import nn

from qcore.arguments import check_seed, check_type
from qcore.linalg.product import check_products
from qcore.random.threefry import as_lane, fold_in
from qtorch import linalg
from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.modules.guard import paused, run_unguarded


def add_key(layer: nn.Module) -> None:
    """Gives a layer a buffer for its key, which is in no checkpoint."""
    if not hasattr(layer, "key"):
        layer.register_buffer("key", torch.zeros(2, dtype=torch.int32), persistent=False)


def set_key(model: nn.Module, key: int | tuple[int, int]) -> None:
    """Sets the key of this step in each stochastic layer: `fold_in(key, crc32(its dotted name))`.

    Args:
        model: a model that `convert` has converted.
        key: an int from 0 to 2^64 - 1, or two 32-bit words; a new one for each step, such as `fold_in(seed, step)`.

    Returns:
        None; the buffers `key` of these layers are changed in place.

    Raises:
        TypeError, ValueError: if model is not a module, or key is not a key.

    Example:
        >>> model = nn.Sequential(Dropout(0.5))
        >>> set_key(model, 7)
        >>> model(torch.ones(6))
        tensor([2., 2., 2., 2., 0., 2.])
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    check_seed(key)
    for name, layer in model.named_modules():
        if isinstance(getattr(layer, "key", None), torch.Tensor):
            words = fold_in(key, crc32(name.encode()))
            layer.key.copy_(torch.tensor([as_lane(word) for word in words], dtype=torch.int32))  # type: ignore[operator]


class _Products:
    """Base of layers with products; `products` and `scaling` are as in `qtorch.linalg`."""

    products: dict[str, Any]
    key: torch.Tensor
    scaling: torch.Tensor | None

    def product_arguments(self) -> dict[str, Any]:
        """The named arguments of products, with a key and a state of delayed scales where they need one."""
        key = {"key": self.key} if hasattr(self, "key") else {}
        return self.products | key | ({} if self.scaling is None else {"scaling": self.scaling})


def is_stochastic(products: dict[str, Any]) -> bool:
    """True if products need a key."""
    given = (products.get(name) for name in ("operands", "accumulator", "grad_input", "grad_weight"))
    return check_products(*given, names=("grad_input", "grad_weight")).stochastic


class Linear(_Products, linalg.Linear):
    """`qtorch.linalg.Linear` by `qtorch.reproducible.linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return run_unguarded(self._product, input)

    def _product(self, input: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS.linear(input, self.weight, self.bias, **self.product_arguments())


class _Convolution(_Products):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return run_unguarded(self._product, input)

    def _product(self, input: torch.Tensor) -> torch.Tensor:
        one: Any = self
        function = {1: FUNCTIONS.conv1d, 2: FUNCTIONS.conv2d, 3: FUNCTIONS.conv3d}[len(one.stride)]
        padding = one.padding
        if one.padding_mode != "zeros":
            input, padding = FUNCTIONS.pad(input, self._widths(), one.padding_mode), 0
        batch = input.ndim == len(one.stride) + 2
        images = input if batch else input.unsqueeze(0)
        products = self.product_arguments()
        y = function(images, one.weight, one.bias, one.stride, padding, one.dilation, one.groups, **products)
        return y if batch else y.squeeze(0)

    def _widths(self) -> list[tuple[int, int]]:
        """How much padding there is before and after each axis."""
        one: Any = self
        if one.padding == "valid":
            return [(0, 0)] * len(one.stride)
        if one.padding == "same":
            totals = [space * (size - 1) for size, space in zip(one.kernel_size, one.dilation, strict=True)]
            return [(total // 2, total - total // 2) for total in totals]
        return [(size, size) for size in one.padding]


class Conv1d(_Convolution, linalg.Conv1d):
    """`qtorch.linalg.Conv1d` by `qtorch.reproducible.conv1d`."""


class Conv2d(_Convolution, linalg.Conv2d):
    """`qtorch.linalg.Conv2d` by `qtorch.reproducible.conv2d`."""


class Conv3d(_Convolution, linalg.Conv3d):
    """`qtorch.linalg.Conv3d` by `qtorch.reproducible.conv3d`."""


class Dropout(nn.Dropout):
    """`nn.Dropout` by `qtorch.reproducible.dropout`, with the key that `set_key` sets."""

    key: torch.Tensor

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        add_key(self)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return input
        return run_unguarded(self._dropped, input)

    def _dropped(self, input: torch.Tensor) -> torch.Tensor:
        return FUNCTIONS.dropout(input, self.p, self.key)


class MultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention`: `linear`, `scaled_dot_product_attention` by heads, and `linear`.

    If query, key and value are one tensor, one product projects it to all three. Masks are torch's masks of bools.
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
        """The output, and with need_weights the weights; is_causal masks keys after the query's position."""
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
    """The mask of keys that count, from torch's masks of keys that do not count; None if all count."""
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
    """Raises ValueError if a layer has an option that `MultiheadAttention` lacks."""
    given = {
        "dropout": layer.dropout != 0,
        "add_bias_kv": layer.bias_k is not None,
        "add_zero_attn": layer.add_zero_attn,
        "kdim or vdim": layer.in_proj_weight is None,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{where} has {wrong[0]}, which has no defined bits here; allowed is the default")
