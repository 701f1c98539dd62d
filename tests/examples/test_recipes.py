"""The examples of recipes: runs that go on, in the other framework too, and what committed results show."""

import json

import numpy as np
import pytest

from examples import recipes, recipes_report, text
from examples.recipes import CHUNKED, NARROW, RUNS, Run
from examples.recipes_jax import JaxTrainer
from examples.recipes_torch import TorchTrainer
from qcore import RECIPES, Recipe, parse

TRAINERS = {"torch": TorchTrainer, "jax": JaxTrainer}


def test_names_are_recipes():
    assert recipes.recipe_of("fp32") is None
    assert recipes.recipe_of("hfp8") is RECIPES["hfp8"]
    assert recipes.recipe_of(RECIPES["hfp8"].text) == RECIPES["hfp8"]
    (entry,) = recipes.recipe_of(NARROW).entries
    found = [product.accumulator for product in (entry.forward, entry.grad_input, entry.grad_weight)]
    assert found == [parse("accumulator(float(6,3),chunk=1)")] * 3
    assert all(isinstance(recipe, Recipe) for recipe in recipes.OWN.values())


def test_letters_are_those_of_the_help():
    letters = text.load()
    assert letters.min() >= 0
    assert letters.max() < len(text.LETTERS) == 96
    assert "assert" in "".join(text.LETTERS[one] for one in letters[:20000])
    inputs, targets = next(text.batches(letters, 3, 8, seed=0))
    assert inputs.shape == targets.shape == (3, 8)
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])


def test_no_run_trains_on_what_it_is_tested_with():
    letters = text.load()
    (inputs, _), held = next(recipes.test_batches("gpt")), letters[-recipes.HELD_OUT[0] :]
    texts = np.lib.stride_tricks.sliding_window_view(held, recipes.LENGTH)
    assert all((texts == one).all(1).any() for one in inputs[:8])
    batches = recipes.batches("preresnet20", 0)
    seen = {image.tobytes() for _ in range(50) for image in next(batches)[0]}
    assert len(seen) > 1200
    assert not any(image.tobytes() in seen for images, _ in recipes.test_batches("preresnet20") for image in images)


@pytest.fixture
def small(monkeypatch):
    """Runs of few numbers, with a test after each second step."""
    for name, value in {"TEXTS": 2, "LENGTH": 8, "EVERY": {"gpt": 2}, "HELD_OUT": (50_000, 4)}.items():
        monkeypatch.setattr(recipes, name, value)


def interrupted(trainer, after):
    """A trainer that is interrupted in the step after so many."""
    step = trainer.step

    def counted(*arguments):
        nonlocal after
        if after == 0:
            raise KeyboardInterrupt
        after -= 1
        return step(*arguments)

    trainer.step = counted
    return trainer


@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.heavy)])
def test_an_interrupted_run_goes_on_to_the_same_bits(framework, small, tmp_path, capsys):
    """In either framework: the checkpoint of a run in PyTorch also goes on in JAX."""
    command = ["--recipe", "swalp", "--steps", "5", "--checkpoints", str(tmp_path)]
    files = {name: tmp_path / f"recipes-{name}.json" for name in ("whole", "again")}
    recipes.train_all("Whole.", "torch", TorchTrainer, [*command, "--json", str(files["whole"])])
    printed = capsys.readouterr().out
    assert printed.startswith("Whole.\ngpt, swalp, seed 0, step 2 of 5: training loss ")
    assert "\nAfter 5 steps the least test loss is " in printed
    (whole,) = recipes.read(files["whole"])
    assert [test[0] for test in whole.tests] == [2, 4, 5]
    assert len(set(whole.hashes)) == 3
    with pytest.raises(SystemExit) as stopped:
        recipes.train_all("", "torch", lambda *one: interrupted(TorchTrainer(*one), 3), command)
    assert stopped.value.code == 130
    assert "goes on from the last test" in capsys.readouterr().out
    (checkpoint,) = tmp_path.glob("*.npz")
    checkpoint.rename(tmp_path / checkpoint.name.replace("torch", framework))
    command += ["--json", str(files["again"])]
    recipes.train_all("", framework, TRAINERS[framework], command)
    assert "step 2 of 5: training loss" in capsys.readouterr().out  # of the checkpoint
    (again,) = recipes.read(files["again"])
    assert (again.framework, again.tests, again.hashes) == (framework, whole.tests, whole.hashes)
    assert not list(tmp_path.glob("*.npz"))
    recipes.train_all("", framework, None, command)  # nothing is left to train


