"""The instruction sets: kernels take vectors in all of them, and have the same bits on hard inputs."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import instructions
from benchmarks.support.vectors import instruction_sets

ROOT = Path(__file__).parents[3]
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the sets are those of x86")
PROGRAM = """
import numpy as np
import torch
import qcore, qtorch
from benchmarks.support.inputs import hard_inputs
for text, mode, dtype in (
    ("posit16", "up", np.float32), ("nvfp4", "nearest", np.float32), ("float(5,2)", "stochastic", np.float64),
    ("e8m0fnu", "nearest", np.float64), ("mxfp8_e4m3", "nearest", np.float64), ("nvfp4", "nearest", np.float64),
):
    number, key, bits = qcore.parse(text), 5 if mode == "stochastic" else None, f"i{dtype().itemsize}"
    for x in hard_inputs(number, 3000, dtype):
        found = qtorch.quantize(torch.from_numpy(x), number, mode, key=key).numpy()
        assert (found.view(bits) == qcore.quantize(x, number, mode, key=key).view(bits)).all(), (text, mode, dtype)
"""


@X86
@pytest.mark.parametrize("vectors", ["default", *instruction_sets()])
def test_the_same_bits(vectors, tmp_path):
    variables = {"ATEN_CPU_CAPABILITY": vectors, "QTORCH_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], env=os.environ | variables, check=True, timeout=300)
    assert len(list(tmp_path.glob("kernels/*.so"))) == 6


@X86
@pytest.mark.parametrize("vectors", instructions.SETS)
@pytest.mark.parametrize("text", ["float(5,2)", "e8m0fnu", "posit16", "mxfp8_e4m3", "nvfp4"])
def test_loops_take_vectors(text, vectors):
    """Also of float64, of which compilers find it hardest."""
    for dtype in (torch.float32, torch.float64):
        found = list(instructions.passes(text, "nearest", dtype, vectors))
        assert "elements" in {one.name for one in found}
        assert all(one.elements >= instructions.SETS[vectors][1] // dtype.itemsize for one in found)
