"""Where decoding and one pass of an engine first differ, and by how much: what others measured, and what nobody did.

Usage:
    python -m benchmarks.engines_differences --json benchmarks/results/engines-differences.json

Numbers are drawn from NumPy's generator, and the results are the same on every machine: nothing is timed. The row that
compares bfloat16 with float16 needs transformers, of the extra `models`.
"""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.support.results import write_results
from benchmarks.support.timing import versions
from benchmarks.support.torchvision import describe_operators
from qcore.engines import Attention, Engine, KVCache, attention
from qtorch.engines import mismatch

LENGTH, WINDOW = 224, 64
ALL = range(1, 141)
SOME = 95, 96, 97, 98, *range(100, LENGTH + 1, 6)
ENGINES, MODELS = "tests/core/engines/test_engines.py", "tests/models/test_engine_mismatch.py"
MEASURED = "97 on H100 and H20 (vllm#54035)"
NOBODY = "nobody: a prediction"


def differences(
    engine: Engine | str, size: int, heads: int = 4, lengths: Iterable[int] = ALL, **settings: Any
) -> np.ndarray:
    """For each head, and for some lengths of the keys, the largest difference of decoding from one pass."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, heads, LENGTH, size)).astype(np.float32)
    whole = attention(q, k, v, engine, **settings)
    found = []
    for n in lengths:
        step = attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], engine, **settings)
        found.append(abs(step - whole[:, :, n - 1 : n])[0, :, 0].max(-1))
    return np.stack(found, 1)


def first(found: np.ndarray) -> int | None:
    """The first of all lengths at which a head differs."""
    lengths = np.flatnonzero(found.any(0))
    return int(lengths[0]) + 1 if len(lengths) else None


def rows_of_attention() -> list[dict[str, Any]]:
    fp8, largest = differences("fa3.hopper.fp8", 128), differences("fa3.hopper.fp8", 128, 20, SOME)
    bf16, small = differences("fa3.hopper.bf16", 128), differences("fa3.hopper.bf16", 64)
    engine = Engine.of("fa3.hopper.bf16")  # without the last rounding, which hides most differences in one tile
    wide = replace(engine, attention=replace(engine.attention, output=None))
    window = differences(wide, 128, window=WINDOW)
    keys = "key length at which decoding first differs"
    return [
        {
            "what": f"FlashAttention 3, FP8, heads of 128: {keys}",
            "found": first(fp8),
            "said": MEASURED,
            "test": f"{ENGINES} -k 97",
        },
        {
            "what": "the same: largest difference, median of 20 heads",
            "found": round(float(np.median(largest.max(1))), 4),
            "said": "0.0098 to 0.0103 (vllm#54035)",
            "test": f"{ENGINES} -k 97",
        },
        {
            "what": "the same in bfloat16",
            "found": first(bf16),
            "said": "none (vllm#54035)",
            "test": f"{ENGINES} -k equal_tiles",
        },
        {"what": f"bfloat16, heads of 64: {keys}", "found": first(small), "said": NOBODY, "test": f"{ENGINES} -k 129"},
        {
            "what": f"bfloat16, heads of 128, window of {WINDOW}, before the result is rounded: {keys}",
            "found": first(window),
            "said": NOBODY,
            "test": "tests/core/engines/test_windows.py -k flash_attention_decodes",
        },
    ]


def in_format(number: str) -> tuple[Engine, Engine]:
    """A trainer and a server that differ in the order of attention alone, all in one format."""
    rounds: dict[str, Any] = {"activations": number, "norm": "twice", "tables": number}
    trainer = Engine(Attention(None, number, number, number, scale="rounded", end="weights"), **rounds)
    server = Engine(Attention(None, number, number, number, tiles=(256, 32, 32)), KVCache(number), **rounds)
    return trainer, server


def model(seed: int) -> Any:
    """A Llama of 4 layers and random weights, which are numbers of both formats."""
    describe_operators()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 100, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.06, "pad_token_id": 0}
    found = LlamaForCausalLM(LlamaConfig(**sizes, **heads, bos_token_id=None, eos_token_id=None)).eval()
    for weight in found.parameters():
        weight.data = (weight.data + 0.1 * (weight.dim() == 1) * torch.randn(weight.shape)).bfloat16().half().float()
    return found


def row_of_formats() -> dict[str, Any]:
    """How many times nearer trainer and server are in float16."""
    text = torch.randint(1, 100, (1, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    settings = {"prompt": LENGTH, "attribution": False}
    ratios = []
    for seed in range(5):
        wide, narrow = (mismatch(model(seed), *in_format(one), text, **settings) for one in ("bfloat16", "float16"))
        ratios.append(float(wide.rms / narrow.rms))
    return {
        "what": f"RMS of d in bfloat16, over float16's: five models of 4 layers, {LENGTH} tokens",
        "found": f"{min(ratios):.1f} to {max(ratios):.1f}",
        "said": "8 by three more bits (arXiv 2510.26788)",
        "test": f"-m models {MODELS} -k float16",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines_differences")
    parser.add_argument("--json", help="a file for the results")
    arguments = parser.parse_args()
    rows = [*rows_of_attention(), row_of_formats()]
    for row in rows:
        print(f"{row['what']:70}{row['found'] or 'none'!s:>8}   {row['said']}")
    if arguments.json:
        write_results(arguments.json, {"versions": versions(), "rows": rows})


if __name__ == "__main__":
    main()
