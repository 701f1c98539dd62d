"""Steps of optimizers whose states are codes, beside torch's fused AdamW and optax's: time, memory, and files.

Usage:
    python -m benchmarks.support.coded_steps PACKAGE NAME     what one row measures in a process of its own, as JSON
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

import qtorch.optim
from benchmarks.support.memory import peak_of, reset_peak
from benchmarks.support.timing import ROOT, by_turns, clock_for, default_allocator
from qcore.reproducible.state_codes import adam_codes
from qtorch import reproducible

NUMBERS = 39063 * 256  # of the parameter: 10^7
LIMIT = 2.0  # times torch's fused AdamW, for eager steps of float32 weights in torch
COMPILED = "adam_step_with_codes"  # by torch.compile
_WEIGHTS = {
    "": {},
    " stochastic": {"bf16_stochastic_round": True, "key": 7},
    " remainder": {"store_param_remainders": True},
}
NAMES = {
    "torch": (
        "AdamW8bit",
        "AdamW4bit",
        "AdamWFp8",
        "AdamW8bit stochastic",
        "AdamW8bit remainder",
        "FlashAdamW",
        COMPILED,
    ),
    "jax": ("adamw_8bit", "adamw_4bit", "adamw_fp8"),
}
BASES = {"torch": "AdamW", "jax": "adamw"}


class Stepped(NamedTuple):
    """An optimizer with one parameter.

    Attributes:
        step: makes a step.
        state: the arrays of its state but for the count of steps.
        saved: the bytes of the state's file; None in JAX, which has no file of its own.
        temporary: the bytes that a step takes and gives back, as XLA's program says; None where they are measured.
    """

    step: Callable[[], object]
    state: Callable[[], list[Any]]
    saved: Callable[[], int] | None = None
    temporary: Callable[[], int] | None = None


def of_torch(name: str) -> Stepped:
    """An optimizer of `qtorch.optim`, bfloat16 where its weights are rounded or have remainders; or torch's AdamW."""
    kind, _, weights = name.partition(" ")
    dtype = torch.bfloat16 if weights else torch.float32
    p = torch.nn.Parameter(torch.zeros(NUMBERS, dtype=dtype))
    p.grad = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0)).to(dtype)
    if name == COMPILED:
        return _compiled(p.detach(), p.grad)
    options = {"fused": True} if name == BASES["torch"] else _WEIGHTS[weights and f" {weights}"]
    optimizer = getattr(torch.optim if name == BASES["torch"] else qtorch.optim, kind)([p], **options)

    def state() -> list[torch.Tensor]:
        return [x for name, x in optimizer.state[p].items() if name != "step"]

    def saved() -> int:
        torch.save(optimizer.state_dict(), file := io.BytesIO())
        return len(file.getvalue())

    return Stepped(optimizer.step, state, saved)


def _compiled(p: torch.Tensor, gradient: torch.Tensor) -> Stepped:
    codes = adam_codes("8bit", 256, NUMBERS, False)
    step = torch.compile(partial(reproducible.adam_step_with_codes, codes=codes, weight_decay=1e-2, decoupled=True))
    zero = [(torch.zeros(NUMBERS, dtype=torch.uint8), torch.zeros(NUMBERS // 256)) for _ in codes]
    now, rate = [p, tuple(zero)], torch.tensor(1e-3)

    def again() -> None:
        now[:] = step(now[0], gradient, now[1], torch.tensor(5.0), rate)

    return Stepped(again, lambda: [x for pair in now[1] for x in pair])


def of_jax(name: str) -> Stepped:
    """An optimizer of `qjax.optim`, or optax's AdamW: a step is one program, which writes over what it was given."""
    import jax
    import jax.numpy as jnp
    import optax

    import qjax.optim

    p, gradient = (
        jnp.zeros(NUMBERS),
        jnp.asarray(torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0)).numpy()),
    )
    plain = name == BASES["jax"]
    optimizer: Any = optax.adamw(1e-3) if plain else getattr(qjax.optim, name)(1e-3)

    def summed(p: Any, gradient: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradient, state, p)
        return optax.apply_updates(p, updates), state

    step = jax.jit(summed if plain else optimizer.step, donate_argnums=(0, 2))
    now = [p, optimizer.init(p)]

    def again() -> None:
        now[:] = jax.block_until_ready(step(now[0], gradient, now[1]))

    def state() -> list[Any]:
        return [x for x in jax.tree.leaves(now[1]) if x.ndim]

    def temporary() -> int:
        facts: Any = step.lower(now[0], gradient, now[1]).compile().memory_analysis()
        return facts.temp_size_in_bytes

    return Stepped(again, state, temporary=temporary)


MAKERS = {"torch": of_torch, "jax": of_jax}


def memory(package: str, name: str) -> dict[str, float | None]:
    """The bytes for a number of a parameter: of its state, beside it at the peak of a step, and of the state's file."""
    made = MAKERS[package](name)
    made.step()
    if made.temporary is None:
        source, before = reset_peak("cpu")
        made.step()
        peak = peak_of(source) - before
    else:
        peak = made.temporary()
    bytes_ = sum(x.nbytes for x in made.state())
    saved = None if made.saved is None else made.saved() / NUMBERS
    return {"state": bytes_ / NUMBERS, "peak": peak / NUMBERS, "saved": saved}


def rows(seconds: float) -> Iterator[dict[str, Any]]:
    """The rows of all optimizers, each beside the base of its package: medians in seconds a step.

    Without optax there are no rows of JAX.
    """
    for package, names in NAMES.items():
        if package == "jax" and find_spec("optax") is None:
            continue
        for name in (BASES[package], *names):
            command = [sys.executable, "-m", __spec__.name, package, name]
            found = subprocess.run(
                command, cwd=ROOT, env=default_allocator(), check=True, capture_output=True, text=True
            )
            row: dict[str, Any] = {
                "package": package,
                "optimizer": name,
                "numbers": NUMBERS,
                **json.loads(found.stdout),
            }
            steps = [MAKERS[package](one).step for one in (name, BASES[package])]
            ours, base = by_turns(steps, clock_for("cpu"), seconds)
            ratio = ours.median / base.median
            limit = LIMIT if package == "torch" and name in ("AdamW8bit", "AdamW4bit", "AdamWFp8") else None
            met = None if limit is None else ratio <= limit
            yield row | {"seconds": ours.median, "base": base.median, "ratio": ratio, "limit": limit, "met": met}


if __name__ == "__main__":
    print(json.dumps(memory(*sys.argv[1:])))
