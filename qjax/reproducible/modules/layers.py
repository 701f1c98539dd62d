"""Layers of flax nnx by the functions of `qjax.reproducible`; parameters and their layouts are flax's."""

from __future__ import annotations

from math import prod
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qcore.arguments import check_sizes
from qcore.formats.text import parse
from qcore.linalg.product import Product
from qjax._models import check_model, names_of
from qjax._rounding.keys import Key, fold_in, key_words
from qjax.linalg import share_scaling
from qjax.nnx.products import Scaling
from qjax.reproducible.functions import FUNCTIONS


class LayerKey(nnx.Variable):
    """The key of a layer in this step. It is not a parameter, and in no checkpoint."""


def new_key() -> LayerKey:
    """A variable for a key."""
    return LayerKey(jnp.zeros(2, jnp.uint32))


def set_key(model: nnx.Module, key: Key) -> None:
    """Sets the key of this step in each stochastic layer: `fold_in(key, crc32(its dotted name))`.

    Args:
        model: a result of `convert`; it is changed in place, as flax's modules are.
        key: as for `qjax.quantize`; a new one for each step, such as `fold_in(seed, step)`. It may be traced.

    Returns:
        None; the variables `key` of these layers are changed in place.

    Raises:
        TypeError, ValueError: if model is not a module, or key is not a key.

    Example:
        >>> from qjax.reproducible import convert
        >>> model = convert(nnx.Dropout(0.5))
        >>> set_key(model, 7)
        >>> model(jnp.ones(6)).tolist()
        [2.0, 2.0, 0.0, 0.0, 2.0, 0.0]
    """
    check_model("model", model)
    words: Any = jnp.asarray(key_words(key)).view(jnp.uint32)
    for name, layer in names_of(model).items():
        place = getattr(layer, "key", None)
        if isinstance(place, LayerKey):
            place[...] = fold_in(words, np.uint32(crc32(name.encode())))


def value(parameter: Any) -> Any:
    """A parameter's array, or None."""
    return None if parameter is None else parameter[...]


class _Products:
    """Base of layers with products.

    Attributes:
        products: formats of both operands and texts of the three products; None for float32.
        key: the key of stochastic products, else None.
        scaling: the state of delayed scales, or None; a derivative with respect to it is the next state.
    """

    products: Any
    key: LayerKey | None
    scaling: Scaling | None

    def product_arguments(self) -> dict[str, Any]:
        """The named arguments of products."""
        if self.products is None:
            return {}
        forward, grad_input, grad_weight = self.products
        product = parse(forward, Product)
        found = {"operands": product.operands, "accumulator": product.accumulator}
        if self.scaling is not None:  # several calls of the layer in one step share the state
            found["scaling"], self.scaling[...] = share_scaling(self.scaling[...], 2)
        return found | {"grad_input": grad_input, "grad_weight": grad_weight, "key": value(self.key)}


class Linear(_Products, nnx.Linear):
    """`nnx.Linear` by `qjax.reproducible.linear`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return FUNCTIONS.linear(inputs, self.kernel[...].T, value(self.bias), **self.product_arguments())


class LinearGeneral(_Products, nnx.LinearGeneral):
    """`nnx.LinearGeneral` of the last axes by `qjax.reproducible.linear`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:  # type: ignore[override]
        count = len(self.in_features)
        kernel = self.kernel[...].reshape((prod(self.in_features), -1))
        bias = None if self.bias is None else self.bias[...].reshape(-1)
        flat = inputs.reshape((*inputs.shape[: inputs.ndim - count], -1))
        y = FUNCTIONS.linear(flat, kernel.T, bias, **self.product_arguments())
        return y.reshape((*y.shape[:-1], *self.out_features))


