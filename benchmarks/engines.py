"""What engines cost: a pass of 512 tokens through a small Llama beside float32, attention and softmax alone.

Usage:
    python -m benchmarks.engines --threads 1 --json benchmarks/results/engines.json

The models need transformers, of the extra `models`; without it attention alone is timed. All layers of a model have
defined bits (`qtorch.reproducible.convert`). All calls of a row take turns, and medians are compared. A row with a
limit says whether it is met, and has the memory that a call takes at its peak, measured in a process of its own; the
exit status is 0 all the same: a benchmark reports, it does not judge.
"""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

import qjax.engines
from benchmarks.support.memory import peak_of, reset_peak
from benchmarks.support.results import write_results
from benchmarks.support.timing import by_turns, clock_for, default_allocator, keep_pages, machine, versions
from benchmarks.support.torchvision import describe_operators
from qcore.engines import ENGINES
from qtorch import reproducible
from qtorch.engines import apply, attention

TOKENS, WIDTH, LAYERS, VOCABULARY = 512, 256, 4, 512
LIMITS = {"exact": 5.0, "fa3.hopper.fp8": 20.0, "fa3.hopper.bf16": 20.0}  # of a pass, times torch's float32
JAX_LIMITS = {"exact": 10.0}  # of attention
JAX_ENGINES = "exact", "fa3.hopper.fp8"
SOFTMAX_LIMIT = 6.0  # times torch's

Call = Callable[[], object]


class Case(NamedTuple):
    """What makes a call, and the one that it is compared with; and the largest ratio that is promised, if one is."""

    what: str
    make: Callable[[], tuple[Call, Call]]
    limit: float | None


def model_of(head: int) -> Any:
    """A Llama of random weights, whose heads have this size."""
    describe_operators()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = WIDTH // head
    settings = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head,
        vocab_size=VOCABULARY,
        **settings,
    )
    return LlamaForCausalLM(config).eval()


def one_pass(name: str, head: int) -> tuple[Call, Call]:
    """One pass of a whole model."""
    tokens = torch.randint(1, VOCABULARY, (1, TOKENS))
    models: list[Any] = [reproducible.convert(apply(model_of(head), name)), model_of(head)]
    ours, plain = (torch.no_grad()(partial(model, tokens, use_cache=False)) for model in models)
    return ours, plain


def operands(head: int) -> torch.Tensor:
    return torch.randn(3, 1, WIDTH // head, TOKENS, head)


def attention_alone(name: str, head: int) -> tuple[Call, Call]:
    q, k, v = operands(head)
    plain = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    return partial(attention, q, k, v, name), plain


def attention_in_jax(name: str, head: int) -> tuple[Call, Call]:
    arrays = [jnp.asarray(x.numpy()) for x in operands(head)]
    plain = jax.jit(partial(jax.nn.dot_product_attention, is_causal=True))
    ours = jax.jit(partial(qjax.engines.attention, engine=name))
    return partial(_finished, ours, *arrays), partial(_finished, plain, *(jnp.swapaxes(x, 1, 2) for x in arrays))


def softmax() -> tuple[Call, Call]:
    """Of the scores of eight heads."""
    scores = torch.randn(8, TOKENS, TOKENS)
    return partial(reproducible.softmax, scores), partial(torch.softmax, scores, -1)


def cases() -> Iterator[Case]:
    yield Case(f"softmax, 8 x {TOKENS} x {TOKENS}", softmax, SOFTMAX_LIMIT)
    for head in (128, 64):
        for name in ENGINES:
            yield Case(f"attention, heads of {head}, {name}", partial(attention_alone, name, head), None)
        for name in JAX_ENGINES:
            made = partial(attention_in_jax, name, head)
            yield Case(f"attention in JAX, heads of {head}, {name}", made, JAX_LIMITS.get(name))
    for head in (128, 64) if find_spec("transformers") else ():
        for name in ENGINES:
            yield Case(f"a pass, heads of {head}, {name}", partial(one_pass, name, head), LIMITS.get(name))


def _finished(program: Callable[..., Any], *arrays: Any) -> Any:
    return program(*arrays).block_until_ready()


def measured(case: Case, seconds: float, threads: int | None) -> dict[str, Any]:
    ours, baseline = by_turns(list(case.make()), clock_for("cpu"), seconds)
    ratio = ours.median / baseline.median
    met = None if case.limit is None else ratio <= case.limit
    row = {"what": case.what, "seconds": ours.median, "baseline": baseline.median, "ratio": ratio}
    return row | {"limit": case.limit, "met": met} | ({} if case.limit is None else memory_of(case, threads))


def memory_of(case: Case, threads: int | None) -> dict[str, int]:
    """`memory` in a process whose allocator returns memory."""
    command = [sys.executable, "-m", "benchmarks.engines", "--memory", case.what, *_threads(threads)]
    env = default_allocator() | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}  # what is freed is not in use
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def memory(case: Case) -> dict[str, int]:
    """The bytes that a call takes at its peak, and those of what it is compared with."""
    found = {}
    for name, call in zip(("bytes", "baseline_bytes"), case.make(), strict=True):
        call()  # which may compile
        source, before = reset_peak("cpu")
        call()
        found[name] = max(peak_of(source) - before, 0)
    return found


def _threads(threads: int | None) -> list[str]:
    return [] if threads is None else ["--threads", str(threads)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="for each row, of which each call gets five turns at least"
    )
    parser.add_argument("--threads", type=int, help="of torch; JAX takes what the process may")
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--memory", metavar="ROW", help="prints the memory of one row")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.memory:
        (case,) = (one for one in cases() if one.what == arguments.memory)
        print(json.dumps(memory(case)))
        return
    keep_pages()
    rows = []
    for case in cases():
        print(f"{case.what:60}", end="", flush=True)
        row = measured(case, arguments.seconds, arguments.threads)
        limit = "" if row["limit"] is None else f"  at most {row['limit']:g}: {'met' if row['met'] else 'NOT met'}"
        limit += f"{row['bytes'] / 2**20:9.1f} MiB, {row['baseline_bytes'] / 2**20:.1f}" if "bytes" in row else ""
        print(f"{row['seconds'] * 1e3:9.1f} ms{row['ratio']:7.1f} x{limit}", flush=True)
        rows.append(row)
    if arguments.json:
        facts = {"threads": arguments.threads or torch.get_num_threads(), "versions": versions()}
        write_results(arguments.json, {"machine": machine("cpu"), **facts, "rows": rows})


if __name__ == "__main__":
    main()
