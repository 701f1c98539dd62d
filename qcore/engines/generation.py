"""Generation: texts that depend on their prompts, a key and the logits alone, not on batches, chunks or padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import ceil, isfinite
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import check_choice, check_float, check_int, check_seed, check_size, check_type, quoted
from qcore.engines.arrays import Attending
from qcore.engines.divergence import log_probabilities
from qcore.random.draws import random_bits
from qcore.random.threefry import fold_in

LEFT, RIGHT = "left", "right"
_UNIT = 2.0**42  # of probabilities, which are integers: of fewer than 2^20 tokens their sum has no order


class Generated(NamedTuple):
    """Texts that were drawn.

    Attributes:
        tokens: for each prompt the list of the tokens after it.
        log_probabilities: for each prompt a float64 array: log p of each token by the logits as they are, before
            temperature, top-k and top-p.

    Example:
        >>> Generated([[3]], [np.zeros(1)]).tokens
        [[3]]
    """

    tokens: list[list[int]]
    log_probabilities: list[np.ndarray]


class Sampling(NamedTuple):
    """The arguments of `generate` that are not the model's."""

    key: tuple[int, int]
    temperature: float
    top_k: int | None
    top_p: float | None
    max_new_tokens: int
    stop: int | None
    batch: int
    padding: str


class Texts(NamedTuple):
    """A padded batch of texts: what a model is called with.

    Attributes:
        tokens: int64 array of shape (batch, length); padding is 0.
        mask: bools of the same shape, True where a token counts.
        positions: int64 array of the same shape: the place of each token in its text.
    """

    tokens: np.ndarray
    mask: np.ndarray
    positions: np.ndarray


Model = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
# Given some prompts and the padding's side, yields their logits, and gets a token for each: (batch, vocabulary).
Logits = Callable[[list[list[int]], str], Any]


