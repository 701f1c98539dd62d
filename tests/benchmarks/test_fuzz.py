"""The fuzzer: cases that can be repeated, and differences that are told."""

import re
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import fuzz


def described(seed, case):
    return [kind(fuzz.Pick(f"{seed} {case}"))[0] for kind in fuzz.KINDS]


def test_a_seed_and_a_number_make_a_case():
    assert described(1, 7) == described(1, 7) != described(1, 8) != described(2, 8)


def test_a_result_that_differs_is_told_with_its_case(monkeypatch, capsys):
    def broken(pick):
        return "-0.0", lambda: np.float32(0), lambda: np.float32(-0.0)

    monkeypatch.setattr(fuzz, "KINDS", [broken])
    assert fuzz.main(["--seed", "3", "--case", "5"]) == 1
    assert "DIFFERS --seed 3 --case 5: broken -0.0" in capsys.readouterr().out


def test_errors_are_compared_as_results_are(monkeypatch, capsys):
    def fail(error):
        raise error

    monkeypatch.setattr(fuzz, "KINDS", [lambda pick: ("", lambda: fail(ValueError()), lambda: fail(ValueError()))])
    assert fuzz.main(["--case", "0"]) == 0
    monkeypatch.setattr(fuzz, "KINDS", [lambda pick: ("", lambda: fail(ValueError()), lambda: fail(RuntimeError()))])
    assert fuzz.main(["--case", "0"]) == 1
    assert "RuntimeError" in capsys.readouterr().out


def test_a_kind_that_computes_nothing_is_a_failure(monkeypatch, capsys):
    def refused(pick):
        def fail():
            raise ValueError

        return "", fail, fail

    def computed(pick):
        return "", lambda: np.float32(0), lambda: np.float32(0)

    monkeypatch.setattr(fuzz, "KINDS", [refused, computed])
    assert fuzz.main(["--seconds", "0.05"]) == 1
    out = capsys.readouterr().out
    assert "by cases of: refused\n" in out
    assert re.search(r"refused +0 +[1-9]\d*\n +computed +[1-9]\d* +0\n", out)
    assert fuzz.main(["--cases", "7", "--kinds", "computed"]) == 0
    assert "\n7 cases, 0 different" in "\n" + capsys.readouterr().out


@pytest.mark.heavy
def test_ten_minutes_under_sanitizers():
    words = ["--seconds", "600", "--seed", "1000", "--sanitize"]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", *words], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
