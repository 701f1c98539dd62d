"""Layers of torch.nn whose products have formats and accumulators; parameters and state are torch's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from qcore.arguments import check_flag, check_size
from qcore.linalg.product import LayerArguments, ProductArguments, Products, check_products
from qcore.report import short_product
from qtorch._states import apply_but_states, keep_states
from qtorch._torch_internals import Unscripted
from qtorch.linalg.attention import scaled_dot_product_attention, settings_of
from qtorch.linalg.call import first_scaling
from qtorch.linalg.convolutions import conv1d, conv2d, conv3d, padding_sizes
from qtorch.linalg.matrices import linear

_STATES = ("scaling",)
_NAMES = ("operands", "accumulator", "grad_input", "grad_weight")


class _Layer(Unscripted):
    """The base of the layers: their products are keyword arguments after torch's own.

    Attributes:
        products: operands, accumulator, grad_input and grad_weight, as for `linear`.
        scaling: a buffer, the state of delayed scales, which backward passes advance; None without delayed scales.
            Checkpoints without it can be loaded.
    """

    products: dict[str, Any]
    scaling: torch.Tensor | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        products = {name: options.pop(name) for name in _NAMES if name in options}
        _check(products)
        super().__init__(*arguments, **options)
        self.set_products(products)

    def set_products(self, products: dict[str, Any]) -> None:
        """Gives the layer its products, and the state that they need."""
        self.products = products
        history = _check(products).history
        device = self.weight.device  # type: ignore[attr-defined]
        scaling = None if history is None else first_scaling(history, device)
        self.register_buffer("scaling", scaling)  # type: ignore[attr-defined]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        keep_states(self, _STATES, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)  # type: ignore[misc]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return apply_but_states(self, _STATES, super()._apply, fn, recurse)  # type: ignore[misc]

    def reset_parameters(self) -> None:
        """Initializes parameters as torch's layer does, and the state of delayed scales: all that `to_empty` leaves."""
        super().reset_parameters()  # type: ignore[misc]
        reset_states(self, _STATES)

    def extra_repr(self) -> str:
        shown = short_product(products_of(self).forward)
        return f"{super().extra_repr()}, products={shown}"  # type: ignore[misc]


def reset_states(layer: Any, names: Iterable[str]) -> None:
    """Initializes states of delayed scales; a layer without products has no states yet."""
    with torch.no_grad():
        for name in names:
            if (state := getattr(layer, name, None)) is not None:
                state.copy_(first_scaling(state.shape[1] - 1))


def products_of(layer: Any) -> Products:
    """The products of a layer: forward, and of the gradients of its input and its weight."""
    return _check(layer.products)


def _check(products: Mapping[str, Any]) -> Products:
    return check_products(*(products.get(name) for name in _NAMES), names=("grad_input", "grad_weight"))


