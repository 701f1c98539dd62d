"""What the first page shows: where decoding parts from a prefill, and what a ring leaves of a gradient.

Usage:
    python -m benchmarks.first_page
    python -m benchmarks.first_page --json benchmarks/results/first-page.json

The first: one layer of FlashAttention 3 on Hopper with an FP8 cache, normal numbers, 8 heads of size 128. For each
length a token, whose query stays the same, is computed by a prefill of all tokens, and by a decoding step. The second:
N ranks have gradients of 1 with noise of 0.3, summed around a ring and up a tree in bfloat16; the mean of the sum is
divided by N.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from benchmarks.support.arguments import output_file
from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from qtorch.distributed import reduce
from qtorch.engines import attention

ENGINE, HEADS, SIZE, LONGEST = "fa3.hopper.fp8", 8, 128, 224
LAWS = "nccl.ring.bf16", "nccl.tree.bf16"
RANKS = 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384
NUMBERS, NOISE = 1024, 0.3


def parted() -> Iterator[dict[str, float]]:
    """By the count of keys, how many of a token's outputs differ between a prefill and a step, and by how much."""
    numbers = np.random.default_rng(0).standard_normal((3, 1, HEADS, LONGEST, SIZE))
    q, k, v = torch.from_numpy(numbers).to(torch.bfloat16)
    token = q[:, :, -1:]
    for keys in range(1, LONGEST + 1):
        cache = k[:, :, :keys], v[:, :, :keys]
        whole = attention(torch.cat([q[:, :, : keys - 1], token], 2), *cache, ENGINE)[:, :, -1]
        step = attention(token, *cache, ENGINE)[:, :, 0]
        differing = (whole.view(torch.int16) != step.view(torch.int16)).sum().item()
        yield {"keys": keys, "differing": differing, "largest": (whole - step).abs().max().item()}


def left() -> Iterator[dict[str, float]]:
    """By the number of ranks, the part of the gradient that each law leaves."""
    noise = np.random.default_rng(0).standard_normal((max(RANKS), NUMBERS))
    gradients = torch.from_numpy((1 + NOISE * noise).astype(np.float32))
    for ranks in RANKS:
        exact = gradients[:ranks].to(torch.float64).sum(0).mean().item()
        means = (reduce(gradients[:ranks], law).to(torch.float64).mean().item() for law in LAWS)
        yield {"ranks": ranks, **{law: round(mean / exact, 5) for law, mean in zip(LAWS, means, strict=True)}}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the results")
    options = parser.parse_args(arguments)
    positions = list(parted())
    first = next(row["keys"] for row in positions if row["differing"])
    largest = max(row["largest"] for row in positions)
    print(f"{ENGINE}: decoding and prefill first differ at {first} keys; the largest difference is {largest:.4f}")
    sums = list(left())
    print("ranks", *LAWS)
    for row in sums:
        print(*row.values())
    if options.json:
        settings = {"engine": ENGINE, "head_size": SIZE, "outputs": HEADS * SIZE, "numbers": NUMBERS, "noise": NOISE}
        found = {"settings": settings, "positions": positions, "sums": sums}
        write_results(options.json, {"machine": machine("cpu"), "versions": versions(), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
