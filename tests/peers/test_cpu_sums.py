"""Accumulators against instructions of the processor that runs the tests: a C program with intrinsics computes them."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.support import cpu_sums
from qcore import Accumulator
from qcore.linalg import matmul

LANES = 12_800_000


def proofs(name, count):
    (one,) = (one for one in cpu_sums.INSTRUCTIONS if one.name == name)
    if reason := cpu_sums.why_not(one):
        pytest.skip(reason)
    return [*cpu_sums.prove(one, count)]


@pytest.mark.parametrize("name", [one.name for one in cpu_sums.INSTRUCTIONS])
def test_few_lanes(name):
    found = proofs(name, 40_000)
    assert {row.differing for row in found} == {0}, found


@pytest.mark.heavy
@pytest.mark.parametrize("name", [one.name for one in cpu_sums.INSTRUCTIONS])
def test_many_lanes(name):
    found = proofs(name, LANES)
    assert {row.differing for row in found} == {0}, found


def test_another_order_differs(monkeypatch):
    """The even term first: the lanes tell orders apart."""
    (one,) = (one for one in cpu_sums.INSTRUCTIONS if one.name == "vdpbf16ps")
    swapped = one._replace(accumulator=Accumulator("binary(8,23)", chunk=1))
    monkeypatch.setattr(cpu_sums, "INSTRUCTIONS", (swapped,))
    assert sum(row.differing for row in proofs("vdpbf16ps", 40_000)) > 1000


def test_a_processor_without_it(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_sums, "CPU", tmp_path / "cpuinfo")
    assert cpu_sums.why_not(cpu_sums.INSTRUCTIONS[0]).endswith("cpuinfo has no avx512_bf16")


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "terms"), [("bfdot", 2), ("bfmmla", 4)])
def test_arm(tmp_path, name, terms):
    """BFDOT and BFMMLA by qemu's model: pairs of products, each sum of two numbers rounded to odd.

    Numbers are normal, within 20 binades, so that no sum of float64 rounds before it is rounded to odd.
    """
    tools = "aarch64-linux-gnu-gcc", "qemu-aarch64"
    if missing := [tool for tool in tools if not shutil.which(tool)]:
        pytest.skip(f"{' and '.join(missing)} not installed: Debian has gcc-aarch64-linux-gnu and qemu-user")
    source, program = Path(cpu_sums.__file__).with_name("arm_sums.c"), tmp_path / "arm_sums"
    subprocess.run(
        [tools[0], "-O1", "-static", "-march=armv8.6-a+bf16", str(source), "-o", str(program)], check=True, text=True
    )
    rng, count = np.random.default_rng(2), 50_000
    x = (rng.uniform(1, 2, (count, 17)) * rng.choice([-1, 1], (count, 17))).astype(np.float32)
    x *= np.exp2(rng.integers(-5, 6, x.shape)).astype(np.float32)
    given = np.zeros(count, [("a", "u2", 8), ("b", "u2", 8), ("c", "f4")])
    given["a"], given["b"], given["c"] = (x[:, :8].view("u4") >> 16), (x[:, 8:16].view("u4") >> 16), x[:, 16]
    made = subprocess.run(
        [tools[1], "-cpu", "max", str(program), name], input=given.tobytes(), stdout=subprocess.PIPE, check=True
    )
    a, b = ((given[one].astype(np.uint32) << 16).view(np.float32)[:, :terms] for one in "ab")
    expected = np.frombuffer(made.stdout, np.uint32)

    def differing(accumulator):
        found = matmul(a[:, None], b[:, :, None], x[:, 16, None, None], accumulator=accumulator)
        return int((found.view(np.uint32).reshape(-1) != expected).sum())

    assert differing(Accumulator(chunk=2, tree=True, rounding="odd")) == 0
    assert differing(Accumulator(chunk=2, tree=True)) > 1000
