"""The instruction sets: kernels take vectors in all of them, and have the same bits on hard inputs."""

import platform

import numpy as np
import pytest
import torch
from covering import some
from support import assert_same_bits

import qcore
import qtorch
from benchmarks import instructions
from benchmarks.support.inputs import hard_inputs
from benchmarks.support.vectors import instruction_sets
from qtorch._kernels import compiler

X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the sets are those of x86")
CASES = [
    ("posit16", "up", np.float32),
    ("nvfp4", "nearest", np.float32),
    ("float(5,2)", "stochastic", np.float64),
    ("e8m0fnu", "nearest", np.float64),
    ("mxfp8_e4m3", "nearest", np.float64),
    ("nvfp4", "nearest", np.float64),
]


@pytest.mark.heavy
@X86
@pytest.mark.parametrize("vectors", ["default", *instruction_sets()])
def test_the_same_bits(vectors, fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", vectors)
    for text, mode, dtype in CASES:
        number, key = qcore.parse(text), 5 if mode == "stochastic" else None
        for x in hard_inputs(number, 3000, dtype):
            expected = qcore.quantize(x, number, mode, key=key)
            assert_same_bits(qtorch.quantize(torch.from_numpy(x), number, mode, key=key), expected, f"{text} {mode}")
    assert compiler.target_flags() == compiler.X86_FLAGS[vectors]
    assert len(list(tmp_path.glob("kernels/*.so"))) == 6


@X86
@some(
    (0, 0),
    (0, 1),
    (1, 0),
    (2, 1),
    text=["float(5,2)", "e8m0fnu", "posit16", "mxfp8_e4m3", "nvfp4"],
    vectors=list(instructions.SETS),
)
def test_loops_take_vectors(text, vectors):
    """Also of float64, of which compilers find it hardest."""
    for dtype in (torch.float32, torch.float64):
        found = list(instructions.passes(text, "nearest", dtype, vectors))
        assert "elements" in {one.name for one in found}
        assert all(one.elements >= instructions.SETS[vectors][1] // dtype.itemsize for one in found)
