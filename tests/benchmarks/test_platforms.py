"""Another processor's bits beside this one's; of an emulated one where docs/platforms.md was followed."""

import os
import shlex
import sys

import pytest

from benchmarks import platforms


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
@pytest.mark.skipif("PYTHON_ARM64" not in os.environ, reason="needs PYTHON_ARM64, see docs/platforms.md")
def test_an_emulated_processor_has_the_same_bits():
    assert platforms.main(["--python", os.environ["PYTHON_ARM64"]]) == 0


@pytest.mark.heavy
def test_another_process_has_the_same_bits():
    assert platforms.main(["--python", shlex.quote(sys.executable)]) == 0
