"""Two engines on one text: how far they are, and by which of their differences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from qcore.arguments import check_int, check_type
from qcore.engines.attribution import DECODING, FLOOR, Factor, exchanged
from qcore.engines.divergence import Mismatch
from qcore.engines.divergence import mismatch as divergence
from qcore.engines.engine import Engine, EngineLike, check_engine
from qcore.formats.number import Number, check_number
from qtorch._classes import plain_class
from qtorch._rounding.dispatch import quantize
from qtorch.engines.models import apply
from qtorch.reproducible.modules.guard import run_unguarded


def mismatch(
    model: nn.Module,
    trainer: EngineLike,
    server: EngineLike,
    tokens: torch.Tensor,
    *,
    prompt: int = 1,
    attribution: bool = True,
) -> Mismatch:
    """What a trainer and a server say of one text: the same weights, with an engine each.

    The trainer reads the text in one pass, without a cache. The server reads the prompt in one pass, and then decodes
    token by token. All other layers are those of the model: without `qtorch.reproducible.convert`, which gives them
    bits that do not depend on the number of tokens, they differ as well.

    Args:
        model: as for `apply`; copies of it run, and it stays as it is.
        trainer, server: as the engine of `apply`.
        tokens: ints of shape (batch, length), without padding; length is at least 2.
        prompt: the number of tokens that the server is given, from 1 to length - 1.
        attribution: False leaves out `factors`, which take one pass for each field that differs, and three.

    Returns:
        A `Mismatch` of the positions 1 to length - 1, each with the token after it. Its factors are exchanged one at a
        time, from the more precise engine: the one whose logits move less if a number of each embedding moves by a
        unit. From the other one, any change would give all roundings another chance.

    Raises:
        ValueError: as `apply`, or if tokens has another shape.

    Example:
        >>> print(mismatch(model, "exact", "fa3.hopper.fp8", tokens, prompt=64))  # doctest: +SKIP
    """
    check_type("tokens", tokens, torch.Tensor, "a torch.Tensor of ints")
    if tokens.dim() != 2 or tokens.shape[1] < 2 or tokens.dtype not in (torch.int64, torch.int32):
        came = f"shape {tuple(tokens.shape)} and dtype {tokens.dtype}"
        raise ValueError(f"tokens has {came}; allowed are int64 of shape (batch, length), of length 2 at least")
    prompt = check_int("prompt", prompt, 1, tokens.shape[1] - 1)
    text = _Text(model, tokens, prompt)
    left, right = check_engine(trainer), check_engine(server)
    one_pass, decoded = text.run(left), text.run(right, decoding=True)
    found = text.compare(one_pass, decoded)
    factors = text.attribute(left, right, one_pass) if attribution else ()
    return replace(found, factors=factors)


class _Run(NamedTuple):
    """Logits of all positions, the experts that each router chose, and the engine."""

    logits: np.ndarray
    experts: np.ndarray | None
    engine: Engine


class _Text(NamedTuple):
    """A model and a text for it."""

    model: nn.Module
    tokens: torch.Tensor
    prompt: int

    def run(self, engine: Engine, decoding: bool = False, unit: Number | None = None) -> _Run:
        """Runs a copy of the model, whose embeddings may move by a unit of a format."""
        model: Any = apply(deepcopy(self.model), engine)
        if unit is not None:
            model.get_input_embeddings().register_forward_hook(partial(_move, unit))
        given = self.tokens[:, :-1]
        with torch.no_grad(), _routers(model) as chosen:
            logits = _decoded(model, given, self.prompt) if decoding else model(given, use_cache=False).logits
        experts = [_by_position(parts, len(given)) for parts in chosen.values() if parts]
        return _Run(_array(logits), np.stack(experts) if experts else None, engine)

    def compare(self, trainer: _Run, server: _Run) -> Mismatch:
        tiles = trainer.engine.log_softmax, server.engine.log_softmax
        found = divergence(trainer.logits, server.logits, _array(self.tokens[:, 1:]), log_softmax=tiles)
        if trainer.experts is None or server.experts is None:
            return found
        return replace(found, routed=(trainer.experts != server.experts).any(-1))

    def attribute(self, trainer: Engine, server: Engine, one_pass: _Run) -> tuple[Factor, ...]:
        """Each difference alone, from the engine that a unit of the embeddings moves less, and what that unit does."""
        base, other = one_pass, server
        unit = trainer.activations or server.activations or check_number("bfloat16")
        floor = self.compare(base, self.run(trainer, unit=unit))
        if trainer != server:
            served = self.run(server)
            moved = self.compare(served, self.run(server, unit=unit))
            if moved.rms < floor.rms:
                base, other, floor = served, trainer, moved
        found = [(name, self.compare(base, self.run(engine))) for name, engine in exchanged(base.engine, other)]
        found.append((DECODING, self.compare(base, self.run(base.engine, decoding=True))))
        found.append((FLOOR, floor))
        return tuple(Factor(name, one.rms, float(one.kl.mean()), one.first) for name, one in found)


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().to(torch.float64 if x.is_floating_point() else x.dtype).cpu().numpy()


def _move(unit: Number, layer: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
    """A hook that moves the first number of each embedding to the next one of a format, away from zero."""

    def moved(x: torch.Tensor) -> torch.Tensor:
        found, first = x.clone(), x[..., 0].float()
        further = torch.nextafter(first, torch.full_like(first, torch.inf).copysign(first))
        found[..., 0] = quantize(further, unit, "away").to(x.dtype)
        return found

    return run_unguarded(moved, output)


@contextmanager
def _routers(model: nn.Module) -> Iterator[dict[nn.Module, list[torch.Tensor]]]:
    """What the routers of a model choose while the context is open: indices of experts, call by call."""
    found: dict[nn.Module, list[torch.Tensor]] = {
        layer: [] for layer in model.modules() if plain_class(layer).__name__.endswith("Router")
    }

    def keep(layer: nn.Module, arguments: Any, output: Any) -> None:
        found[layer].append(output[-1])

    handles = [layer.register_forward_hook(keep) for layer in found]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _by_position(parts: list[torch.Tensor], batch: int) -> np.ndarray:
    """The sets of experts, of shape (batch, positions, experts), of which each call has some positions."""
    rows = torch.cat([part.reshape(batch, -1, part.shape[-1]) for part in parts], 1)
    return rows.sort(-1)[0].cpu().numpy()


def _decoded(model: Any, tokens: torch.Tensor, prompt: int) -> torch.Tensor:
    """The logits of a prompt, and of the tokens after it, one by one."""
    step = model(tokens[:, :prompt], use_cache=True)
    found = [step.logits]
    for place in range(prompt, tokens.shape[1]):
        step = model(tokens[:, place : place + 1], use_cache=True, **kept_cache(step))
        found.append(step.logits)
    return torch.cat(found, 1)


def kept_cache(step: Any) -> dict[str, Any]:
    """The cache that a model of transformers returned, as the argument of its next call."""
    # Its name is "cache" from transformers 5.24 on.
    cache = getattr(step, "cache", None)
    return {"past_key_values": step.past_key_values} if cache is None else {"cache": cache}
