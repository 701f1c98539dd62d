"""A sweep loses nothing: not when a worker dies, not when it is stopped, and not to bad input."""

import contextlib
import json
import os
import signal
from types import SimpleNamespace

import pytest

import qtorch
from benchmarks import sweep
from benchmarks.support import sweep_results
from benchmarks.support.cluster import results as results_of_dask
from benchmarks.support.comparison import Case
from benchmarks.support.sweep_results import Results, Span
from qcore import FixedPoint

SOME = ["--formats", "e5m2", "--range", "0x3f000000:0x3f080000"]


@pytest.fixture
def here(monkeypatch):
    """Pieces are done in this process, as long as the list lasts that the fixture returns."""
    done = []

    def results(client, work, pieces):
        for piece in pieces:
            done.append(piece)
            yield piece, work(*piece)

    client = SimpleNamespace(nthreads=lambda: {"here": 1})
    monkeypatch.setattr(sweep, "connected", lambda *_: contextlib.nullcontext(client))
    monkeypatch.setattr(sweep, "results", results)
    monkeypatch.setattr(sweep, "keep_programs", lambda: None)
    monkeypatch.setattr(sweep, "PIECE", 1 << 17)
    return done


@pytest.mark.heavy
def test_a_worker_that_dies_costs_its_piece_only(monkeypatch, tmp_path, capsys):
    """Two processes, one of which is killed after the first of twelve pieces."""
    killed = []

    def results(client, work, pieces):
        for result in results_of_dask(client, work, pieces):
            if not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)
            yield result

    monkeypatch.setattr(sweep, "results", results)
    monkeypatch.setattr(sweep, "PIECE", 1 << 17)
    file = tmp_path / "sweep.json"
    span = ["--formats", "e5m2", "--modes", "stochastic", "--range", "0x3f000000:0x3f180000"]
    assert sweep.main([*span, "--workers", "2", "--timeout", "300", "--json", str(file)]) == 0
    assert killed
    (row,) = json.loads(file.read_text())["cases"]
    assert row["done"] == [[0x3F000000, 0x3F180000]]
    found = {case["backend"]: (case["inputs"], case["differing"]) for case in row["backends"]}
    assert {name: found[name] for name in ("numpy", "torch kernel", "jax jit")} == dict.fromkeys(found, (12 << 17, 0))
    assert capsys.readouterr().out.startswith("0 of 3,145,728 results differ")


def test_a_stopped_run_goes_on(monkeypatch, here, tmp_path, capsys):
    file = tmp_path / "sweep.json"
    whole = sweep.results

    def stopped(client, work, pieces):
        yield next(whole(client, work, pieces))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "results", stopped)
        assert sweep.main([*SOME, "--json", str(file)]) == 3
    said = capsys.readouterr()
    assert said.out.startswith("0 of 262,144 results differ")
    assert "interrupted" in said.err
    assert f"3 of 4 pieces are missing; the same command goes on from {file}" in said.err
    assert sweep.main([*SOME, "--json", str(file)]) == 0
    assert [piece.start for piece in here] == [0x3F000000, 0x3F020000, 0x3F040000, 0x3F060000]
    (row,) = json.loads(file.read_text())["cases"]
    assert row["done"] == [[0x3F000000, 0x3F080000]]
    assert {case["inputs"] for case in row["backends"]} == {1 << 19}
    assert sweep.main([*SOME, "--json", str(file)]) == 0
    assert len(here) == 4
    assert list(tmp_path.iterdir()) == [file]


def test_a_wrong_bit_is_found(monkeypatch, here, capsys):
    right = qtorch.quantize

    def wrong(x, *arguments, **options):
        result = right(x, *arguments, **options)
        result[7] = -result[7]
        return result

    monkeypatch.setattr(qtorch, "quantize", wrong)
    assert sweep.main([*SOME, "--workers", "1"]) == 1
    said = capsys.readouterr().out
    assert said.startswith(
        "4 of 1,048,576 results differ; first: torch kernel, e5m2, nearest: 4 results, as 3f000007 at "
    )


def test_a_piece_that_fails_is_named_and_the_others_are_kept(monkeypatch, here, tmp_path, capsys):
    def results(client, work, pieces):
        yield pieces[0], ModuleNotFoundError("No module named 'benchmarks'")
        yield from ((piece, work(*piece)) for piece in pieces[1:])

    monkeypatch.setattr(sweep, "results", results)
    assert sweep.main([*SOME, "--json", str(tmp_path / "sweep.json")]) == 3
    said = capsys.readouterr()
    assert "e5m2 nearest 1056964608 1057095680: ModuleNotFoundError: No module named 'benchmarks'" in said.err
    assert "1 of 4 pieces are missing" in said.err
    assert said.out.startswith("0 of 786,432 results differ")


def test_a_worker_with_other_versions_is_refused(monkeypatch, here, tmp_path, capsys):
    def results(client, work, pieces):
        yield pieces[0], work(*pieces[0])
        yield pieces[1], (work(*pieces[1])[0], sweep.environment()["versions"] | {"numpy": "1.0"})

    monkeypatch.setattr(sweep, "results", results)
    assert sweep.main([*SOME, "--json", str(tmp_path / "sweep.json")]) == 3
    assert "a worker's results: numpy 1.0 there and " in capsys.readouterr().err


