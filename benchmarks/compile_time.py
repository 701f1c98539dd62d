"""What XLA takes to compile a training step of a small transformer in JAX, with recipes and without.

Usage:
    python -m benchmarks.compile_time
    python -m benchmarks.compile_time --recipes mxfp8 --json compile-time.json

The step is the loss and the gradients of `examples.gpt_jax`, two blocks and a head. Times are those of
the processor, of all threads of XLA: they say what the cores did, however many there are. Each program is compiled in a
process of its own, whose XLA has compiled another one before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from statistics import median
from time import process_time

from benchmarks.support.results import write_results
from qcore import RECIPES

WIDE = "wide"
_LENGTH, _LETTERS, _BATCH = 64, 32, 4


@dataclass(frozen=True)
class Row:
    """A recipe: seconds to compile, how many times those of the wide program, and seconds to trace and lower."""

    recipe: str
    seconds: float
    ratio: float
    traced: float


def compile_once(recipe: str) -> tuple[float, float]:
    """Seconds to trace and lower the step, and to compile it."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from examples.gpt_jax import GPT
    from qjax.recipes import lower

    jax.jit(lambda x: jnp.sin(x) @ x).lower(jnp.ones((8, 8))).compile()
    graph, parameters = nnx.split(GPT(_LETTERS, _LENGTH, rngs=nnx.Rngs(0)))
    text = jnp.zeros((_BATCH, _LENGTH), jnp.int32)

    def loss(parameters: nnx.State, text: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(nnx.merge(graph, parameters)(text)[:, :-1])
        return -jnp.take_along_axis(logits, text[:, 1:, None], -1).mean()

    def step(parameters: nnx.State, text: jax.Array, key: jax.Array) -> object:
        if recipe == WIDE:
            return jax.value_and_grad(loss)(parameters, text)
        lowered = lower(loss, recipe=RECIPES[recipe])
        return jax.value_and_grad(lambda parameters: lowered(parameters, text, key=key))(parameters)

    begin = process_time()
    program = jax.jit(step).lower(parameters, text, jax.random.key(0))
    middle = process_time()
    program.compile()
    return middle - begin, process_time() - middle


def measure(recipes: list[str], turns: int) -> list[Row]:
    """The medians of some turns, in each of which every program is compiled once."""
    found: dict[str, list[tuple[float, float]]] = {recipe: [] for recipe in (WIDE, *recipes)}
    for _ in range(turns):
        for recipe, times in found.items():
            command = [sys.executable, "-m", "benchmarks.compile_time", "--once", recipe]
            times.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    traced, seconds = ({name: median(one[i] for one in times) for name, times in found.items()} for i in (0, 1))
    return [Row(name, seconds[name], seconds[name] / seconds[WIDE], traced[name]) for name in found]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time what XLA takes to compile a transformer's step with recipes.")
    parser.add_argument("--recipes", nargs="+", default=["mxfp8", "nvfp4_pretraining"], choices=list(RECIPES))
    parser.add_argument("--turns", type=int, default=3, help="how often each is compiled")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    parser.add_argument("--once", metavar="RECIPE", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.once:
        print(json.dumps(compile_once(options.once)))
        return 0
    from benchmarks.support.timing import machine, versions

    facts = {"versions": versions(), "machine": machine("cpu")}
    rows = measure(options.recipes, options.turns)
    for row in rows:
        print(f"{row.recipe}: {row.seconds:.1f} s, {row.ratio:.1f} times the wide program; {row.traced:.1f} s to trace")
    if options.json:
        write_results(options.json, facts | {"rows": [asdict(row) for row in rows]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
