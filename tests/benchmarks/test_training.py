"""The training benchmark runs and reports; its comparison of two optimizers sees what it should."""

import json

import pytest
from covering import usually

from benchmarks import training
from benchmarks.support import agreement


@pytest.mark.heavy
def test_quick_rows_and_json(tmp_path, monkeypatch):
    """With one thread: two that wait for each other are slow where tests already use all cores."""
    file = tmp_path / "training.json"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert training.main(["--quick", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {row["vectors"] for row in rows} == {"default"}
    programs = [(row["program"], row["rounding"]) for row in rows]
    eager = [("torch eager", rounding) for rounding in ("nearest", "stochastic", "copied")]
    assert programs == [*eager, ("OptimLP.step", "nearest")]
    for row in rows:
        assert row["ratio"] == row["seconds"] / row["baseline"]
        assert row["met"] == (None if row["limit"] is None else row["ratio"] <= row["limit"])


@pytest.mark.parametrize("optimizer", usually((), agreement.OPTIMIZERS))
def test_what_is_rounded_from_the_same_numbers_agrees(optimizer):
    found = agreement.compare(optimizer, 5)
    assert found.elements == sum(w.size for w in agreement.weights()) * (4 if optimizer != "Adam" else 5)
    assert "gradient" not in found.quantities
    assert found.last < found.elements / 100


@pytest.mark.heavy  # test_consistency.py has a result that differs
def test_a_wrong_key_is_seen(monkeypatch):
    right = agreement.by_torch

    def wrong(name, steps):
        monkeypatch.setattr(agreement, "KEY", 8)
        yield from right(name, steps)

    monkeypatch.setattr(agreement, "by_torch", wrong)
    right_jax = agreement.by_jax

    def with_key(name, steps):
        monkeypatch.setattr(agreement, "KEY", 7)
        yield from right_jax(name, steps)

    monkeypatch.setattr(agreement, "by_jax", with_key)
    found = agreement.compare("SGD with momentum", 1)
    assert found.first == 1
    assert set(found.quantities) == {"gradient", "accumulator", "weight", "momentum"}


def test_loss_of_accuracy():
    found = training.Accuracy("torch", "digits", 1, [98.0, 96.0], [95.0, 96.0])
    assert (found.loss, found.record()["met"]) == (1.5, True)
    assert not training.Accuracy("torch", "digits", 1, [98.0], [96.4]).record()["met"]
