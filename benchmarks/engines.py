"""How long engines take: a pass of 512 tokens through a small Llama beside float32, and attention alone.

Usage:
    python -m benchmarks.engines --threads 1
    python -m benchmarks.engines --seconds 5 --json engines.json

The models need transformers, of the extra `models`; without it attention alone is timed. All layers of a model have
defined bits (`qtorch.reproducible.convert`). All calls of a row take turns, and medians are compared. A row with a
limit says whether it is met; the exit status is 0 all the same: a benchmark reports, it does not judge.
"""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

import qjax.engines
from benchmarks.support.results import write_results
from benchmarks.support.timing import by_turns, clock_for, keep_pages, machine, versions
from qcore.engines import ENGINES
from qtorch import reproducible
from qtorch.engines import apply, attention

TOKENS, WIDTH, LAYERS, VOCABULARY = 512, 256, 4, 512
LIMITS = {"exact": 5.0, "fa3.hopper.fp8": 20.0, "fa3.hopper.bf16": 20.0}  # of a pass, times torch's float32
JAX_LIMITS = {"exact": 10.0}  # of attention
JAX_ENGINES = "exact", "fa3.hopper.fp8"


class Case(NamedTuple):
    """A call, what it is compared with, and the largest ratio that is promised, if one is."""

    what: str
    call: Callable[[], object]
    baseline: Callable[[], object]
    limit: float | None


def model_of(head: int) -> Any:
    """A Llama of random weights, whose heads have this size."""
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


def passes(head: int) -> Iterator[Case]:
    """One pass of a whole model."""
    tokens = torch.randint(1, VOCABULARY, (1, TOKENS))
    plain = torch.no_grad()(partial(model_of(head), tokens, use_cache=False))
    for name in ENGINES:
        model: Any = reproducible.convert(apply(model_of(head), name))
        call = torch.no_grad()(partial(model, tokens, use_cache=False))
        yield Case(f"a pass of {TOKENS} tokens, heads of {head}, {name}", call, plain, LIMITS.get(name))


def attentions(head: int) -> Iterator[Case]:
    """Attention alone, in torch and in JAX."""
    q, k, v = torch.randn(3, 1, WIDTH // head, TOKENS, head)
    plain = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=True)
    for name in ENGINES:
        yield Case(f"attention, heads of {head}, {name}", partial(attention, q, k, v, name), plain, None)
    arrays = [jnp.asarray(x.numpy()) for x in (q, k, v)]
    moved = [jnp.swapaxes(x, 1, 2) for x in arrays]
    program = jax.jit(partial(jax.nn.dot_product_attention, is_causal=True))
    plain = partial(_finished, program, *moved)
    for name in JAX_ENGINES:
        ours = jax.jit(partial(qjax.engines.attention, engine=name))
        limit = JAX_LIMITS.get(name)
        yield Case(f"attention in JAX, heads of {head}, {name}", partial(_finished, ours, *arrays), plain, limit)


def _finished(program: Callable[..., Any], *arrays: Any) -> Any:
    return program(*arrays).block_until_ready()


def measured(case: Case, seconds: float) -> dict[str, Any]:
    ours, baseline = by_turns([case.call, case.baseline], clock_for("cpu"), seconds)
    ratio = ours.median / baseline.median
    met = None if case.limit is None else ratio <= case.limit
    return {
        "what": case.what,
        "seconds": ours.median,
        "baseline": baseline.median,
        "ratio": ratio,
        "limit": case.limit,
        "met": met,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--threads", type=int, help="of torch; JAX takes what the process may")
    parser.add_argument("--json", help="a file for the results")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    cases = [*attentions(128), *attentions(64)]
    if find_spec("transformers"):
        cases += [*passes(128), *passes(64)]
    rows = []
    for case in cases:
        row = measured(case, arguments.seconds)
        limit = "" if row["limit"] is None else f"  at most {row['limit']:g}: {'met' if row['met'] else 'NOT met'}"
        print(f"{row['what']:60}{row['seconds'] * 1e3:9.1f} ms{row['ratio']:7.1f} x{limit}", flush=True)
        rows.append(row)
    if arguments.json:
        write_results(arguments.json, {"machine": machine("cpu"), "versions": versions(), "rows": rows})


if __name__ == "__main__":
    keep_pages()
    main()
