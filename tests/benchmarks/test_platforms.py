"""Another processor's bits beside this one's; of an emulated one where benchmarks/python_arm64.sh was followed."""

import os
import shlex
import sys

import numpy as np
import pytest

from benchmarks import platforms
from benchmarks.support import kernel_cases


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(
        platforms, "_all_cases", lambda: [("nearest", platforms.FORMATS[0]), ("up", platforms.BLOCKS[0])]
    )


def test_the_same_python_has_no_difference(few, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(platforms, "digests_by", lambda command, *given: platforms.digests_of(*given))
    assert platforms.main(["--python", "other", "--json", str(tmp_path / "found.json")]) == 0
    assert "numpy, up: 1 cases" in capsys.readouterr().out
    assert (tmp_path / "found.json").exists()


def test_a_difference_is_found(few):
    ours, theirs = (platforms.digests_of(platforms.all_inputs(), False) for _ in range(2))
    name = next(iter(ours["cases"]))
    theirs["cases"][name][1] = "0"
    found = platforms.compared(ours, theirs)
    assert (found["differing"], [row["differ"] for row in found["rows"]]) == ([name], [1, 0])
    with pytest.raises(SystemExit, match="same commit"):
        platforms.compared(ours, theirs | {"cases": {}})


@pytest.mark.heavy
@pytest.mark.skipif("PYTHON_ARM64" not in os.environ, reason="needs PYTHON_ARM64, see benchmarks/python_arm64.sh")
@pytest.mark.parametrize("kernels", [[], ["--kernels"]])
def test_an_emulated_processor_has_the_same_bits(kernels):
    assert platforms.main(["--python", os.environ["PYTHON_ARM64"], *kernels]) == 0


@pytest.mark.heavy
@pytest.mark.parametrize("kernels", [[], ["--kernels"]])
def test_another_process_has_the_same_bits(kernels):
    assert platforms.main(["--python", shlex.quote(sys.executable), *kernels]) == 0


def test_inputs_of_kernels_are_unsigned_integers():
    """A file of them has the same bits everywhere, NaN's too."""
    assert {x.dtype.kind for x in kernel_cases.kernel_inputs().values()} == {"u"}


@pytest.mark.heavy
def test_calls_of_a_kind_are_compared(monkeypatch):
    """One input changed by one bit changes the digests of the calls that take it, and no others."""
    monkeypatch.setattr(kernel_cases, "KINDS", (kernel_cases.integer_calls, kernel_cases.product_calls))
    inputs = kernel_cases.kernel_inputs()
    before = kernel_cases.kernel_digests(inputs)
    inputs["weights"] = inputs["weights"] ^ np.uint8(64)
    after = kernel_cases.kernel_digests(inputs)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if "linear" in name} != set()
