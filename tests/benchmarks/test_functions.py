"""The sweep of elementary functions: equal bits have equal digests, and a stopped sweep loses nothing."""

import json

import numpy as np
import pytest

from benchmarks import functions, same_training
from benchmarks.hard_inputs import PARTS, is_hard, scan
from benchmarks.support import function_digests
from benchmarks.support.digest_results import PIECE, PIECES, Digests, Row, disagreements
from benchmarks.support.function_digests import BACKENDS, CHUNK, difference, digest
from benchmarks.support.timing import Timing
from qcore.cli.functions import hard_inputs
from qcore.reproducible.elementary import ELEMENTARY

START = 0x3F000000
SPAN = START, START + CHUNK + 100  # a chunk, and a part of one


def test_backends_have_one_digest():
    """Eager ones; compiled PyTorch's is a matter of the sweep itself."""
    eager = [name for name in BACKENDS if name != "torch compiled"]
    assert len({digest("sqrt", "derivative", backend, *SPAN) for backend in eager}) == 1


@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK + 99])
def test_one_bit_changes_a_digest_and_is_found(monkeypatch, place):
    right = function_digests.function_of("relu", "function", "numpy")
    bad = np.uint32(START + place).view(np.float32)
    wrong = {"numpy": right, "jax jit": lambda x: np.where(x == bad, -right(x), right(x))}
    monkeypatch.setattr(function_digests, "function_of", lambda name, kind, backend: wrong[backend])
    assert len({digest("relu", "function", backend, *SPAN) for backend in wrong}) == 2
    found = difference("relu", "function", ("numpy", "jax jit"), *SPAN)
    bits = START + place
    assert found == (
        f"relu, function, numpy and jax jit: 1 results differ, the first of {bits:08x}: {bits:08x} and "
        f"{bits | 1 << 31:08x}"
    )


@pytest.fixture
def sweep(monkeypatch, tmp_path):
    """Runs the program with digests that are texts of their pieces, and JAX's of piece 5 a wrong one."""
    done = []

    def text(name, kind, backend, start, stop):
        done.append((name, kind, backend, start // PIECE))
        assert stop - start == PIECE
        return "wrong" if (backend, start // PIECE) == ("jax jit", 5) else f"{name} {kind} {start}"

    monkeypatch.setattr(functions, "digest", text)
    monkeypatch.setattr(functions, "difference", lambda *arguments: f"searched {arguments}")

    def run(*pieces):
        options = ["--functions", "exp", "--kinds", "function", "--backends", "numpy", "jax jit", "--pieces", *pieces]
        return functions.main([*options, "--json", str(tmp_path / "functions.json")]), done

    return run


def test_a_sweep_goes_on(sweep, tmp_path):
    status, done = sweep("2", "3")
    assert (status, len(done)) == (0, 4)
    status, done = sweep("3", "4")
    assert (status, len(done)) == (0, 6)
    assert done[4:] == [("exp", "function", "numpy", 4), ("exp", "function", "jax jit", 4)]
    first, second = json.loads((tmp_path / "functions.json").read_text())["rows"]
    assert first["digests"] == second["digests"]
    assert [bool(one) for one in first["digests"]] == [2 <= piece <= 4 for piece in range(PIECES)]


def test_a_difference_is_searched(sweep, capsys):
    assert sweep("5")[0] == 1
    assert f"('jax jit', 'numpy'), {5 * PIECE}, {6 * PIECE}" in capsys.readouterr().err


def test_results_of_other_versions_are_refused(sweep, tmp_path, capsys):
    file = Digests(tmp_path / "functions.json", {"versions": {"torch": "1"}, "machine": {}})
    file.put(("exp", "function", "numpy"), 0, "0", "abc")
    assert sweep("0") == (2, [])
    assert "has versions {'torch': '1'}; give another --json" in capsys.readouterr().err


def test_digests_of_different_functions_are_not_compared():
    rows = [Row("exp", kind, "numpy", digests=[kind] + [""] * (PIECES - 1)) for kind in ("function", "derivative")]
    rows.append(Row("exp", "function", "jax jit", digests=["other"] * PIECES))
    assert disagreements(rows) == [(rows[0], rows[2], 0)]


def test_every_function_is_timed_beside_torchs():
    assert set(functions.OWN) == set(ELEMENTARY)


def test_times_are_kept(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(functions, "by_turns", lambda calls, clock, seconds: [Timing(0.5, 0.5), Timing(0.1, 0.1)])
    file = tmp_path / "speed.json"
    assert functions.main(["--speed", "--functions", "exp", "relu", "--json", str(file)]) == 0
    assert "2 of 2 take more than 3 times torch's time" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert [(row["function"], row["ratio"]) for row in found["rows"]] == [("exp", 5.0), ("relu", 5.0)]
    assert {"versions", "machine", "limit"} <= set(found)


@pytest.mark.parametrize(("program", "times"), [(functions, "--speed"), (same_training, "--time")])
def test_times_do_not_replace_a_record(program, times, tmp_path, capsys):
    file = tmp_path / "record.json"
    file.write_text('{\n"layout": "qbits digests 1"\n}\n')
    with pytest.raises(SystemExit):
        program.main([times, "--json", str(file)])
    assert "is a record that runs go on from" in capsys.readouterr().err
    assert "layout" in file.read_text()


@pytest.mark.heavy
def test_hard_inputs_are_found():
    """Nearly all again: where float64 functions of platforms differ, so do the ends of the 16 units."""
    all_hard, _ = hard_inputs()["log"]
    hard, ordinary = all_hard[::48], np.arange(START, START + 96, dtype=np.uint32)
    found = is_hard("log")(np.concatenate([hard, ordinary]).view(np.float32))
    assert found[: len(hard)].mean() > 0.8
    assert found[len(hard) :].sum() <= np.isin(ordinary, all_hard).sum()


def test_a_part_of_the_search_has_every_sixteenth_number(monkeypatch):
    monkeypatch.setattr("benchmarks.hard_inputs.is_hard", lambda name: lambda x: np.ones(x.size, bool))
    assert PARTS == 16
    assert scan("log", 3, 50) == ["00000003", "00000013", "00000023"]
