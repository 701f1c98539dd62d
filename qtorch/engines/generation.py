"""Generation by a torch model: the same texts as in JAX and NumPy, in any batch, chunks and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from qcore.arguments import check_size, check_type, quoted
from qcore.engines.generation import LEFT, Generated, check_settings, generated, last_places, padded, whole_texts
from qtorch.engines.comparison import kept_cache


def generate(
    model: nn.Module | Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
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
    chunk: int | None = None,
) -> Generated:
    """Draws a text after each prompt, as `qcore.engines.generate` does, with one random word for each token.

    A decoder of transformers reads the prompts into its cache, and then decodes token by token. Any other module, or
    function, reads the whole texts again for each token.

    Args:
        model: a decoder of transformers, such as one that `apply` returned; or a function of tokens (batch, length), a
            mask of bools that is True where a token counts, and the place of each token in its text, which returns the
            logits (batch, length, vocabulary).
        prompts: lists of tokens, each of one token at least.
        key: an int from 0 to 2^64 - 1, or two 32-bit words.
        temperature, top_k, top_p: as for `qcore.engines.generate`, which has the law.
        max_new_tokens: the number of tokens after a prompt.
        stop: a token that ends a text, and is its last; None is none.
        batch: the number of prompts that run together; None is all.
        padding: "left" or "right", where shorter texts of a batch are filled up.
        chunk: the number of tokens of the prompts that a decoder of transformers reads at once; None is all.

    Returns:
        A `Generated`: the tokens, and their log-probabilities by the logits as they are.

    Raises:
        ValueError: if an argument is out of range, or a logit is not finite.

    Example:
        >>> def model(tokens, mask, positions):
        ...     return torch.nn.functional.one_hot((tokens + 1) % 5, 5) * 50.0
        >>> generate(model, [[0], [3, 1]], key=0, max_new_tokens=3).tokens
        [[1, 2, 3], [2, 3, 4]]
    """
    settings = check_settings(prompts, key, temperature, top_k, top_p, max_new_tokens, stop, batch, padding)
    if not callable(model):
        check_type("model", model, nn.Module, "a torch.nn.Module or a function")
    if hasattr(model, "prepare_inputs_for_generation"):
        size = None if chunk is None else check_size("chunk", chunk)
        logits = partial(_begun, model, size)
    elif chunk is not None:
        raise ValueError(f"chunk={quoted(chunk)} with a model without a cache of transformers; allowed there is None")
    else:
        logits = whole_texts(partial(_whole, model))
    with torch.no_grad():
        return generated(logits, prompts, settings)


def _whole(model: Any, *texts: np.ndarray) -> np.ndarray:
    return model(*map(torch.from_numpy, texts)).detach().float().cpu().numpy()


def _begun(model: Any, chunk: int | None, prompts: list[list[int]], side: str) -> Iterator[Any]:
    steps = _decoded(model, chunk, prompts, side)
    next(steps)
    return steps


def _decoded(model: Any, chunk: int | None, prompts: list[list[int]], side: str) -> Iterator[Any]:
    """The logits of the prompts' last tokens, and of the tokens that are sent, one by one."""
    length = max(map(len, prompts))
    device = model.get_input_embeddings().weight.device
    tokens, mask, positions = (torch.from_numpy(x).to(device) for x in padded(prompts, length, side))
    drawn = yield
    parts: list[torch.Tensor] = []
    kept: dict[str, Any] = {}
    for begin in range(0, length, chunk or length):
        part = slice(begin, begin + (chunk or length))
        given = {"attention_mask": mask[:, : part.stop].long(), "position_ids": positions[:, part]}
        step = model(tokens[:, part], use_cache=True, **given, **kept)
        kept = kept_cache(step)
        parts.append(step.logits)
    found = torch.cat(parts, 1)[range(len(prompts)), last_places(prompts, length, side)]
    places = positions.amax(-1, keepdim=True)
    while True:
        drawn = yield found.float().cpu().numpy()
        mask = torch.nn.functional.pad(mask, (0, 1), value=True)
        places = places + 1
        given = {"attention_mask": mask.long(), "position_ids": places}
        step = model(torch.tensor(drawn, device=device)[:, None], use_cache=True, **given, **kept)
        kept = kept_cache(step)
        found = step.logits[:, 0]
