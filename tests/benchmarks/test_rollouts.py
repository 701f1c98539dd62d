"""GRPO with engines: a few steps of each run, in PyTorch and JAX, and the committed results."""

import json

import numpy as np
import pytest

from benchmarks import rollouts
from benchmarks.rollouts import CLIP, GROUP, RUNS, JaxTrainer, Rollout, Trainer, advantages, factors_of, trained
from benchmarks.support.policy import reward

RECORD = json.loads(rollouts.FILE.read_text())


def test_the_task():
    assert reward([4, 10], [11, 0, 1]) == 1
    assert reward([4], [4, 5, 7]) == 1 / 3
    found = advantages(np.array([0, 1.0] * 4 + [1.0] * 8), GROUP)
    assert found[8:].tolist() == [0] * 8
    np.testing.assert_allclose(found[:2], [-1, 1], rtol=1e-3)


def test_truncated_importance_sampling():
    found = Rollout((), np.zeros((8, 1)), np.array([0.0, 1] * 4), np.zeros((8, 1)))
    d = np.log(np.array([0.5, 1, 3, 2, 1, 1, 1, 1]))[:, None]
    plain, weighed = (factors_of(RUNS[name], found, d)[:, 0] for name in ("FP8 rollouts", "FP8 with TIS"))
    np.testing.assert_allclose(weighed / plain, [0.5, 1, CLIP, 2, 1, 1, 1, 1], rtol=1e-6)


@pytest.mark.heavy
@pytest.mark.parametrize("name", RUNS)
def test_the_first_steps_are_those_of_the_record_in_both_frameworks(name):
    kept = {row["framework"]: row for row in RECORD["first"] if row["run"] == name}
    for framework, kind in (("torch", Trainer), ("jax", JaxTrainer)):
        found = trained(kind(RUNS[name]), rollouts.IN_JAX)
        assert found["loss"] == kept[framework]["loss"]
        assert found["hash"] == kept["torch"]["hash"] == kept["jax"]["hash"]


@pytest.mark.heavy
def test_an_engine_on_both_sides_has_no_mismatch():
    found = trained(Trainer(RUNS["exact, FP8"]), 2)
    assert found["kl"] == found["rms"] == [0, 0]
    (kept,) = (row for row in RECORD["runs"] if row["run"] == "exact, FP8")
    assert not any(kept["kl"])
    assert found["loss"] == kept["loss"][:2]


def test_the_record():
    """Divergences, from coarse to fine; all runs learn."""
    kl = {row["run"]: np.mean(row["kl"]) for row in RECORD["runs"]}
    assert list(kl) == list(RUNS)
    assert kl["FP8 rollouts"] > 5 * kl["FP8 with QAT"] > kl["exact, FP8"] == 0
    assert kl["FP8 rollouts"] > 10 * kl["bfloat16"] > 0
    assert all(np.mean(row["reward"][-20:]) > 3 * row["reward"][0] for row in RECORD["runs"])
    assert len({row["hash"] for row in RECORD["runs"]}) == len(RUNS)


@pytest.mark.heavy
def test_the_picture(tmp_path):
    rollouts.draw(RECORD, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert all(f"<!-- {word}" in text for word in ("bfloat16", "reward", "FP8 rollouts"))
