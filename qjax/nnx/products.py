"""Layers of flax nnx whose products have formats and accumulators (`qjax.linalg`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from qcore.arguments import check_flag, check_size, check_type, quoted
from qcore.formats.text import parse
from qcore.linalg.product import Product, Products, check_products
from qjax.linalg import conv1d, conv2d, conv3d, first_scaling, linear, scaled_dot_product_attention, share_scaling

_FIELDS = ("operands", "accumulator")
_OF_LAYERS, _OF_MATRICES = ("grad_input", "grad_weight"), ("grad_a", "grad_b")


def _check(options: dict[str, Any], gradients: tuple[str, str]) -> Products:
    """The products that keyword arguments describe; `gradients` are the names of the gradients' arguments."""
    names = (*_FIELDS, *gradients)
    unknown = set(options) - set(names)
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))} is given; allowed are {', '.join(names)}")
    return check_products(*(options.get(name) for name in names), names=gradients)


def _frozen(products: Products) -> tuple[Any, ...]:
    """The products as a hashable tuple, which a graph definition can hold."""
    return products.forward.first, products.forward.second, *products.texts


def _options(frozen: tuple[Any, ...], gradients: tuple[str, str]) -> dict[str, Any]:
    """The keyword arguments of products from `_frozen`."""
    first, second, forward, grad_a, grad_b = frozen
    options = {"operands": (first, second), "accumulator": parse(forward, Product).accumulator}
    return options | dict(zip(gradients, (grad_a, grad_b), strict=True))


class Scaling(nnx.Variable):
    """The state of a layer's delayed scales; a derivative with respect to it is the next state.

    Example:
        >>> kept = "operand(e5m2,scale=scale(history=2))"
        >>> layer = Linear(3, 2, operands=(kept, kept), rngs=nnx.Rngs(0))
        >>> state = nnx.DiffState(0, (nnx.Param, Scaling))
        >>> step = nnx.jit(nnx.grad(lambda layer: layer(2 * jnp.ones((4, 3))).sum(), argnums=state))
        >>> found = step(layer)
        >>> nnx.update(layer, nnx.filter_state(found, Scaling))
        >>> layer.scaling[0, 1:]
        Array([2., 0.], dtype=float32)
    """


class _Layer:
    """The base of layers: keyword arguments of products after flax's own, delayed scales, and keys for rounding."""

    def __init__(self, *arguments: Any, rngs: nnx.Rngs, **options: Any) -> None:
        names = (*_FIELDS, *_OF_LAYERS)
        checked = _check({name: options.pop(name) for name in names if name in options}, _OF_LAYERS)
        check_type("rngs", rngs, nnx.Rngs, "an nnx.Rngs")
        super().__init__(*arguments, rngs=rngs, **options)  # type: ignore[call-arg]
        self.products = nnx.static(_frozen(checked))
        self.scaling = nnx.data(None if checked.history is None else Scaling(first_scaling(checked.history).array))
        self.quantize_rngs = nnx.data(rngs.quantize.fork() if checked.stochastic else None)

    def _options(self) -> dict[str, Any]:
        key = None if self.quantize_rngs is None else self.quantize_rngs()
        scaling = None
        if self.scaling is not None:  # several calls of the layer in one step share the state
            scaling, self.scaling[...] = share_scaling(self.scaling[...], 2)
        return _options(self.products, _OF_LAYERS) | {"key": key, "scaling": scaling}


