"""A small GPT learns to count by GRPO: what a trainer and a server do to each other that compute in other formats.

Usage:
    python -m benchmarks.rollouts                        minutes of one core
    python -m benchmarks.rollouts --steps 3 --json rollouts.json
    python -m benchmarks.rollouts --draw docs            draws the picture of the committed results

A server draws eight answers to each prompt; the trainer makes one step of GRPO with them. Both have the same weights,
and an engine each. d = log p of the trainer - log p of the server, of the tokens that were drawn; the divergence is
estimated by the mean of exp(d) - 1 - d. Truncated importance sampling (TIS) weighs each token by min(exp(d), 2). With
quantization-aware training (QAT) the trainer rounds to FP8 as the server does, in another order. The first steps run
in JAX as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

import qjax
import qjax.engines
import qjax.reproducible
import qtorch
import qtorch.engines
import qtorch.reproducible
from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.policy import VOCABULARY, Framework, advantages, first_weights, logits, loss, reward
from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from qcore.engines import Engine, Generated
from qcore.engines.generation import padded
from qcore.pictures import draw_curves, in_two_widths, picture
from qcore.random.threefry import fold_in

FILE, PICTURE = Path(__file__).parent / "results" / "rollouts.json", "rollouts.svg"
STEPS, IN_JAX, RATE, CLIP = 120, 3, 1e-2, 2.0
PROMPTS, GROUP, ANSWER = 6, 8, 6
SEED = 5
E4M3 = "e4m3fn:saturate"


class Run(NamedTuple):
    """A trainer and a server: their engines, the formats of their linear layers' operands, and whether TIS weighs."""

    trainer: Engine
    server: Engine
    operands: tuple[str | None, str | None]
    tis: bool = False


def _rounding(name: str) -> Engine:
    """An engine by name with activations in bfloat16."""
    return replace(Engine.of(name), activations="bfloat16")


_EAGER, _FP8 = _rounding("hf.eager"), _rounding("fa3.hopper.fp8")
_QAT = replace(_EAGER, attention=replace(_EAGER.attention, operand=E4M3, p=E4M3, scale="scores"), cache=_FP8.cache)
_EXACT = replace(_rounding("exact"), cache=_FP8.cache)
RUNS = {
    "bfloat16": Run(_EAGER, _rounding("fa3.hopper.bf16"), ("bfloat16", "bfloat16")),
    "FP8 rollouts": Run(_EAGER, _FP8, ("bfloat16", E4M3)),
    "FP8 with TIS": Run(_EAGER, _FP8, ("bfloat16", E4M3), tis=True),
    "FP8 with QAT": Run(_QAT, _FP8, (E4M3, E4M3)),
    "exact, FP8": Run(_EXACT, _EXACT, (E4M3, E4M3)),
}
TORCH = Framework(qtorch.reproducible, qtorch.engines.attention, qtorch.quantize)
JAX = Framework(qjax.reproducible, qjax.engines.attention, qjax.quantize)


class Rollout(NamedTuple):
    """Texts of a step: the padded prompts with their answers, the answers, their rewards, and the server's log p."""

    texts: tuple[np.ndarray, ...]
    answers: np.ndarray
    rewards: np.ndarray
    logarithms: np.ndarray


def rollout(step: int, draw: Callable[..., Generated]) -> Rollout:
    """The answers of one step, by a function with the arguments of `generate` that has the server's model."""
    rng = np.random.default_rng(step)
    prompts = [rng.integers(0, VOCABULARY, rng.integers(1, 4)).tolist() for _ in range(PROMPTS)]
    prompts = [prompt for prompt in prompts for _ in range(GROUP)]
    made = draw(prompts, key=fold_in(SEED, step), max_new_tokens=ANSWER)
    whole = [prompt + answer for prompt, answer in zip(prompts, made.tokens, strict=True)]
    rewards = np.array([reward(*one) for one in zip(prompts, made.tokens, strict=True)])
    return Rollout(padded(whole, 3 + ANSWER, "left"), np.array(made.tokens), rewards, np.stack(made.log_probabilities))


def factors_of(run: Run, found: Rollout, d: np.ndarray) -> np.ndarray:
    """What multiplies log p of each token in the loss."""
    weights = np.minimum(np.exp(d), CLIP) if run.tis else np.ones_like(d)
    return (advantages(found.rewards, GROUP)[:, None] * weights).astype(np.float32)