class Conv(_Products, nnx.Conv):
    """`nnx.Conv` with one to three spatial dimensions by `qjax.reproducible.conv2d` and its like."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        dims = kernel.ndim - 2
        function = {1: FUNCTIONS.conv1d, 2: FUNCTIONS.conv2d, 3: FUNCTIONS.conv3d}[dims]
        batch = inputs.shape[: inputs.ndim - dims - 1]
        images = jnp.moveaxis(inputs.reshape((-1, *inputs.shape[len(batch) :])), -1, 1)
        images, padding = self._padded(images, dims)
        window: Any = (self.strides or 1, padding, self.kernel_dilation or 1, self.feature_group_count)
        weight = jnp.moveaxis(kernel, (-1, -2), (0, 1))
        y = jnp.moveaxis(function(images, weight, value(self.bias), *window, **self.product_arguments()), 1, -1)
        return y.reshape((*batch, *y.shape[1:]))

    def _padded(self, images: jax.Array, dims: int) -> tuple[jax.Array, Any]:
        """The images with the padding that a convolution does not add itself, and the padding that it adds."""
        steps = check_sizes("strides", self.strides or 1, 1, dims)
        spaces = check_sizes("kernel_dilation", self.kernel_dilation or 1, 1, dims)
        reaches = [space * (size - 1) for size, space in zip(self.kernel[...].shape, spaces, strict=False)]
        padding: Any = self.padding
        if padding in ("CIRCULAR", "REFLECT"):
            widths = [(reach // 2, reach - reach // 2) for reach in reaches]
            return FUNCTIONS.pad(images, widths, padding.lower()), 0
        if padding in ("SAME", "SAME_LOWER"):
            totals = [
                max((-(-length // step) - 1) * step + reach + 1 - length, 0)
                for length, step, reach in zip(images.shape[2:], steps, reaches, strict=True)
            ]
            odd = int(padding == "SAME_LOWER")
            pairs = [((total + odd) // 2, total - (total + odd) // 2) for total in totals]
        elif padding == "CAUSAL":
            pairs = [(reaches[0], 0)]
        elif padding == "VALID":
            pairs = [(0, 0)] * dims
        else:
            given = padding if isinstance(padding, tuple | list) else (padding,) * dims
            pairs = [tuple(one) if isinstance(one, tuple | list) else (one, one) for one in given]
        if all(before == after for before, after in pairs):
            return images, tuple([before for before, _ in pairs])
        return FUNCTIONS.pad(images, pairs), 0


class BatchNorm(nnx.BatchNorm):
    """`nnx.BatchNorm` by `qjax.reproducible.batch_norm`; the running variance is the unbiased one, as in torch."""

    def __call__(self, x: jax.Array, use_running_average: bool | None = None) -> jax.Array:  # type: ignore[override]
        x, parameters = jnp.moveaxis(x, -1, 1), (value(self.scale), value(self.bias))
        fixed = self.use_running_average if use_running_average is None else use_running_average
        if fixed:
            y = FUNCTIONS.normalize(x, self.mean[...], self.var[...], *parameters, self.epsilon)
            return jnp.moveaxis(y, 1, -1)
        y, *statistics = FUNCTIONS.batch_norm(x, *parameters, self.epsilon)
        for running, new in zip((self.mean, self.var), statistics, strict=True):
            running[...] = FUNCTIONS.moving_average(running[...], jax.lax.stop_gradient(new), 1 - self.momentum)
        return jnp.moveaxis(y, 1, -1)


class LayerNorm(nnx.LayerNorm):
    """`nnx.LayerNorm` of the last axis by `qjax.reproducible.layer_norm`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.layer_norm(x, value(self.scale), value(self.bias), -1, self.epsilon)


class RMSNorm(nnx.RMSNorm):
    """`nnx.RMSNorm` of the last axis by `qjax.reproducible.rms_norm`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.rms_norm(x, value(self.scale), -1, self.epsilon)


class Embed(nnx.Embed):
    """`nnx.Embed` by `qjax.reproducible.embedding`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.embedding(inputs, self.embedding[...])


