"""Requirements of the oldest and newest releases, and rows of what cannot be had."""

import sys

from benchmarks import releases


def test_the_oldest_are_the_lower_bounds():
    asked = releases.requirements("all")
    assert {"numpy>=2", "torch>=2.11", "jax>=0.10", "flax>=0.12.7", "rich"} <= {*asked}
    assert not [one for one in asked if one.startswith("qbits")]
    assert {"numpy==2", "torch==2.11", "rich"} <= set(map(releases.oldest, asked))
    pins = {releases.kept(one, ["torch"]) for one in asked}
    assert [one for one in pins if one.startswith("torch==")]
    assert "jax>=0.10" in pins


def test_what_cannot_be_had_is_a_row_with_its_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(releases, "PYTHONS", ["python3.99"])
    assert releases.main(["--only", "pythons", "--json", str(tmp_path / "x.json")]) == 0
    assert "newest without torch, python3.99: not installed" in capsys.readouterr().out
    assert '"result": "not installed"' in (tmp_path / "x.json").read_text()


def test_a_python_without_torch_runs_tests_that_do_not_import_it():
    found = set(releases.apart_from_torch(["tests/core/law", "tests/torch", "tests/jax/test_parameters.py"]))
    assert {"tests/core/law/test_odd.py", "tests/jax/test_parameters.py"} <= found
    assert "tests/torch/rounding/test_inductor.py" not in found


def test_a_row_has_the_tests_that_failed(monkeypatch):
    lines = "FAILED tests/x.py::test_a[1 2] - assert 0\nERROR tests/y.py\n== 1 failed, 2 passed in 3s ==\n"

    class Done:
        returncode = 0

    def said(interpreter, *arguments):
        return "numpy 2.0.0\nJax 1\n" if "-c" in arguments else lines

    monkeypatch.setattr(releases, "_output", said)
    monkeypatch.setattr(releases, "_said", lambda *arguments: [])
    monkeypatch.setattr(releases.subprocess, "run", lambda *arguments, **settings: Done())
    row = releases.tried("oldest", sys.executable, [], [])
    assert row.result == "1 failed, 2 passed in 3s"
    assert row.failed == ("tests/x.py::test_a[1 2]", "tests/y.py")
    assert row.versions == {"numpy": "2.0.0"}
