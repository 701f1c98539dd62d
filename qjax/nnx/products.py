"""Layers of flax nnx whose products have formats and accumulators (`qjax.linalg`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.accumulate.product import check_products
from qcore.formats.text import parse
from qjax.linalg import conv1d, conv2d, conv3d, linear


class _Layer:
    """What layers share: their products, as keyword arguments after flax's own, and keys for stochastic rounding."""

    def __init__(self, *arguments: Any, rngs: nnx.Rngs, **options: Any) -> None:
        names = ("operands", "accumulator", "grad_input", "grad_weight")
        products = {name: options.pop(name, None) for name in names}
        checked = check_products(*products.values(), names=names[2:])
        super().__init__(*arguments, rngs=rngs, **options)  # type: ignore[call-arg]
        forward, grad_input, grad_weight = checked.texts
        self.products = nnx.static((checked.forward.first, checked.forward.second, forward, grad_input, grad_weight))
        self.quantize_rngs = nnx.data(rngs.quantize.fork() if checked.stochastic else None)

    def _options(self) -> dict[str, Any]:
        first, second, forward, grad_input, grad_weight = self.products
        options = {"operands": (first, second), "accumulator": parse(forward).accumulator}
        key = None if self.quantize_rngs is None else self.quantize_rngs()
        return options | {"grad_input": grad_input, "grad_weight": grad_weight, "key": key}


class Linear(_Layer, nnx.Linear):
    """`nnx.Linear` by `qjax.linalg.linear`; the keyword arguments operands, accumulator, grad_input and grad_weight are
    its. Axes of blocks of the weight are those of (out, in). Stochastic rounding takes keys from "quantize" of `rngs`.

    Example:
        >>> layer = Linear(3, 2, operands=("e4m3fn", "e4m3fn"), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((4, 3))).shape
        (4, 2)
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:
        bias = None if self.bias is None else self.bias[...]
        return linear(inputs, self.kernel[...].T, bias, **self._options())


class Conv(_Layer, nnx.Conv):
    """`nnx.Conv` with one to three spatial dimensions by `qjax.linalg.conv2d` and its like; see `Linear`.

    Channels are last, as in flax; axes of blocks are those of (batch, channels, ...) and (outputs, channels, ...). The
    padding is "VALID", an int or one for each dimension.

    Example:
        >>> layer = Conv(1, 2, (3, 3), padding=1, accumulator="accumulator(float(6,9),chunk=4)", rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 4, 4, 1))).shape
        (1, 4, 4, 2)
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        dims = kernel.ndim - 2
        functions = {1: conv1d, 2: conv2d, 3: conv3d}
        if dims not in functions or self.padding in ("SAME", "CIRCULAR", "CAUSAL", "REFLECT"):
            raise ValueError(f"padding={self.padding!r}, {dims} dimensions; allowed are 'VALID', ints, and 1 to 3")
        padding: Any = 0 if self.padding == "VALID" else self.padding
        bias = None if self.bias is None else self.bias[...]
        weight = jnp.moveaxis(kernel, (-1, -2), (0, 1))
        settings: Any = (self.strides or 1, padding, self.kernel_dilation or 1, self.feature_group_count)
        y = functions[dims](jnp.moveaxis(inputs, -1, 1), weight, bias, *settings, **self._options())
        return jnp.moveaxis(y, 1, -1)