def generate(
    model: Model,
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
    """Draws a text after each prompt. A token depends on the key, its place, the prompt's number and the logits alone.

    The token at place i of prompt n is drawn with one word of 32 bits, that of `fold_in(fold_in(key, n), i)`. The
    logits x that are kept have the whole weights floor(2^42 exp((x - max) / temperature)); the token is the first one
    whose weights, summed upward by index, exceed word / 2^32 of their sum. Sums of integers have no order. So with
    equal logits the same text comes out of PyTorch, JAX and NumPy, in batches of any size and padding: models with the
    engine "exact" have equal logits.

    Args:
        model: a function of tokens (batch, length), a mask of bools that is True where a token counts, and the place of
            each token in its text, which returns the float32 logits (batch, length, vocabulary).
        prompts: lists of tokens, each of one token at least.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.
        temperature: what logits are divided by; 0 takes the most likely token, of equal ones the first.
        top_k: the number of tokens that may be drawn: those with the greatest logits, of equal ones the first. None is
            all.
        top_p: tokens are kept from the most likely one down until their share of the kept weights is at least this
            number, above 0 and at most 1. None is all.
        max_new_tokens: the number of tokens after a prompt.
        stop: a token that ends a text, and is its last; None is none.
        batch: the number of prompts that run together; None is all.
        padding: "left" or "right", where shorter texts of a batch are filled up.

    Returns:
        A `Generated`.

    Raises:
        ValueError: if an argument is out of range, or a logit is not finite.

    Example:
        >>> def model(tokens, mask, positions):
        ...     return np.eye(5, dtype=np.float32)[(tokens + 1) % 5] * 50
        >>> generate(model, [[0], [3, 1]], key=0, max_new_tokens=3).tokens
        [[1, 2, 3], [2, 3, 4]]
    """
    settings = check_settings(prompts, key, temperature, top_k, top_p, max_new_tokens, stop, batch, padding)
    return generated(whole_texts(model), prompts, settings)


def check_settings(
    prompts: Any,
    key: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    max_new_tokens: Any,
    stop: Any,
    batch: Any,
    padding: Any,
) -> Sampling:
    """The arguments of `generate` in any package."""
    check_type("prompts", prompts, list | tuple, "a list of lists of tokens")
    for number, prompt in enumerate(prompts):
        if not isinstance(prompt, list | tuple) or not prompt:
            raise ValueError(f"prompts[{number}]={quoted(prompt)}; allowed is a list of one token at least")
        for token in prompt:
            check_int(f"a token of prompts[{number}]", token, 0)
    if not prompts:
        raise ValueError("prompts=[]; allowed is one prompt at least")
    check_choice("padding", padding, (LEFT, RIGHT))
    return Sampling(
        check_seed(key),
        check_float("temperature", temperature, "a finite number, 0 or more", lambda x: isfinite(x) and x >= 0),
        None if top_k is None else check_size("top_k", top_k),
        None if top_p is None else check_float("top_p", top_p, "a number above 0, at most 1", lambda x: 0 < x <= 1),
        check_size("max_new_tokens", max_new_tokens),
        None if stop is None else check_int("stop", stop, 0),
        len(prompts) if batch is None else check_size("batch", batch),
        padding,
    )


def generated(logits_of: Logits, prompts: Sequence[Sequence[int]], settings: Sampling) -> Generated:
    """The texts of all prompts, batch by batch."""
    tokens: list[list[int]] = []
    logarithms: list[np.ndarray] = []
    for begin in range(0, len(prompts), settings.batch):
        some = [list(prompt) for prompt in prompts[begin : begin + settings.batch]]
        keys = [fold_in(settings.key, begin + row) for row in range(len(some))]
        rows = _batch(logits_of(some, settings.padding), some, keys, settings)
        tokens += [[token for token, _ in row] for row in rows]
        logarithms += [np.array([one for _, one in row]) for row in rows]
    return Generated(tokens, logarithms)


def _batch(steps: Any, prompts: Any, keys: Any, settings: Sampling) -> list[list[tuple[int, float]]]:
    """The tokens of some prompts with their log-probabilities."""
    found: list[list[tuple[int, float]]] = [[] for _ in prompts]
    drawn = None
    for step in range(settings.max_new_tokens):
        logits = np.asarray(steps.send(drawn), np.float32)
        if not np.isfinite(logits).all():
            raise ValueError("model returned logits that are not finite; allowed are finite ones")
        places = [fold_in(key, len(prompt) + step) for key, prompt in zip(keys, prompts, strict=True)]
        words = [int(random_bits(place, (1,))[0]) for place in places]
        drawn = sampled(logits, words, settings)
        raw = log_probabilities(logits.astype(np.float64), None)
        for row, (token, one) in enumerate(zip(drawn, raw, strict=True)):
            if not found[row] or found[row][-1][0] != settings.stop:
                found[row].append((token, float(one[token])))
        if settings.stop is not None and all(row[-1][0] == settings.stop for row in found):
            break
    return found


def sampled(logits: np.ndarray, words: Sequence[int], settings: Sampling) -> list[int]:
    """A token for each row of logits (rows, vocabulary)."""
    if settings.temperature == 0:
        return [int(token) for token in logits.argmax(-1)]
    with Attending.arithmetic():
        shifted = Attending.sub(logits, logits.max(-1, keepdims=True))
        scaled = Attending.div(shifted, settings.temperature)
        weights = np.exp(scaled.astype(np.float64)).astype(np.float32)
    units = (weights.astype(np.float64) * _UNIT).astype(np.int64)
    return [_drawn(row, whole, word, settings) for row, whole, word in zip(logits, units, words, strict=True)]


def _drawn(logits: np.ndarray, units: np.ndarray, word: int, settings: Sampling) -> int:
    """The token of one row, whose weights are integers."""
    order = np.argsort(-logits, kind="stable")[: settings.top_k]  # of equal logits the first one first
    if settings.top_p is not None:
        sums = np.cumsum(units[order])
        share = ceil(Fraction(settings.top_p) * int(sums[-1]))
        order = order[: int(np.searchsorted(sums, share)) + 1]
    kept = np.sort(order)
    sums = np.cumsum(units[kept])
    return int(kept[np.searchsorted(sums, word * int(sums[-1]) >> 32, side="right")])


def padded(texts: list[list[int]], length: int, side: str) -> Texts:
    """Texts of several lengths beside each other."""
    tokens, positions = np.zeros((2, len(texts), length), np.int64)
    mask = np.zeros(tokens.shape, bool)
    for row, text in enumerate(texts):
        part = slice(length - len(text), None) if side == LEFT else slice(len(text))
        tokens[row, part], mask[row, part], positions[row, part] = text, True, range(len(text))
    return Texts(tokens, mask, positions)


def last_places(texts: list[list[int]], length: int, side: str) -> list[int]:
    """The index of each text's last token in a padded batch."""
    return [length - 1 if side == LEFT else len(text) - 1 for text in texts]


def whole_texts(model: Model, room: Callable[[int], int] = lambda length: length) -> Logits:
    """The logits of a model that reads the whole texts again for each token: with "exact" they are those of decoding.

    Args:
        model: as for `generate`.
        room: the length of the arrays for texts of a length, at least as large.
    """

    def run(prompts: list[list[int]], side: str) -> Iterator[Any]:
        texts = [list(prompt) for prompt in prompts]
        drawn = yield
        while True:
            length = room(max(map(len, texts)))
            found = np.asarray(model(*padded(texts, length, side)))
            drawn = yield found[range(len(texts)), last_places(texts, length, side)]
            for text, token in zip(texts, drawn, strict=True):
                text.append(token)

    def begun(prompts: list[list[int]], side: str) -> Iterator[Any]:
        steps = run(prompts, side)
        next(steps)
        return steps

    return begun