class Trainer:
    """A policy in PyTorch, which a server draws from and AdamW steps."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.weights = {name: torch.from_numpy(x).requires_grad_() for name, x in first_weights(SEED).items()}
        self.optimizer = qtorch.reproducible.AdamW([*self.weights.values()], RATE, weight_decay=0.0)

    def draw(self, prompts: Any, **settings: Any) -> Generated:
        model = partial(logits, TORCH, self.weights, self.run.server, self.run.operands[1])
        return qtorch.engines.generate(model, prompts, **settings)

    def step(self, found: Rollout) -> tuple[float, np.ndarray]:
        """The loss of a step, and d of each token before it."""
        texts = map(torch.from_numpy, found.texts)
        given = logits(TORCH, self.weights, self.run.trainer, self.run.operands[0], *texts)[:, -ANSWER - 1 : -1]
        logarithms = qtorch.reproducible.log_softmax(given)
        drawn = torch.from_numpy(found.answers)
        d = difference(given.detach().numpy(), found)
        found_loss = loss(TORCH, logarithms, drawn, torch.from_numpy(factors_of(self.run, found, d)))
        self.optimizer.zero_grad()
        found_loss.backward()
        self.optimizer.step()
        return float(found_loss.detach()), d

    def hash(self) -> str:
        return _hash({name: x.detach().numpy() for name, x in self.weights.items()})


class JaxTrainer:
    """The same in JAX."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.weights = {name: jnp.asarray(x) for name, x in first_weights(SEED).items()}
        self.optimizer = qjax.reproducible.adamw(RATE, weight_decay=0.0)
        self.state = self.optimizer.init(self.weights)
        self.served = jax.jit(partial(self._logits, run.server, run.operands[1]))
        self.trained = jax.jit(partial(self._logits, run.trainer, run.operands[0]))
        self.differentiated = jax.jit(jax.value_and_grad(self._loss))

    @staticmethod
    def _logits(engine: Engine, operand: str | None, weights: Any, *texts: Any) -> Any:
        return logits(JAX, weights, engine, operand, *texts)

    def _loss(self, weights: Any, texts: Any, answers: Any, factors: Any) -> Any:
        given = self._logits(self.run.trainer, self.run.operands[0], weights, *texts)[:, -ANSWER - 1 : -1]
        return loss(JAX, qjax.reproducible.log_softmax(given), answers, factors)

    def draw(self, prompts: Any, **settings: Any) -> Generated:
        return qjax.engines.generate(partial(self.served, self.weights), prompts, **settings)

    def step(self, found: Rollout) -> tuple[float, np.ndarray]:
        tokens, mask, positions = found.texts
        texts = jnp.asarray(tokens, jnp.int32), jnp.asarray(mask), jnp.asarray(positions, jnp.int32)
        answers = jnp.asarray(found.answers, jnp.int32)
        d = difference(np.asarray(self.trained(self.weights, *texts))[:, -ANSWER - 1 : -1], found)
        factors = jnp.asarray(factors_of(self.run, found, d))
        found_loss, gradients = self.differentiated(self.weights, texts, answers, factors)
        self.weights, self.state = self.optimizer.step(self.weights, gradients, self.state)
        return float(found_loss), d

    def hash(self) -> str:
        return _hash({name: np.asarray(x) for name, x in self.weights.items()})


def difference(given: np.ndarray, found: Rollout) -> np.ndarray:
    """d of each token: log p of the trainer in float64, less that of the server."""
    wide = given.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return np.take_along_axis(wide, found.answers[..., None], -1)[..., 0] - found.logarithms


def _hash(weights: Mapping[str, np.ndarray]) -> str:
    return sha256(b"".join(np.ascontiguousarray(weights[name]).tobytes() for name in sorted(weights))).hexdigest()[:16]


def trained(trainer: Trainer | JaxTrainer, steps: int) -> dict[str, Any]:
    """Rewards, losses, divergences and the root of the mean square of d by step, and the last weights' hash."""
    rows: dict[str, list[float]] = {"reward": [], "loss": [], "kl": [], "rms": []}
    for step in range(steps):
        found = rollout(step, trainer.draw)
        lost, d = trainer.step(found)
        values = found.rewards.mean(), lost, (np.expm1(d) - d).mean(), np.sqrt((d**2).mean())
        for name, value in zip(rows, values, strict=True):
            rows[name].append(float(f"{value:.6g}"))
    return rows | {"hash": trainer.hash()}


def measured(steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All runs in PyTorch, and the first steps in both frameworks."""
    runs, first = [], []
    for name, run in RUNS.items():
        found = trained(Trainer(run), steps)
        runs.append({"run": name, **found})
        mean = np.mean(found["kl"])
        print(
            f"{name}: reward {found['reward'][0]:.3f} to {np.mean(found['reward'][-10:]):.3f}, KL {mean:.2e}",
            flush=True,
        )
        for framework, kind in (("torch", Trainer), ("jax", JaxTrainer)):
            begun = trained(kind(run), min(IN_JAX, steps))
            first.append({"run": name, "framework": framework, "loss": begun["loss"], "hash": begun["hash"]})
        same = first[-1]["hash"] == first[-2]["hash"]
        print(
            f"  first steps in JAX: losses {first[-1]['loss']}, {'the same bits' if same else 'OTHER bits'}", flush=True
        )
    return runs, first


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Rewards, averaged over ten steps, and divergences by step."""
    text = "The reward by step, and the divergence of trainer and server, which is zero for the engine exact."
    with picture(path, 5.6, "GRPO with engines", text) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        above.set(title="reward", ylabel="share that counts on")
        draw_curves(above, {one["run"]: _smooth(one["reward"]) for one in record["runs"]})
        below.set(title="divergence, nats a token", xlabel="step", yscale="log")
        seen = [one for one in record["runs"] if min(one["kl"]) > 0]
        draw_curves(below, {one["run"]: _smooth(one["kl"]) for one in seen})


def _smooth(values: list[float]) -> list[tuple[float, float]]:
    """Means of ten steps by the last of them."""
    return [(end, float(np.mean(values[max(0, end - 10) : end]))) for end in range(1, len(values) + 1)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.rollouts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", metavar="N", type=count_of("N", 1), default=STEPS, help="of training")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write versions, machine and rows there")
    parser.add_argument("--draw", metavar="FOLDER", type=Path, help="only draw the committed results there")
    options = parser.parse_args(argv)
    if options.draw:
        in_two_widths(partial(draw, json.loads(FILE.read_text(encoding="utf-8"))), options.draw / PICTURE)
        return 0
    torch.set_num_threads(1)
    runs, first = measured(options.steps)
    settings = {
        "steps": options.steps,
        "prompts": PROMPTS,
        "group": GROUP,
        "answer": ANSWER,
        "rate": RATE,
        "clip": CLIP,
    }
    record = {
        "versions": versions(),
        "machine": machine("cpu"),
        "seconds": round(process_time(), 1),
        "settings": settings,
        "runs": runs,
        "first": first,
    }
    if options.json:
        write_results(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
