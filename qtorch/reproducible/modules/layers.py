"""Layers that need more than torch's functions say: products of recipes, and keys of random numbers."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import torch
from torch import nn

from qcore.arguments import check_type
from qcore.linalg.product import check_products
from qcore.random.keys import fold_in
from qcore.random.threefry import as_lane
from qtorch import linalg
from qtorch.reproducible.modules.guard import run_unguarded
from qtorch.reproducible.training import FUNCTIONS


def add_key(layer: nn.Module) -> None:
    """Gives a layer the place of its key; a checkpoint does not have it."""
    if not hasattr(layer, "key"):
        layer.register_buffer("key", torch.zeros(2, dtype=torch.int32), persistent=False)


def set_key(model: nn.Module, key: int | tuple[int, int]) -> None:
    """Gives each layer that is stochastic the key of this step: `fold_in(key, crc32(its dotted name))`.

    Args:
        model: what `convert` made.
        key: an int from 0 to 2^64 - 1, or two 32-bit words; another one for each step, say `fold_in(seed, step)`.

    Returns:
        Nothing; the buffers `key` of these layers are changed in place.

    Raises:
        TypeError, ValueError: if model is no module, or key is none.

    Example:
        >>> model = nn.Sequential(Dropout(0.5))
        >>> set_key(model, 7)
        >>> model(torch.ones(6))
        tensor([2., 2., 2., 2., 0., 2.])
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    for name, layer in model.named_modules():
        if isinstance(getattr(layer, "key", None), torch.Tensor):
            words = fold_in(key, crc32(name.encode()))
            layer.key.copy_(torch.tensor([as_lane(word) for word in words], dtype=torch.int32))  # type: ignore[operator]


class _Products:
    """What layers with products share; `products` is as in `qtorch.linalg`."""

    products: dict[str, Any]
    key: torch.Tensor

    def product_arguments(self) -> dict[str, Any]:
        """The products, with a key where one needs it."""
        return self.products | ({"key": self.key} if hasattr(self, "key") else {})


def is_stochastic(products: dict[str, Any]) -> bool:
    """True if products need a key."""
    parts = (products.get(name) for name in ("operands", "accumulator", "grad_input", "grad_weight"))
    return check_products(*parts, names=("grad_input", "grad_weight")).stochastic


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
        y = function(
            images, one.weight, one.bias, one.stride, padding, one.dilation, one.groups, **self.product_arguments()
        )
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
