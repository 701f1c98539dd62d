"""Sums over ranks: what they cost and what they do to a model, in tiny sizes, and the committed results."""

import json

import pytest

from benchmarks import collectives, many_ranks


def test_costs(tmp_path, capsys):
    file = tmp_path / "costs.json"
    names = ("nccl.tree.bf16",)
    assert collectives.main(["--size", "250", "--seconds", "0", "--json", str(file), "--names", *names]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["framework"] for row in rows[::2]] == ["torch", "jax", "numpy"]
    assert {row["size"] for row in rows} == {200}
    assert all(row["copies"] > 0 and row["additions"] > 0 and row["all_ranks"] > 0 for row in rows)
    assert "16,384 ranks" in capsys.readouterr().out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    file = tmp_path_factory.mktemp("ranks") / "ranks.json"
    assert many_ranks.main(["--batch", "16", "--steps", "4", "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_what_ranks_do(tiny):
    """Eight ranks and two texts each; a float32 sum is exact here, and E3M0 is not."""
    whole = {row["law"]: row for row in tiny["rows"] if (row["step"], row["layer"]) == (0, "all")}
    assert list(whole) == list(many_ranks.LAWS)
    assert (whole["float32 ring"]["norm"], whole["float32 ring"]["cosine"]) == (1, 1)
    assert 0.99 < whole["bf16 ring"]["cosine"] <= 1
    assert 0.9 < whole["E3M0 wire, float32 sum"]["cosine"] < 0.99
    assert len({row["layer"] for row in tiny["rows"]}) == 30
    assert [len(line["losses"]) for line in tiny["lines"]] == [4] * len(many_ranks.RUNS)
    assert all(line["losses"][1] < line["losses"][0] for line in tiny["lines"])


@pytest.mark.heavy
def test_the_picture(tiny, tmp_path):
    many_ranks.draw(tiny, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert all(f"<!-- {word}" in text for word in ("bf16 ring", "whole gradient", "loss"))
