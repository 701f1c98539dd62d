"""Measurements for each instruction set that this processor has, in processes of their own.

The set decides which kernels of torch's and ours run, from the start of a process on: `ATEN_CPU_CAPABILITY` says which.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from signal import Signals
from typing import Any

import torch

from benchmarks.support.timing import ROOT


def instruction_sets() -> list[str]:
    """Those of torch's that this processor has, by the names that `ATEN_CPU_CAPABILITY` takes."""
    if "ATEN_CPU_CAPABILITY" in os.environ:
        return [os.environ["ATEN_CPU_CAPABILITY"]]
    return {"AVX512": ["avx2", "avx512"], "AVX2": ["avx2"]}.get(torch.backends.cpu.get_cpu_capability(), ["default"])


def measure_apart(module: str, vectors: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """What a benchmark's `--vectors` prints, an object a line.

    If a signal ends it, that is what it printed before: torch 2.13 compiles programs whose AVX-512 kernels write past
    their buffers (torch's issue 181689), with or without a quantizer.

    Args:
        module: the benchmark, a program that takes `--vectors`.
        vectors: an instruction set, or another name that the benchmark knows, which leaves the set as it is.
        arguments: more of them.
    """
    chosen = {"ATEN_CPU_CAPABILITY": vectors} if vectors in ("avx2", "avx512") else {}
    command = [sys.executable, "-m", module, "--vectors", vectors, *arguments]
    done = subprocess.run(command, env=os.environ | chosen, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode < 0:
        print(f"{vectors}: ended by {Signals(-done.returncode).name}; rows are missing", file=sys.stderr)
    elif done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command)
    return [json.loads(line) for line in done.stdout.splitlines()]
