"""Keys of layers that are stochastic, by the layers' names."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import jax.numpy as jnp
import numpy as np
from flax import nnx

from qjax._models.tree import check_model, names_of
from qjax._rounding.keys import Key, fold_in, key_words


class LayerKey(nnx.Variable):
    """The key of a layer in this step; no parameter, and in no checkpoint."""


def new_key() -> LayerKey:
    """The place of a key."""
    return LayerKey(jnp.zeros(2, jnp.uint32))


def set_key(model: nnx.Module, key: Key) -> None:
    """Gives each layer that is stochastic the key of this step: `fold_in(key, crc32(its dotted name))`.

    Args:
        model: what `convert` made; it is changed, as flax's modules are.
        key: as for `qjax.quantize`; another one for each step, say `fold_in(seed, step)`. It may be traced.

    Returns:
        Nothing; the variables `key` of these layers are changed in place.

    Raises:
        TypeError, ValueError: if model is no module, or key is none.

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