@pytest.mark.parametrize("framework", [pytest.param(name, marks=pytest.mark.heavy) for name in TRAINERS])
@pytest.mark.parametrize("name", RUNS["preresnet20"])
def test_the_residual_network_repeats_its_committed_hash(framework, name, tmp_path):
    """The first test of a run, which has as many steps as the committed one."""
    (want,) = (run for run in committed() if (run.job) == ("preresnet20", name, "torch", 0))

    class Stopped(Exception):
        pass

    def follow(step, _):
        if step > recipes.EVERY["preresnet20"]:
            raise Stopped

    run = Run(*want.job[:2], framework, 0, want.steps)
    with pytest.raises(Stopped):
        recipes.trained(run, TRAINERS[framework](run.model, recipes.recipe_of(name), 0), tmp_path / "a.npz", follow)
    assert (run.tests, run.hashes) == (want.tests[:1], want.hashes[:1])


def committed():
    return recipes_report.read(recipes_report.RESULTS)


def test_all_runs_have_results():
    runs = committed()
    for model, names in RUNS.items():
        found = recipes_report.named(runs, model)
        assert [*found] == names
        assert all(run.trained == run.steps == recipes.STEPS[model] for ours in found.values() for run in ours)


def test_both_frameworks_have_one_curve():
    """Runs in JAX may be the first steps of the runs in PyTorch."""
    pairs = recipes_report.pairs(committed())
    assert {(one.model, one.run) for one, _ in pairs} == {
        (model, name) for model, names in RUNS.items() for name in names
    }
    assert [one.run for one, other in pairs if other.trained < other.steps] == [NARROW]  # slow in JAX
    for one, other in pairs:
        count = len(other.tests)
        assert count > 0
        assert one.steps == other.steps
        assert (one.tests[:count], one.hashes[:count]) == (other.tests, other.hashes)


def test_recipes_separate_as_the_page_says():
    """By the differences to fp32 of the same seed."""
    found = recipes_report.named(committed(), "gpt")
    base = [run.loss for run in found["fp32"]]
    above = {name: recipes.spread(np.subtract([run.loss for run in ours], base)) for name, ours in found.items()}
    assert {len(ours) for ours in found.values()} == {3}
    for name in ("mxfp8", "nvfp4_pretraining", CHUNKED):
        assert abs(above[name][0]) < above[name][1]
    mean, deviation = above["mxfp4_nearest"]
    assert mean > 10 * deviation
    for name in ("fp4_tensor", NARROW):
        assert min(run.loss for run in found[name]) > np.log(recipes.LETTERS)
    digits = recipes_report.named(committed(), "preresnet20").values()
    assert {len(ours) for ours in digits} == {3}
    assert min(run.accuracy for ours in digits for run in ours) > 95


def test_results_of_other_runs_stay(tmp_path):
    file = tmp_path / "recipes-a.json"
    runs = [Run("gpt", name, "torch", 0, 2, [(2, 1.0, 50.0)], ["0" * 16]) for name in ("fp32", "mxfp8")]
    for run in (*runs, runs[0]):
        recipes.keep(file, run)
    assert [run.run for run in recipes.read(file)] == ["mxfp8", "fp32"]
    assert recipes.kept(file, runs[1]).tests == [(2, 1.0, 50.0)]
    assert recipes.kept(file, Run("gpt", "mxfp8", "torch", 1, 2)) is None
    assert len(json.loads(file.read_text())) == 2
