"""How long a training step takes that is watched, against the same step unwatched.

Usage:
    python -m benchmarks.insight                       torch and JAX, models whose layers and weights are rounded
    python -m benchmarks.insight --json insight.json

Both steps take turns; medians are compared. Then what the cost is made of: the sites and elements of a step, and the
time that the statistics of one array take, and their parts, beside that of copying the array.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.support.results import write_results
from benchmarks.support.timing import by_turns, clock_for, keep_pages, machine, versions

LIMIT = 1.3  # times the unwatched step
WIDTHS = (784, 512, 512, 10)
BATCH, IMAGES = 256, 64  # of the MLP, of PreResNet20
EVERY = (1, 5)  # steps of which one is looked at
MLP, PRERESNET20 = "MLP", "PreResNet20"
RUNS: list[tuple[str, str, int]] = [*product((MLP,), ("nearest", "stochastic"), EVERY), (PRERESNET20, "nearest", 1)]
GROUPS = ["linear", "conv", "activation"]
FORMATS = {"forward_number": "e4m3fn", "backward_number": "e5m2", "weight_number": "e4m3fn"}

Step = Callable[[], object]


def parameters() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = pairwise(WIDTHS)
    return [(rng.normal(size=(n, m)).astype("f4") / m**0.5, np.zeros(n, "f4")) for m, n in shapes]


def images() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(IMAGES, 3, 32, 32)).astype("f4")


def features() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(BATCH, WIDTHS[0])).astype("f4")


def torch_model(name: str) -> Any:
    import torch

    if name == PRERESNET20:
        from examples.models_torch import PreResNet20

        return PreResNet20()
    layers: list[torch.nn.Module] = []
    for weight, bias in parameters():
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def torch_steps(name: str, rounding: str, every: int) -> tuple[Step, Step]:
    """Watched steps, as many as one of which is looked at, and as many unwatched ones, of models of their own."""
    import torch

    from qtorch.insight import watch
    from qtorch.optim import OptimLP
    from qtorch.recipes import lower

    x = torch.from_numpy(images() if name == PRERESNET20 else features())
    ways: dict[str, Any] = FORMATS | {"forward_rounding": rounding, "backward_rounding": rounding}

    def make(watched: bool) -> Step:
        model = lower(torch_model(name), GROUPS, **ways)
        optimizer = OptimLP(torch.optim.SGD(model.parameters(), lr=1e-3), weight_quant="bfloat16")
        watching = watch(model, optimizer, every=every) if watched else None

        def step() -> object:
            for _ in range(every):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                if watching is not None:
                    watching.step()
            return None if watching is None else watching.record

        return step

    return make(True), make(False)


def jax_model(name: str) -> tuple[Any, Callable[..., Any]]:
    """Parameters, and a function of them, of what is not trained, and of a batch."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    if name == PRERESNET20:
        from examples.models_jax import PreResNet20

        graph, params, rest = nnx.split(PreResNet20(rngs=nnx.Rngs(0)), nnx.Param, ...)
        return (params, rest), lambda params, rest, x: nnx.merge(graph, params, rest)(x)

    def model(params: list[tuple[jax.Array, jax.Array]], rest: Any, x: jax.Array) -> jax.Array:
        for i, (weight, bias) in enumerate(params):
            with jax.named_scope(f"layer{i}"):
                x = x @ weight.T + bias
            if i + 1 < len(params):
                with jax.named_scope(f"relu{i}"):
                    x = jax.nn.relu(x)
        return x

    return ([tuple(map(jnp.asarray, pair)) for pair in parameters()], ()), model


def jax_steps(name: str, rounding: str, every: int) -> tuple[Step, Step]:
    import jax
    import jax.numpy as jnp
    import optax

    from qjax.insight import watch
    from qjax.optim import apply_updates, low_precision
    from qjax.recipes import lower

    x = jnp.asarray(images() if name == PRERESNET20 else features())
    tx: Any = low_precision(optax.sgd(1e-3), weight_quant="bfloat16")
    (params, rest), model = jax_model(name)
    ways: dict[str, Any] = FORMATS | {"forward_rounding": rounding, "backward_rounding": rounding}
    lowered = lower(model, GROUPS, **ways)

    def step(params: object, state: object, key: jax.Array) -> object:
        grads = jax.grad(lambda params: jnp.mean(lowered(params, rest, x, key=key) ** 2))(params)
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates, state), state  # type: ignore[arg-type]

    state, key = tx.init(params), jnp.zeros(2, jnp.uint32)
    watched, plain = jax.jit(watch(step)), jax.jit(step)

    def run(first: Callable[..., object]) -> object:
        return [jax.block_until_ready((first if i == 0 else plain)(params, state, key)) for i in range(every)]

    return lambda: run(watched), lambda: run(plain)