class Linear(_Layer, torch.nn.Linear):
    """`torch.nn.Linear` by `linear`.

    Args:
        arguments, options: as for `torch.nn.Linear`; and operands, accumulator, grad_input and grad_weight, as for
            `linear`.

    Example:
        >>> layer = Linear(3, 2, operands=("e4m3fn", "e4m3fn"), grad_input="product(e5m2,e4m3fn)")
        >>> layer(torch.ones(4, 3)).shape
        torch.Size([4, 2])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if isinstance(input, torch.Tensor) and input.dim() == 1:  # a batch of one: blocks may lie along examples
            return self.forward(input[None])[0]
        return linear(input, self.weight, self.bias, **self.products, scaling=self.scaling)


class _Convolution(_Layer):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        one: Any = self
        function = {1: conv1d, 2: conv2d, 3: conv3d}[len(one.stride)]
        padding = one.padding
        if one.padding_mode != "zeros":
            sizes = padding_sizes(padding, one.kernel_size, one.dilation)
            input, padding = torch.nn.functional.pad(input, sizes, one.padding_mode), 0
        settings = one.stride, padding, one.dilation, one.groups
        return function(input, one.weight, one.bias, *settings, **self.products, scaling=self.scaling)


class Conv1d(_Convolution, torch.nn.Conv1d):
    """`torch.nn.Conv1d` by `conv1d`.

    Args:
        arguments, options: as for `torch.nn.Conv1d`; and operands, accumulator, grad_input and grad_weight, as for
            `conv1d`.

    Example:
        >>> layer = Conv1d(1, 2, 3, padding=1, operands=("e4m3fn", "e4m3fn"))
        >>> layer(torch.ones(1, 1, 4)).shape
        torch.Size([1, 2, 4])
    """


class Conv2d(_Convolution, torch.nn.Conv2d):
    """`torch.nn.Conv2d` by `conv2d`.

    Args:
        arguments, options: as for `torch.nn.Conv2d`; and operands, accumulator, grad_input and grad_weight, as for
            `conv2d`.

    Example:
        >>> from qtorch import Accumulator
        >>> layer = Conv2d(1, 2, 3, padding=1, accumulator=Accumulator("float(6,9)", chunk=4))
        >>> layer(torch.ones(1, 1, 4, 4)).shape
        torch.Size([1, 2, 4, 4])
    """


class Conv3d(_Convolution, torch.nn.Conv3d):
    """`torch.nn.Conv3d` by `conv3d`.

    Args:
        arguments, options: as for `torch.nn.Conv3d`; and operands, accumulator, grad_input and grad_weight, as for
            `conv3d`.

    Example:
        >>> layer = Conv3d(1, 2, 3, padding=1, operands=("e4m3fn", "e4m3fn"))
        >>> layer(torch.ones(1, 1, 4, 4, 4)).shape
        torch.Size([1, 2, 4, 4, 4])
    """


class MultiheadAttention(Unscripted, torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` by `linear` and `scaled_dot_product_attention`.

    Args:
        embed_dim, num_heads, bias, batch_first: as for torch's module. There is no dropout; keys and values have
            embed_dim features.
        linear: keyword arguments of `linear` for the four projections, as a dictionary.
        scores, output: as for `scaled_dot_product_attention`.

    Example:
        >>> layer = MultiheadAttention(8, 2, linear={"operands": ("e4m3fn", "e4m3fn")})
        >>> x = torch.ones(1, 3, 8)
        >>> layer(x, x, x, is_causal=True)[0].shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        batch_first: bool = True,
        *,
        linear: LayerArguments | None = None,
        scores: ProductArguments | None = None,
        output: ProductArguments | None = None,
    ) -> None:
        if check_size("embed_dim", embed_dim) % check_size("num_heads", num_heads):
            raise ValueError(f"embed_dim={embed_dim} with num_heads={num_heads}; allowed are multiples of num_heads")
        check_flag("bias", bias)
        check_flag("batch_first", batch_first)
        super().__init__(embed_dim, num_heads, bias=bias, batch_first=batch_first)
        self.linear: LayerArguments = settings_of("linear", linear)
        self.scores: ProductArguments = settings_of("scores", scores)
        self.output: ProductArguments = settings_of("output", output)
        _check(self.linear)

    def forward(  # type: ignore[override]
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """The output, and None: weights are not returned. Masks of bools are True where a key does not count."""
        if need_weights or key_padding_mask is not None:
            raise ValueError("need_weights or key_padding_mask is given; allowed are False and None")
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        parts = zip((query, key, value), weights, biases, strict=True)
        heads = [self._heads(linear(x, weight, bias, **self.linear)) for x, weight, bias in parts]
        if isinstance(attn_mask, torch.Tensor) and attn_mask.dtype is torch.bool:
            attn_mask = ~attn_mask  # torch's module and torch's function mean opposite things by True
        mask = None if is_causal else attn_mask
        options: dict[str, Any] = {"scores": self.scores, "output": self.output}
        found = scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, is_causal, **options)
        found = found.transpose(-3, -2).flatten(-2)
        found = linear(found, self.out_proj.weight, self.out_proj.bias, **self.linear)
        return (found if self.batch_first else found.transpose(0, 1)), None

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)
