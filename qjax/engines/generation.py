"""Generation by a JAX function: the same texts as in PyTorch and NumPy, in any batch and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.engines.generation import LEFT, Generated, check_settings, generated, whole_texts


def generate(
    model: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    prompts: Sequence[Sequence[int]],
    *,
    key: int | tuple[int, int],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int = 16,
    stop: int | None = None,
    batch: int | None = None,
    padding: str = LEFT,
) -> Generated:
    """Draws a text after each prompt, as `qcore.engines.generate` does, with one random word for each token.

    The model reads the whole texts again for each token: with the engine "exact" decoding has the same bits. All arrays
    have the length of the longest prompt and `max_new_tokens`: a jitted model compiles once for each size of a batch.

    Args:
        model: a function of tokens (batch, length), a mask of bools that is True where a token counts, and the place of
            each token in its text, which returns the logits (batch, length, vocabulary).
        prompts: lists of tokens, each of one token at least.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.
        temperature, top_k, top_p: as for `qcore.engines.generate`, which has the law.
        max_new_tokens: the number of tokens after a prompt.
        stop: a token that ends a text, and is its last; None is none.
        batch: the number of prompts that run together; None is all.
        padding: "left" or "right", where shorter texts of a batch are filled up.

    Returns:
        A `Generated`: the tokens, and their log-probabilities by the logits as they are.

    Raises:
        ValueError: if an argument is out of range, or a logit is not finite.

    Example:
        >>> def model(tokens, mask, positions):
        ...     return jax.nn.one_hot((tokens + 1) % 5, 5) * 50
        >>> generate(model, [[0], [3, 1]], key=0, max_new_tokens=3).tokens
        [[1, 2, 3], [2, 3, 4]]
    """
    settings = check_settings(prompts, key, temperature, top_k, top_p, max_new_tokens, stop, batch, padding)
    most = max(map(len, prompts)) + settings.max_new_tokens

    def run(*texts: Any) -> np.ndarray:
        tokens, mask, positions = map(jnp.asarray, texts)
        return np.asarray(model(tokens.astype(jnp.int32), mask, positions.astype(jnp.int32)))

    return generated(whole_texts(run, lambda length: most), prompts, settings)
