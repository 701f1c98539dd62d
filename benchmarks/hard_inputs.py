"""Finds the inputs whose float64 result lies within 4 units in the last place of the middle of two float32 numbers.

    python -m benchmarks.hard_inputs                       all functions, all 2^32 inputs: 23 passes of about a minute
    python -m benchmarks.hard_inputs --functions exp log --seconds 60

Only there can libraries differ whose float64 functions err by 4 units. It writes qcore/numerics/hard_inputs.json: how
far the search has come, the inputs, and the correct results, which mpmath computes. The same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import mpmath
import numpy as np
import torch

from benchmarks.support.arguments import output_file
from qcore.numerics.elementary.laws import IN_FLOAT64
from qcore.numerics.operations import SMALLEST
from qtorch.reproducible.tensor_names import Names

FILE = Path(__file__).parent.parent / "qcore" / "numerics" / "hard_inputs.json"
PATTERNS, CHUNK, SAVED = 1 << 32, 1 << 20, 1 << 28  # all inputs; at a time; after how many the file is written
DROPPED, UNITS = 29, 4  # bits of float64 that float32 lacks; how near to their middle
DIGITS, MANTISSA, BIGGEST = 80, 24, 2.0**128

CORRECT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "log1p_slope": lambda x: 1 / (1 + x),
    "tanh": mpmath.tanh,
    "tanh_slope": lambda x: mpmath.sech(x) ** 2,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "sigmoid_slope": lambda x: mpmath.sech(x / 2) ** 2 / 4,
    "erf": mpmath.erf,
    "erf_slope": lambda x: 2 * mpmath.exp(-x * x) / mpmath.sqrt(mpmath.pi),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "sqrt": mpmath.sqrt,
    "sqrt_slope": lambda x: 1 / (2 * mpmath.sqrt(x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "rsqrt_slope": lambda x: -1 / (2 * x * mpmath.sqrt(x)),
    "reciprocal": lambda x: 1 / x,
    "reciprocal_slope": lambda x: -1 / (x * x),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "normal_distribution": lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "normal_density": mpmath.npdf,
}


def search(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The compiled function that says which float32 numbers are hard."""

    @torch.compile(fullgraph=True)
    def hard(x: torch.Tensor) -> torch.Tensor:
        y = IN_FLOAT64[name](Names, Names.wide(Names.settled(x)))
        distance = (y.view(torch.int64) & ((1 << DROPPED) - 1)) - (1 << (DROPPED - 1))
        return (abs(distance) <= UNITS) & (abs(y) > SMALLEST) & (abs(y) < BIGGEST)

    return hard


def correct(name: str, pattern: str) -> str:
    """The bits of the correctly rounded result, in hexadecimal."""
    x = float(np.uint32(int(pattern, 16)).view(np.float32))
    with mpmath.workdps(DIGITS):
        y = CORRECT[name](mpmath.mpf(x))
    with mpmath.workprec(MANTISSA):
        found = np.float32(float(+y))
    return f"{int(found.view(np.uint32)):08x}"


def scan(name: str, start: int, stop: int, hard: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    """The hard bit patterns from `start` to below `stop`."""
    found = []
    for begin in range(start, stop, CHUNK):
        x = np.arange(begin, begin + CHUNK, dtype=np.uint32)
        found += [f"{begin + place:08x}" for place in torch.nonzero(hard(torch.from_numpy(x.view(np.float32)))).ravel()]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.hard_inputs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--functions", metavar="NAME", choices=list(CORRECT), nargs="+", default=list(CORRECT))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these (default: never)")
    parser.add_argument("--json", metavar="FILE", type=output_file, default=FILE)
    arguments = parser.parse_args(argv)
    known = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    end = perf_counter() + arguments.seconds
    for name in arguments.functions:
        row = known.setdefault(name, {"searched": 0, "hard": {}})
        torch._dynamo.reset()
        hard = search(name)
        while row["searched"] < PATTERNS:
            if perf_counter() > end:
                return 3
            stop = row["searched"] + SAVED
            row["hard"] |= {one: correct(name, one) for one in scan(name, row["searched"], stop, hard)}
            row["searched"] = stop
            arguments.json.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
            print(f"{name}: {stop / PATTERNS:.0%}, {len(row['hard'])} hard inputs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
