"""Designs by name against sums that GPUs computed: 24,000 results of eight GPUs, bit for bit (tests/data/silicon)."""

from itertools import product

import jax
import pytest
import torch

import qjax
import qtorch
from benchmarks import silicon
from benchmarks.silicon import differing, main, measured
from benchmarks.support import cpu_sums

SETS = {one.name: one for one in measured()}
# Each law, and each format of a result, in XLA; every second of them in a kernel, too.
USUAL = ("V100.fp16.fp16", "A100.tf32.fp32", "Ada.E4M3.fp32", "H100.E5M2.fp32", "H200.E4M3.fp16", "B200.E5M2.fp32")
WAYS = {
    "torch": lambda a, b, c, **options: qtorch.linalg.matmul(*map(torch.from_numpy, (a, b, c)), **options).numpy(),
    "jax": lambda a, b, c, **options: jax.jit(lambda a, b, c: qjax.linalg.matmul(a, b, c, **options))(a, b, c),
}


def test_the_file_has_all_sums():
    assert len(SETS) == 48
    assert {len(one.result) for one in SETS.values()} == {500}


@pytest.mark.parametrize("name", SETS)
def test_numpy(name):
    assert differing(SETS[name]) == 0


QUICK = {*product(USUAL[::2], ["torch"]), *product(USUAL[:-1], ["jax"])}  # B200's law is H100's; XLA takes seconds


@pytest.mark.parametrize(
    ("name", "way"),
    [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.heavy) for pair in product(SETS, WAYS)],
)
def test_kernels(name, way):
    assert differing(SETS[name], WAYS[way]) == 0


def test_a_wrong_design_differs():
    """The sums tell designs apart: with one bit of fraction more or less, hundreds of 500 differ."""
    one = SETS["H100.fp16.fp32"]
    for design in ("ampere.mma.f16", "volta.mma.f16"):
        assert differing(one._replace(design=design)) > 100


def test_the_program(capsys):
    assert main(["--only", "V100"]) == 0
    out = capsys.readouterr().out
    assert "0 of 1,000 measured sums differ" in out
    assert "commit b12b5a7" in out


def test_the_program_proves_the_processor(capsys, monkeypatch):
    monkeypatch.setattr(silicon, "compared", lambda names: [])
    assert main(["--lanes", "4000"]) == 0
    out = capsys.readouterr().out
    for one in cpu_sums.INSTRUCTIONS:
        assert cpu_sums.why_not(one) or f"{one.name}, random bits: 0 of " in out
