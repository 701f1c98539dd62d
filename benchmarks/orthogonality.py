"""How far Muon's Newton-Schulz iterations are from orthogonal, by coefficients, format and accumulator.

Usage:
    python -m benchmarks.orthogonality
    python -m benchmarks.orthogonality --json benchmarks/results/orthogonality.json

A matrix of 64 rows and 96 columns has singular values from 1 to 1/1000, evenly spaced in logarithms. An error is the
Frobenius norm of X X^T - I over the root of the count of rows, in float64. Iterations have the same bits on all
machines; the matrix is float64 sums of NumPy's, which are rounded to float32.
"""

from __future__ import annotations

import argparse
import sys
from math import inf
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.support.arguments import output_file
from benchmarks.support.results import write_results
from benchmarks.support.timing import versions
from qcore.reproducible.muon import COEFFICIENTS
from qtorch import reproducible

ROWS, COLUMNS = 64, 96
LEAST = -3.0  # log10 of the least singular value
FORMS: dict[str, dict[str, Any]] = {
    "float32": {"storage": None},
    "float16": {"storage": "float16"},
    "bfloat16": {"storage": "bfloat16"},
    "bfloat16, Hopper": {"storage": "bfloat16", "accumulator": "hopper.wgmma.bf16"},
    "e4m3fn products": {"storage": "bfloat16", "operands": ("e4m3fn", "e4m3fn")},
    "MXFP8 products": {"storage": "bfloat16", "operands": ("mxfp8_e4m3", "mxfp8_e4m3")},
}


def matrix() -> torch.Tensor:
    """The matrix of all rows."""
    # Not by a decomposition, whose bits are the machine's: reflections are products and sums.
    x = np.zeros((ROWS, COLUMNS))
    np.fill_diagonal(x, 10.0 ** (LEAST * np.arange(ROWS) / (ROWS - 1)))
    random = np.random.default_rng(0)
    for _ in range(8):
        left, right = random.standard_normal(ROWS), random.standard_normal(COLUMNS)
        x = x - np.outer(left, (left[:, None] * x).sum(0)) * (2 / (left * left).sum())
        x = x - np.outer((x * right).sum(1), right) * (2 / (right * right).sum())
    return torch.from_numpy(x.astype(np.float32))


def error(x: torch.Tensor, coefficients: str, form: str) -> float | None:
    """The error of a set in a format; None where the iterations leave the numbers."""
    y = reproducible.orthogonalize(x, coefficients, **FORMS[form]).double()
    found = float((y @ y.T - torch.eye(ROWS, dtype=torch.float64)).norm()) / ROWS**0.5
    return float(f"{found:.3g}") if found < inf else None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.orthogonality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write versions and rows there")
    options = parser.parse_args(argv)
    x = matrix()
    rows = [
        {"coefficients": name, "form": form, "error": error(x, name, form)} for name in COEFFICIENTS for form in FORMS
    ]
    table = Table("coefficients", *FORMS)
    for name in COEFFICIENTS:
        table.add_row(name, *(str(row["error"]) for row in rows if row["coefficients"] == name))
    Console().print(table)
    if options.json:
        write_results(options.json, {"versions": versions(), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
