"""Finds the inputs whose float64 result lies within 16 units in the last place of the middle of two float32 numbers.

    python -m benchmarks.hard_inputs                       all functions, all 2^32 inputs: a minute for each function
    python -m benchmarks.hard_inputs --sixteenths 1        every sixteenth input
    python -m benchmarks.hard_inputs --functions exp log --seconds 60

Only there can libraries differ whose float64 functions err by so much. A kernel of compiled PyTorch searches. Written
to qcore/reproducible/hard_inputs.json: how many sixteenths of all inputs were searched (the n-th one has the bit
patterns n - 1, n + 15, n + 31 and so on, so that each has numbers of all magnitudes), the hard inputs, the correct
results, which mpmath computes, and where the law defines the float32 number beside the correct one (twice rounded, in
float64 to the very middle) this number. The same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import mpmath
import numpy as np

from benchmarks.support.arguments import count_of, output_file
from qcore.files import write_text
from qcore.reproducible import elementary
from qcore.reproducible.operations import SMALLEST, Names

FILE = Path(__file__).parent.parent / "qcore" / "reproducible" / "hard_inputs.json"
PATTERNS, PARTS, CHUNK = 1 << 32, 16, 1 << 17  # all inputs, in so many parts; so many at a time stay in the cache
DROPPED, UNITS = 29, 16  # bits of float64 that float32 lacks; how near to their middle
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
    "silu_slope": lambda x: mpmath.sech(x / 2) ** 2 / 4 * (1 + mpmath.exp(x) + x),
    "gelu": lambda x: x * mpmath.ncdf(x),
    "gelu_slope": lambda x: mpmath.ncdf(x) + x * mpmath.npdf(x),
    "gelu_tanh": lambda x: x / (1 + mpmath.exp(-2 * _of_tanh(x))),
    "gelu_tanh_slope": lambda x: (
        1 / (1 + mpmath.exp(-2 * _of_tanh(x))) + x * _of_tanh(x, 1) * mpmath.sech(_of_tanh(x)) ** 2 / 2
    ),
}


def _of_tanh(x: Any, derivatives: int = 0) -> Any:
    """The argument of gelu's tanh, or its derivative."""
    cube = mpmath.mpf("0.044715")
    return mpmath.sqrt(2 / mpmath.pi) * (1 + 3 * cube * x**2 if derivatives else x + cube * x**3)


@lru_cache(maxsize=1)
def is_hard(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Which float32 numbers are hard for a function."""
    import torch

    from qtorch.reproducible import Names as TensorNames

    def hard(x: Any) -> Any:
        y = elementary.IN_FLOAT64[name](TensorNames, TensorNames.float64(TensorNames.settled(x)))
        distance = (y.view(torch.int64) & ((1 << DROPPED) - 1)) - (1 << (DROPPED - 1))
        return (abs(distance) <= UNITS) & (abs(y) > SMALLEST) & (abs(y) < BIGGEST)

    torch.set_num_threads(1)
    torch._dynamo.reset()
    compiled = torch.compile(hard, fullgraph=True, dynamic=False)
    return lambda x: compiled(torch.from_numpy(x)).numpy()


def correct(name: str, pattern: str) -> str:
    """The bits of the correctly rounded result, in hexadecimal."""
    x = float(np.uint32(int(pattern, 16)).view(np.float32))
    with mpmath.workdps(DIGITS):
        y = CORRECT[name](mpmath.mpf(x))
    with mpmath.workprec(MANTISSA):
        found = np.float32(float(+y))
    return f"{int(found.view(np.uint32)):08x}"


def defined(name: str, hard: dict[str, str]) -> dict[str, str]:
    """The law's results for those inputs where they are not the correct ones.

    Raises:
        ValueError: if one is not next to the correct one.
    """
    inputs, right = (np.array([int(one, 16) for one in side], np.uint32) for side in (hard, hard.values()))
    with Names.arithmetic():
        found = np.asarray(elementary.PARTS[name](Names, inputs.view(np.float32))).view(np.uint32)
    if (abs(found.astype(np.int64) - right) > 1).any():
        raise ValueError(f"{name} differs from the correct result by more than the last place")
    return {f"{x:08x}": f"{y:08x}" for x, y in zip(inputs[found != right], found[found != right], strict=True)}


def scan(name: str, part: int, stop: int = PATTERNS) -> list[str]:
    """The hard bit patterns of a part, counted from 0, below `stop`."""
    found = []
    for begin in range(part, stop, CHUNK * PARTS):
        x = np.arange(begin, min(begin + CHUNK * PARTS, stop), PARTS).astype(np.uint32)
        found += [f"{pattern:08x}" for pattern in x[is_hard(name)(x.view(np.float32))]]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.hard_inputs", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--functions", metavar="NAME", choices=list(CORRECT), nargs="+", default=list(CORRECT))
    add("--sixteenths", metavar="N", type=count_of("part", 1), default=PARTS, help="of all inputs (default: all 16)")
    add("--seconds", type=float, default=float("inf"), help="stop after these (default: never)")
    add("--json", metavar="FILE", type=output_file, default=FILE)
    arguments = parser.parse_args(argv)
    known = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.exists() else {}
    end = perf_counter() + arguments.seconds
    for name in arguments.functions:
        for part in range(min(arguments.sixteenths, PARTS)):
            row = known.setdefault(name, {"sixteenths": 0, "hard": {}})
            if row["sixteenths"] != part:
                continue
            if perf_counter() > end:
                return 3
            row["hard"] |= {one: correct(name, one) for one in scan(name, part)}
            row.update(sixteenths=part + 1, hard=dict(sorted(row["hard"].items())))
            row["defined"] = defined(name, row["hard"])
            write_text(arguments.json, json.dumps(dict(sorted(known.items())), indent=0) + "\n")
            print(f"{name}: {part + 1} sixteenths, {len(row['hard'])} hard inputs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