def measure(package: str, model: str, rounding: str, every: int, seconds: float) -> dict[str, object]:
    """One row: medians in seconds of `every` steps, one of which is looked at."""
    steps = {"torch": torch_steps, "jax": jax_steps}[package](model, rounding, every)
    watched, plain = by_turns(steps, clock_for("cpu"), seconds)
    ratio = watched.median / plain.median
    times = {"watched": watched.median, "plain": plain.median}
    how = {"package": package, "model": model, "rounding": rounding, "every": every}
    return {**how, **times, "ratio": ratio, "limit": LIMIT, "met": ratio <= LIMIT}


def torch_parts(x: np.ndarray) -> tuple[dict[str, Step], list[int]]:
    """What is timed, with arrays that are rounded; and the elements of the sites of a step."""
    import torch

    from qcore.formats.text import parse
    from qtorch import quantize
    from qtorch.insight.tensors import packed_between

    before, number = torch.from_numpy(x), parse("e4m3fn")
    after, copied = quantize(before, number), torch.empty_like(before)
    few = before[0, :16], after[0, :16]
    record = torch_steps(MLP, "nearest", 1)[0]()
    calls: dict[str, Step] = {
        "copy": lambda: copied.copy_(before),
        "statistics": lambda: packed_between(before, after, number),
        "statistics without errors": lambda: packed_between(after, after, number),
        "statistics of 16 elements": lambda: packed_between(*few, number),
    }
    return calls, [one.statistics.elements for one in record.entries if one.step == record.steps[-1]]  # type: ignore[attr-defined]


def jax_parts(x: np.ndarray) -> tuple[dict[str, Step], list[int]]:
    import jax
    import jax.numpy as jnp

    from qcore.formats.text import parse
    from qcore.insight.bounds import range_of
    from qcore.insight.law import Bounds, Effects, effects
    from qcore.law.carrier import FLOAT32
    from qjax import quantize
    from qjax._namespace import Names
    from qjax.insight import statistics_between

    before, number = jnp.asarray(x), parse("e4m3fn")
    after = quantize(before, number)
    ends = Bounds(*range_of(number, FLOAT32).constants)

    def seen(x: jax.Array, y: jax.Array) -> Effects:
        return effects(Names, x.view(jnp.int32).reshape(-1), y.view(jnp.int32).reshape(-1), ends)

    def keys(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = seen(x, y)
        return found.number_key, found.error_key

    def counts(keys: jax.Array) -> jax.Array:
        return jnp.zeros(1 << 14, jnp.int32).at[keys].add(1, mode="promise_in_bounds")

    of_numbers, of_errors = jax.jit(keys)(before, after)
    parts: dict[str, tuple[Callable[..., object], tuple[jax.Array, ...]]] = {
        "copy": (jnp.copy, (before,)),
        "statistics": (lambda x, y: statistics_between(x, y, number), (before, after)),
        "keys": (keys, (before, after)),
        "counts of numbers": (counts, (of_numbers,)),
        "counts of errors": (counts, (of_errors,)),
        "statistics of 16 elements": (lambda x, y: statistics_between(x, y, number), (before[0, :16], after[0, :16])),
    }

    def call(function: Callable[..., object], arrays: tuple[jax.Array, ...]) -> Step:
        compiled = jax.jit(function)
        return lambda: jax.block_until_ready(compiled(*arrays))

    (_, found), *_ = jax_steps(MLP, "nearest", 1)[0]()  # type: ignore[misc]
    return {name: call(*part) for name, part in parts.items()}, [one.elements for one in found.values()]


def measure_parts(package: str, seconds: float) -> dict[str, object]:
    """Nanoseconds for each element of an array of 512 x 512, rounded to e4m3fn; and what a step has of these."""
    x = np.random.default_rng(2).normal(size=(512, 512)).astype("f4")
    calls, sizes = {"torch": torch_parts, "jax": jax_parts}[package](x)
    times = by_turns(list(calls.values()), clock_for("cpu"), seconds)
    parts = {name: time.median / x.size * 1e9 for name, time in zip(calls, times, strict=True)}
    return {"package": package, "sites": len(sizes), "elements": sum(sizes), "nanoseconds": parts}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time a watched training step against an unwatched one.")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each row, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    console = Console(highlight=False)
    facts = {"versions": versions(), "machine": machine("cpu")}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    rows = [measure(package, *run, options.seconds) for package, run in product(("torch", "jax"), RUNS)]
    table = Table("package", "model", "rounding", "every", "watched", "unwatched", "ratio", "limit", box=SIMPLE)
    for row in rows:
        watched, plain = (f"{row[name] * 1e3:.1f} ms" for name in ("watched", "plain"))  # type: ignore[operator]
        limit = f"<= {LIMIT:g} {'met' if row['met'] else 'MISSED'}"
        table.add_row(
            *(str(row[name]) for name in ("package", "model", "rounding", "every")),
            watched,
            plain,
            f"{row['ratio']:.2f}",
            limit,
        )
    console.print(table)
    parts = [measure_parts(package, options.seconds) for package in ("torch", "jax")]
    for one in parts:
        console.print(one, soft_wrap=True)
    if options.json:
        write_results(options.json, facts | {"rows": rows, "parts": parts})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