def test_no_scheduler(tmp_path, capsys):
    """And what the file had stays."""
    assert sweep.main([*SOME, "--scheduler", "tcp://127.0.0.1:9", "--timeout", "1"]) == 2
    assert (
        "no scheduler answers at tcp://127.0.0.1:9 within 1 s; start it with `dask scheduler`"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "is no sweep's results"),
        ("not json", "is no sweep's results"),
        ('{"cases": []}', "has layout 'none', this program writes 'qbits sweep 1'"),
        ('{"layout": "qbits sweep 0"}', "has layout 'qbits sweep 0', this program writes 'qbits sweep 1'"),
        ('{"layout": "qbits sweep 1"}', "is damaged (KeyError: 'versions')"),
        ('{"layout": "qbits sweep 1", "versions": {"torch": "1.0"}}', "torch 1.0 there and "),
    ],
)
def test_other_files_are_refused_and_left_alone(here, tmp_path, capsys, text, why):
    file = tmp_path / "sweep.json"
    file.write_text(text)
    assert sweep.main([*SOME, "--json", str(file)]) == 2
    assert why in capsys.readouterr().err
    assert file.read_text() == text
    assert not here


@pytest.mark.parametrize("name", ["flot(5,2)", "float(5)", "float(0,2)", "mxfp4", ""])
def test_unknown_formats_are_refused(name, capsys):
    _refused(["--formats", name], f"argument --formats: format={name!r}", capsys)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "one of --formats, --all-named and --new is needed, and only one"),
        (["--new", "--all-named"], "one of --formats, --all-named and --new is needed, and only one"),
        ([*SOME, "--all-named"], "one of --formats, --all-named and --new is needed, and only one"),
        ([*SOME, "--range", "5:5"], "argument --range: 5:5: allowed is START:STOP with"),
        ([*SOME, "--range", "5"], "argument --range: 5: allowed is START:STOP with"),
        ([*SOME, "--modes", "near"], "argument --modes: invalid choice: 'near'"),
        ([*SOME, "--workers", "0"], "argument --workers: 0: allowed are 1 worker and more"),
        ([*SOME, "--timeout", "-1"], "argument --timeout: -1: allowed are seconds above 0"),
        ([*SOME, "--json", "none/x.json"], "argument --json: none/x.json: there is no folder none"),
    ],
)
def test_impossible_arguments_are_refused(options, why, capsys):
    _refused(options, why, capsys)


def _refused(options, why, capsys):
    with pytest.raises(SystemExit) as caught:
        sweep.main(options)
    assert caught.value.code == 2
    assert why in capsys.readouterr().err


def test_the_plan_of_all_named_formats(capsys):
    assert sweep.main(["--all-named", "--plan"]) == 0
    pairs = {(number.text, mode) for number, mode in sweep.all_named()}
    assert {(name, mode) for name in sweep.ALL_MODES for mode in sweep.SWEPT_MODES} <= pairs
    assert {("posit16", "nearest"), ("int4", "nearest"), ("float16", "nearest")} <= pairs
    assert not {"posit32", "tf32", "mxfp4"} & {name for name, _ in pairs}
    assert f"{len(pairs)} pairs of format and mode, {len(pairs) * 64:,} pieces" in capsys.readouterr().out


def test_the_plan_of_new_formats(tmp_path, monkeypatch):
    """All named formats of up to 8 bits but those that a file has whole; blocks have more than one input an element."""
    monkeypatch.setitem(sweep.NAMED, "own", (FixedPoint(7, 2), "a test"))
    named = {number.text for number, _ in sweep.new_formats(None, tmp_path)}
    assert {"e5m2", "int8", "posit8", "float(5,2)", "fixed(7,2)", "p3109(8,4)"} <= named
    assert not {"float16", "mxfp4", "uint16"} & named
    rows = [
        {"format": name, "rounding": "nearest", "done": [[0, done]]} for name, done in (("e5m2", 1 << 32), ("int8", 9))
    ]
    (tmp_path / "exhaustive-x.json").write_text(json.dumps({"cases": rows}))
    assert named - {number.text for number, _ in sweep.new_formats(None, tmp_path)} == {"e5m2"}
    assert named == {number.text for number, _ in sweep.new_formats(tmp_path / "exhaustive-x.json", tmp_path)}
    assert {number.text for number, _ in sweep.new_formats(None)} >= {"fixed(7,2)"}


def test_what_is_missing():
    known = Results({"versions": {}}, done={("e5m2", "nearest"): [[4, 8], [20, 32]]})
    pieces = known.missing(Span("e5m2", "nearest", 2, 40), 16)
    assert [piece[2:] for piece in pieces] == [(2, 4), (8, 16), (16, 20), (32, 40)]
    assert not [*known.missing(Span("e5m2", "nearest", 21, 31), 16)]
    assert [piece[2:] for piece in known.missing(Span("e5m2", "odd", 0, 40), 16)] == [(0, 16), (16, 32), (32, 40)]


def test_ranges_join():
    assert sweep_results._joined([[8, 9], [0, 4], [4, 6], [5, 7]]) == [[0, 7], [8, 9]]


def test_cases_merge_in_any_order():
    """The example is that of the least index."""
    parts = [Case("e5m2", "odd", "x", 4, 1, 1.0, 9, "nine"), Case("e5m2", "odd", "x", 4, 2, 1.0, 3, "three")]
    for order in (parts, parts[::-1]):
        whole = Case("e5m2", "odd", "x")
        for part in order:
            whole.merge(part)
        assert whole == Case("e5m2", "odd", "x", 8, 3, 2.0, 3, "three")
