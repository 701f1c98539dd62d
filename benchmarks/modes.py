"""What the mode costs that finds products where they happen: steps of a GPT whose recipe leaves all of them wide.

Usage:
    python -m benchmarks.modes
    python -m benchmarks.modes --json modes.json

Blocks multiply by `F.linear` with their own parameters, so each step runs in the mode of its block. The model with and
without it take turns. Times are those of the processor, in one thread, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from time import process_time

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.support.results import write_results
from benchmarks.support.timing import keep_pages, machine, versions
from qcore import Entry, Recipe
from qtorch.recipes import lower

WIDTHS, BLOCKS, TOKENS, HEAD = (64, 512), 4, 128, 64
_WIDE = Recipe([Entry("*", kind) for kind in (None, "attention", "matmul")])


@dataclass(frozen=True)
class Row:
    """A width: seconds of a step in the mode and without it, and how many times longer turns took in it.

    `low` and `high` are the quartiles of the turns.
    """

    width: int
    seconds: float
    without: float
    ratio: float
    low: float
    high: float


def _weight(outputs: int, inputs: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)


class Block(nn.Module):
    """A block of a GPT whose products are its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.out = _weight(3 * width, width), _weight(width, width)
        self.up, self.down = _weight(4 * width, width), _weight(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = F.linear(self.before(x), self.heads).view(*x.shape[:-1], 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + F.linear(y, self.out)
        return x + F.linear(F.gelu(F.linear(self.between(x), self.up)), self.down)


def _seconds(model: nn.Module, x: torch.Tensor, steps: int) -> float:
    begin = process_time()
    for _ in range(steps):
        model.zero_grad()
        model(x).square().mean().backward()
    return (process_time() - begin) / steps


def measure(width: int, turns: int, steps: int) -> Row:
    """Steps of the model with and without the mode, which take turns.

    Args:
        width: of the model, a multiple of 64.
        turns: of each of the two.
        steps: in each turn.
    """
    torch.manual_seed(0)
    plain, x = nn.Sequential(*(Block(width) for _ in range(BLOCKS))), torch.randn(1, TOKENS, width)
    pair = (lower(copy.deepcopy(plain), _WIDE), plain)
    with warnings.catch_warnings():  # the recipe lowers nothing: the cost of looking is measured
        warnings.filterwarnings("ignore", "the recipe lowers 0.0%", UserWarning)
        for model in pair:
            _seconds(model, x, 2)
    found: list[tuple[float, float]] = []
    for turn in range(turns):
        order = (0, 1) if turn % 2 else (1, 0)
        times = {place: _seconds(pair[place], x, steps) for place in order}
        found.append((times[0], times[1]))
    low, ratio, high = quantiles([one / other for one, other in found], n=4)
    return Row(width, median(one for one, _ in found), median(other for _, other in found), ratio, low, high)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time a GPT's steps with and without the mode that finds products.")
    parser.add_argument("--turns", type=int, default=25, help="of each of the two")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    facts = {"versions": versions(), "machine": machine("cpu")}
    rows = [measure(width, options.turns, max(1, 1024 // width)) for width in WIDTHS]
    for row in rows:
        print(f"width {row.width}: {row.ratio:.3f} times the step without (quartiles {row.low:.3f} to {row.high:.3f})")
    if options.json:
        write_results(options.json, facts | {"rows": [asdict(row) for row in rows]})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
