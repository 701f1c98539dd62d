"""The examples of recipes: a few steps by name, the results' file, and the page that is made of committed results."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from examples import recipes, recipes_jax, recipes_report, recipes_torch, text
from qcore import RECIPES, Recipe, parse

ROOT = Path(__file__).parent.parent.parent
NARROW = "accumulator(float(6,2),chunk=1)"


def test_names_are_recipes():
    assert recipes.recipe_of("fp32") is None
    assert recipes.recipe_of("hfp8") is RECIPES["hfp8"]
    assert recipes.recipe_of(RECIPES["hfp8"].text) == RECIPES["hfp8"]
    (entry,) = recipes.recipe_of(NARROW).entries
    assert [product.accumulator for product in (entry.forward, entry.grad_input, entry.grad_weight)] == [
        parse(NARROW)
    ] * 3
    assert all(isinstance(recipe, Recipe) for recipe in recipes.OWN.values())
    assert len(RECIPES | recipes.OWN) >= 6


def test_letters_are_those_of_the_help():
    letters = text.load()
    assert letters.min() >= 0
    assert letters.max() < len(text.LETTERS) == 96
    assert "assert" in "".join(text.LETTERS[one] for one in letters[:20000])
    inputs, targets = next(text.batches(letters, 3, 8, seed=0))
    assert inputs.shape == targets.shape == (3, 8)
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.parametrize(("framework", "trainer"), [("torch", recipes_torch.trainer), ("jax", recipes_jax.trainer)])
def test_runs_differ_by_recipe_and_are_kept(framework, trainer, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recipes, "TEXTS", 2)
    file = tmp_path / "recipes-few.json"
    names = ["fp32", NARROW] if framework == "torch" else ["fp32"]
    for steps in ("1", "3"):
        recipes.main("", framework, trainer, ["--steps", steps, "--json", str(file), "--recipe", *names])
    runs = json.loads(file.read_text())
    assert [run["run"] for run in runs] == names
    assert [len(run["losses"]) for run in runs] == [3] * len(names)
    for run in runs:
        assert run["losses"][0] == pytest.approx(math.log(96), abs=0.1)
        assert run["losses"][-1] < run["losses"][0]
    assert len({str(run["losses"]) for run in runs}) == len(names)
    recipes_report.main(["--results", str(tmp_path), "--pictures", str(tmp_path)])
    assert "| `fp32` |" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "recipes-losses.svg").read_text()


def test_the_page_is_made_of_the_results():
    runs, page = recipes_report.read(recipes_report.RESULTS), (ROOT / "docs" / "recipes.md").read_text()
    assert recipes_report.table(runs) in page
    assert recipes_report.accumulator_table(runs) in page
    found = {(run.model, run.run, run.framework): run for run in runs}
    for name in recipes.RUNS:
        assert len(found["gpt", name, "torch"].losses) == len(found["gpt", name, "jax"].losses) == 100
    assert len([run for run in runs if (run.model, run.framework) == ("preresnet20", "torch")]) >= 7
    narrow, wide = (recipes.final(found["gpt", recipes.accumulator_text(man, 1), "torch"].losses) for man in (2, 9))
    assert narrow > wide + 0.5