class Dropout(nnx.Dropout):
    """`nnx.Dropout` by `qjax.reproducible.dropout`, with the key that `set_key` sets."""

    key: LayerKey

    def __call__(self, inputs: jax.Array, *, deterministic: bool | None = None) -> jax.Array:  # type: ignore[override]
        still = self.deterministic if deterministic is None else deterministic
        return inputs if still else FUNCTIONS.dropout(inputs, self.rate, self.key[...])


class GroupNorm(nnx.GroupNorm):
    """`nnx.GroupNorm` by `qjax.reproducible.group_norm`."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        y = FUNCTIONS.group_norm(
            jnp.moveaxis(x, -1, 1), self.num_groups, value(self.scale), value(self.bias), self.epsilon
        )
        return jnp.moveaxis(y, 1, -1)


class InstanceNorm(nnx.InstanceNorm):
    """`nnx.InstanceNorm` by `qjax.reproducible.group_norm`, with one group for each feature."""

    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]
        y = FUNCTIONS.group_norm(
            jnp.moveaxis(x, -1, 1), self.num_features, value(self.scale), value(self.bias), self.epsilon
        )
        return jnp.moveaxis(y, 1, -1)


class PReLU(nnx.PReLU):
    """`nnx.PReLU` by `qjax.reproducible.prelu`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:  # type: ignore[override]
        return FUNCTIONS.prelu(inputs, self.negative_slope[...].reshape(1))


class MultiHeadAttention(nnx.MultiHeadAttention):
    """`nnx.MultiHeadAttention`: `linear`, `scaled_dot_product_attention` by heads, and `linear`.

    Where query, key and value are one array, one product projects it to all three.
    """

    def __call__(  # type: ignore[override]
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """The output.

        Args:
            inputs_q, inputs_k, inputs_v: as for flax's.
            mask: array of bools that broadcasts to (..., heads, L, S), True where a key counts.
            is_causal: True masks keys after the query's position.
        """
        inputs_k = inputs_q if inputs_k is None else inputs_k
        inputs_v = inputs_k if inputs_v is None else inputs_v
        if is_causal:
            causal = jnp.tri(inputs_q.shape[-2], inputs_k.shape[-2], dtype=bool)
            mask = causal if mask is None else mask & causal
        heads = [self._heads(x) for x in self._projected(inputs_q, inputs_k, inputs_v)]
        y = FUNCTIONS.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask)
        y = y.swapaxes(-3, -2).reshape(*inputs_q.shape[:-1], -1)
        weight, bias = self.out.kernel[...], self.out.bias
        return FUNCTIONS.linear(y, weight.reshape(y.shape[-1], -1).T, None if bias is None else bias[...])

    def _projected(self, *given: jax.Array) -> Any:
        layers = (self.query, self.key, self.value)
        weights = [layer.kernel[...].reshape(self.in_features, -1).T for layer in layers]
        biases: Any = [None if layer.bias is None else layer.bias[...].reshape(-1) for layer in layers]
        if given[0] is given[1] and given[1] is given[2]:
            bias = None if biases[0] is None else jnp.concatenate(biases)
            return FUNCTIONS.chunk(FUNCTIONS.linear(given[0], jnp.concatenate(weights), bias), 3)
        return map(FUNCTIONS.linear, given, weights, biases)

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, -1).swapaxes(-3, -2)


def check_attention_layer(where: str, layer: nnx.MultiHeadAttention) -> None:
    """Raises ValueError if a layer has an option that `MultiHeadAttention` lacks."""
    features = {layer.in_features, layer.qkv_features, layer.out_features, layer.in_kv_features}
    given = {
        "dropout_rate": layer.dropout_rate != 0,
        "normalize_qk": layer.normalize_qk,
        "decode": bool(layer.decode),
        "num_kv_heads": layer.num_kv_heads != layer.num_heads,
        "features of several sizes": len(features) > 1,
        "attention_fn": layer.attention_fn is not nnx.dot_product_attention,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise ValueError(f"{where} has {wrong[0]}, which has no defined bits here; allowed is the default")
