"""FlashAdamW as an optax transformation: companded moments of 8 bits, and 16-bit weights with codes of their errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from qcore.reproducible.companded import ERRORS, WEIGHT_ERROR, WEIGHT_WITH_ERROR, check_master_bits
from qjax._rounding.dispatch import quantize
from qjax._rounding.keys import Key
from qjax.optim.adam import adam_transformation
from qjax.optim.coded import CodedTransformation, Rate, Remainders
from qjax.reproducible.functions import FUNCTIONS


def _errors(bits: int) -> Remainders:
    kept = ERRORS[bits]

    def join(p: jax.Array, error: jax.Array) -> jax.Array:
        return FUNCTIONS.call(WEIGHT_WITH_ERROR, p.astype(jnp.float32), error, dtype=str(p.dtype), kept=kept)

    def split(weight: jax.Array, p: Any) -> tuple[jax.Array, jax.Array]:
        # Not by casts to and fro, which XLA drops.
        dtype = str(p.dtype)
        high = quantize(weight, dtype, overflow="inf")
        return high, FUNCTIONS.call(WEIGHT_ERROR, weight, high, dtype=dtype, kept=kept)

    return Remainders(f"master_weight_bits={bits}", lambda dtype: None if dtype == "float32" else kept, join, split)


def flash_adamw(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    *,
    master_weight_bits: int | None = 24,
    bf16_stochastic_round: bool = False,
    key: Key = None,
) -> CodedTransformation:
    """AdamW with FlashOptim's companded moments and split weights (arXiv 2602.23349).

    The bits are those of `qtorch.optim.FlashAdamW`, whose text says what states have. With error codes use `step`.

    Args:
        learning_rate: at least 0; a number, an array without dimensions, or a function of the number of steps so far.
        betas, eps, weight_decay: as for `adamw_8bit`.
        master_weight_bits: the bits of a 16-bit parameter and its error code: 24, or 32; None is without error codes.
        bf16_stochastic_round, key: as for `adamw_8bit`; only with `master_weight_bits=None`.

    Returns:
        A `CodedTransformation`, whose state is a `CodedAdamState`.

    Raises:
        TypeError, ValueError: as for `adamw_8bit`.

    Example:
        >>> state = flash_adamw().init(jnp.ones(3, jnp.bfloat16))
        >>> state.first.codes.dtype, state.first.scale.dtype, state.remainder.dtype
        (dtype('int8'), dtype('float16'), dtype('int8'))
    """
    check_master_bits(master_weight_bits, bf16_stochastic_round)
    errors = None if master_weight_bits is None else _errors(master_weight_bits)
    return adam_transformation(
        "Flash",
        True,
        learning_rate,
        betas,
        eps,
        weight_decay,
        False,
        32,
        bf16_stochastic_round,
        errors,
        key,
        "flashoptim",
    )


FlashAdamW = flash_adamw  # the name of the class in `qtorch.optim`
