"""What models need besides arithmetic, as functions of JAX arrays."""

from __future__ import annotations

from typing import Any

import jax

from qcore.reproducible.training.products import ProductFunctions
from qjax import linalg
from qjax._rounding.keys import key_words
from qjax.reproducible.call import Arrays


class TrainingArrays(Arrays, ProductFunctions):
    """JAX's."""

    linalg = linalg

    def key_words(self, key: Any) -> jax.Array:
        return key_words(key)


FUNCTIONS = TrainingArrays()