class Linear(_Layer, nnx.Linear):
    """`nnx.Linear` computed by `qjax.linalg.linear`.

    Block axes of the weight refer to the shape (out, in).

    Args:
        arguments, options: as for `nnx.Linear`; and operands, accumulator, grad_input and grad_weight, as for
            `qjax.linalg.linear`.
        rngs: random numbers for the weights; its stream "quantize" gives the keys of stochastic rounding.

    Example:
        >>> layer = Linear(3, 2, operands=("e4m3fn", "e4m3fn"), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((4, 3))).shape
        (4, 2)
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:
        bias = None if self.bias is None else self.bias[...]
        return linear(inputs, self.kernel[...].T, bias, **self._options())


class Conv(_Layer, nnx.Conv):
    """`nnx.Conv` with one to three spatial dimensions, computed by `qjax.linalg.conv1d`, `conv2d` or `conv3d`.

    Channels are last, as in flax. Block axes refer to the shapes (batch, channels, ...) and (outputs, channels, ...).

    Args:
        arguments, options: as for `nnx.Conv`, with the padding "VALID", an int or one for each dimension; and operands,
            accumulator, grad_input and grad_weight, as for `qjax.linalg.conv2d`.
        rngs: as for `Linear`.

    Example:
        >>> sums = "accumulator(float(6,9),chunk=4)"
        >>> layer = Conv(1, 2, (3, 3), padding=1, accumulator=sums, rngs=nnx.Rngs(0))
        >>> nnx.jit(lambda layer, x: layer(x))(layer, jnp.ones((1, 4, 4, 1))).shape
        (1, 4, 4, 2)
    """

    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        dims = kernel.ndim - 2
        functions = {1: conv1d, 2: conv2d, 3: conv3d}
        if dims not in functions or self.padding in ("SAME", "CIRCULAR", "CAUSAL", "REFLECT"):
            raise ValueError(
                f"padding={quoted(self.padding)}, {dims} dimensions; allowed are 'VALID', ints, and 1 to 3"
            )
        padding: Any = 0 if self.padding == "VALID" else self.padding
        bias = None if self.bias is None else self.bias[...]
        weight = jnp.moveaxis(kernel, (-1, -2), (0, 1))
        settings: Any = (self.strides or 1, padding, self.kernel_dilation or 1, self.feature_group_count)
        y = functions[dims](jnp.moveaxis(inputs, -1, 1), weight, bias, *settings, **self._options())
        return jnp.moveaxis(y, 1, -1)


class MultiheadAttention(nnx.Module):
    """Multi-head attention whose products have formats and accumulators; it has the bits of qtorch's module.

    Its projections are `Linear` layers, the rest is `qjax.linalg.scaled_dot_product_attention`. Stochastic rounding
    takes keys from "quantize" of `rngs`.

    Args:
        num_heads: the number of heads into which the features are split.
        in_features: the length of the last axis of inputs and outputs.
        use_bias: True adds biases to the projections.
        linear: keyword arguments of `qjax.linalg.linear` for the four projections, as a dictionary.
        scores, output: as for `scaled_dot_product_attention`.
        rngs: for the weights, and keys.

    Example:
        >>> layer = MultiheadAttention(2, 8, linear={"operands": ("e4m3fn", "e4m3fn")}, rngs=nnx.Rngs(0))
        >>> attend = nnx.jit(lambda layer, x: layer(x, is_causal=True))
        >>> attend(layer, jnp.ones((1, 3, 8))).shape
        (1, 3, 8)
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        use_bias: bool = True,
        *,
        linear: dict[str, object] | None = None,
        scores: dict[str, object] | None = None,
        output: dict[str, object] | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_size("num_heads", num_heads)
        check_size("in_features", in_features)
        check_flag("use_bias", use_bias)
        for name, settings in (("linear", linear), ("scores", scores), ("output", output)):
            check_type(name, settings, dict | None, "a dictionary")
        check_type("rngs", rngs, nnx.Rngs, "an nnx.Rngs")
        if in_features % num_heads:
            raise ValueError(f"num_heads={num_heads}; allowed is a divisor of in_features={in_features}")
        checked = [_check(options or {}, _OF_MATRICES) for options in (scores, output)]
        _check(linear or {}, _OF_LAYERS)
        options: dict[str, Any] = {"use_bias": use_bias, "rngs": rngs, **(linear or {})}
        self.query, self.key, self.value, self.out = (Linear(in_features, in_features, **options) for _ in range(4))
        self.num_heads = num_heads
        self.products = nnx.static(tuple(map(_frozen, checked)))
        stochastic = any(products.stochastic for products in checked)
        self.quantize_rngs = nnx.data(rngs.quantize.fork() if stochastic else None)

    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """The output, of shape (..., L, in_features).

        Args:
            inputs_q: of shape (..., L, in_features).
            inputs_k: of shape (..., S, in_features); None is inputs_q.
            inputs_v: of the shape of inputs_k; None is inputs_k.
            mask: bool array that broadcasts to (..., heads, L, S), True where a key counts, or float32 array that is
                added to the scores.
            is_causal: True masks keys after the query's position.
        """
        inputs_k = inputs_q if inputs_k is None else inputs_k
        inputs_v = inputs_k if inputs_v is None else inputs_v
        pairs = ((self.query, inputs_q), (self.key, inputs_k), (self.value, inputs_v))
        heads = [self._heads(layer(x)) for layer, x in pairs]
        key = None if self.quantize_rngs is None else self.quantize_rngs()
        scores, output = (_options(products, _OF_MATRICES) for products in self.products)
        options: dict[str, Any] = {"scores": scores, "output": output, "rounding_key": key}
        found = scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, is_causal, **options)
        return self.out(found.swapaxes(-3, -2).reshape(inputs_q.shape))

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, -1).swapaxes(-3, -2)
