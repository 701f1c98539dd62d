"""The main job finds differences: a law that is broken on purpose in one backend makes it fail."""

import json
from dataclasses import replace

import pytest
import torch

import qtorch.dispatch
from benchmarks import consistency
from qcore import Rounding

FEW = ["--formats", "float 2 1", "--count", "2000", "--jobs", "1"]  # jobs of their own would not see what is patched
USUAL = [*FEW, "--rounding", "nearest", "--rounding", "stochastic"]


def test_nothing_differs_and_json_says_so(tmp_path):
    """In one process and in two."""
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for jobs, file in enumerate(files, start=1):
        assert consistency.main([*USUAL, "--jobs", str(jobs), "--json", str(file)]) == 0
    report, other = (json.loads(file.read_text()) for file in files)
    assert _bits(report) == _bits(other)
    assert set(report["versions"]) >= {"python", "numpy", "torch", "jax"}
    assert {case["backend"] for case in report["cases"]} >= {
        "numpy",
        "torch ops",
        "torch kernel",
        "jax eager",
        "jax jit",
    }
    for case in report["cases"]:
        assert set(case) == {"format", "rounding", "backend", "inputs", "differing", "ns_per_element"}
        assert case["differing"] == 0
        assert case["inputs"] >= 1000


def _bits(report):
    return [case | {"ns_per_element": 0} for case in report["cases"]]


def test_one_wrong_bit_is_found(monkeypatch, capsys):
    right = qtorch.dispatch.by_operations

    def wrong(x, plan, noise):
        lanes = right(x, plan, noise).view(torch.int32)
        lanes.view(-1)[17] ^= -0x80000000 if lanes.numel() > 17 else 0  # the sign of one element
        return lanes.view(torch.float32)

    monkeypatch.setattr(qtorch.dispatch, "by_operations", wrong)
    assert consistency.main(USUAL) == 1


@pytest.mark.parametrize("options", [["--jobs", "0"], ["--count", "10"]])
def test_impossible_numbers_are_refused(options, capsys):
    with pytest.raises(SystemExit):
        consistency.main([*FEW, *options])
    assert f"argument {options[0]}: {options[1]}: allowed are" in capsys.readouterr().err


def test_exhaustive(monkeypatch):
    monkeypatch.setattr(consistency, "PATTERNS", 1 << 16)
    assert consistency.main(["--exhaustive", "fixed 8 4"]) == 0


def test_a_law_with_other_ties_is_found(monkeypatch, capsys):
    """Only the operations' law: what kernels compile, and keep on disk, stays right."""
    right = qtorch.dispatch.run

    def wrong(program, *arguments, **options):
        mode = Rounding.NEAREST_AWAY if program.mode is Rounding.NEAREST else program.mode
        return right(replace(program, mode=mode), *arguments, **options)

    monkeypatch.setattr(qtorch.dispatch, "run", wrong)
    assert consistency.main([*FEW, "--rounding", "nearest"]) == 1
    assert "torch ops, float 2 1, nearest: " in capsys.readouterr().out
    assert consistency.main([*FEW, "--rounding", "nearest_up"]) == 0


@pytest.mark.parametrize("name", ["flot 5 2", "float 5", "float 0 2", ""])
def test_unknown_formats_are_refused(name, capsys):
    with pytest.raises(SystemExit) as caught:
        consistency.main(["--exhaustive", name])
    assert caught.value.code == 2
    assert "float" in capsys.readouterr().err
