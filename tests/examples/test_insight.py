"""The examples of insight: the fault that was planted is what the printed table names; choices beat uniform formats."""

import json
import re

import pytest
from covering import some

from examples import (
    choose_formats_jax,
    choose_formats_torch,
    choosing,
    choosing_report,
    find_the_fault_jax,
    find_the_fault_torch,
)
from examples.choosing_report import RESULTS

NAMES = {"overflow": ("loud:output", "e4m3fn", "overflows"), "vanish": ("quiet:gradient", "e5m2", "underflows")}


@some((0, 0), (0, 1), program=[find_the_fault_torch, find_the_fault_jax], fault=[*NAMES])
def test_the_table_names_the_fault(program, fault, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # each advice is one line
    page = tmp_path / "page.svg"
    program.main([fault, *(["--plot", str(page)] if fault == "vanish" else [])])
    lines = capsys.readouterr().out.splitlines()
    outcome = lines.pop(-2 if fault == "vanish" else -1)
    first, title, _, worst, *others = lines
    assert first == program.__doc__.partition("\n")[0]
    assert title.startswith(f"net with {fault}, steps 0 to 2: 8 of 8 sites")
    site, number, problem = NAMES[fault]
    assert outcome.startswith(f"The worst site is {site} in {number}: {problem} (")
    assert worst.split()[:2] == [site, number]
    advice = [line for line in others if re.match(r"\w+:(output|gradient): ", line)]
    assert advice[0].startswith(f"{site}: {problem} (")
    assert sum(": overflows (" in line for line in advice) == (fault == "overflow")
    if fault == "vanish":
        assert all(line.endswith(": fine") for line in advice[1:])
        assert "<title>Roundings of net with vanish</title>" in page.read_text()
        assert "quiet:gradient in e5m2 underflows" in page.read_text()


@pytest.mark.parametrize("program", [choose_formats_torch, pytest.param(choose_formats_jax, marks=pytest.mark.heavy)])
def test_formats_are_chosen(program, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "CANDIDATES", choosing.CANDIDATES[1:4:2])
    file, name = tmp_path / "choices.json", program.__name__.rpartition("_")[2]
    options = ["--model", "gpt", "--steps", "2", "--limit", "1", "--json", str(file)]
    program.main(options)
    printed = capsys.readouterr().out
    assert f"gpt, {name}: loss by mean bits" in printed
    assert printed.splitlines()[-1].endswith(" without rounding.")
    rows = json.loads(file.read_text())["rows"]
    assert [row["kind"] for row in rows[:3]] == ["wide", "uniform", "uniform"]
    assert len(rows) > 3
    for row in rows[1:3]:
        assert choosing.better(rows, row)["loss"] <= row["loss"]


def test_the_picture_of_choices(tmp_path):
    """It is drawn from the results, as the one in the docs was."""
    choosing_report.main(["--picture", str(tmp_path / "choices.svg")])
    page = (tmp_path / "choices.svg").read_text()
    assert "prefers-color-scheme:dark" in page
    runs = choosing_report.read(RESULTS)
    assert page.count("<!-- e2m1fn -->") == len(runs)
    worse = set()
    for (framework, model), rows in runs.items():
        for row in rows[1:6]:
            best = choosing.better(rows, row)
            assert best["loss"] < row["loss"]
            if best["test"] >= row["test"]:
                worse.add((framework, model, choosing_report.short(next(iter(row["formats"].values())))))
    assert worse == {("jax", "gpt", "e2m1fn")}  # as docs/insight.md says
