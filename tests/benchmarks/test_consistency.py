"""The main job finds differences: a law that is broken on purpose in one backend makes it fail."""

import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import qtorch._rounding.paths.choice
from benchmarks import consistency
from benchmarks.support import backends, compiled, fake_quantization, products
from benchmarks.support.inputs import MODES
from qcore import Rounding, parse
from qtorch._rounding.paths import inductor

FEW = ["--formats", "float(2,1)", "--count", "2000", "--jobs", "1"]  # jobs of their own would not see what is patched
USUAL = [*FEW, "--rounding", "nearest", "--rounding", "stochastic"]


def _report(file, jobs):
    assert consistency.main([*USUAL, "--jobs", str(jobs), "--json", str(file)]) == 0
    return json.loads(file.read_text())


@pytest.mark.heavy
def test_two_processes_report_as_one_does(tmp_path):
    one, two = (_bits(_report(tmp_path / f"{jobs}.json", jobs)) for jobs in (1, 2))
    assert one == two


@pytest.mark.heavy
def test_nothing_differs_and_json_says_so(tmp_path):
    report = _report(tmp_path / "1.json", 1)
    assert set(report["versions"]) >= {"python", "numpy", "torch", "jax"}
    assert {case["backend"] for case in report["cases"]} >= {
        "numpy",
        "torch ops",
        "torch kernel",
        "jax eager",
        "jax jit",
    }
    for case in report["cases"]:
        assert set(case) >= {"format", "rounding", "backend", "inputs", "differing", "ns_per_element"}
        assert case["differing"] == 0
        assert case["inputs"] >= 1000


def _bits(report):
    return [case | {"seconds": 0, "ns_per_element": 0} for case in report["cases"]]


@pytest.mark.heavy
def test_one_wrong_bit_is_found(monkeypatch, capsys):
    right = backends.by_operations

    def wrong(x, plan, noise):
        lanes = right(x, plan, noise).view(torch.int32)
        lanes.view(-1)[17] ^= -0x80000000 if lanes.numel() > 17 else 0  # the sign of one element
        return lanes.view(torch.float32)

    monkeypatch.setattr(backends, "by_operations", wrong)
    assert consistency.main(USUAL) == 1
    first, *_ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"2 of [\d,]+ results differ; first: torch ops, float\(2,1\), nearest: 1 results, as .*", first)


def test_compiled_programs_are_all_pairs():
    """Of kind and mode, type and mode, type and layout; all have all modes."""
    found = compiled.programs("usual")
    assert {(one.format, mode) for one in found for mode in one.modes} == {*product(compiled.KINDS, MODES)}
    assert {(one.dtype, mode) for one in found for mode in one.modes} == {*product(compiled.DTYPES, MODES)}
    assert {(one.dtype, one.layout) for one in found} == {*product(compiled.DTYPES, compiled.LAYOUTS)}
    assert {(one.format, one.dtype, one.layout) for one in compiled.programs("all")} == {
        *product(compiled.KINDS, compiled.DTYPES, compiled.LAYOUTS)
    }


@pytest.mark.heavy
@pytest.mark.parametrize("broken", [False, True])
def test_compiled_programs_that_differ_are_found(broken, monkeypatch):
    if broken:
        monkeypatch.setattr(inductor.Body, "store", lambda self, lane: (-lane).value)
    program = compiled.Program("fixed(8,4)", "float32", "contiguous", ("nearest", "stochastic"))
    with torch._inductor.config.patch(fx_graph_cache=False):
        cases = compiled.compare(program)
    assert [case.backend for case in cases] == ["numpy", "torch compiled"] * 2
    # Stochastic rounding is a call of the kernel, but its codes are decoded in a loop.
    assert [case.differing > 0 for case in cases] == [False, broken, False, broken]


def test_fake_quantization_that_differs_is_found(monkeypatch, capsys):
    """Each range, dtype and layout of scales forward and backward; here some, and no programs for torch.compile."""
    right = fake_quantization._by_torch
    monkeypatch.setattr(fake_quantization, "FORMS", fake_quantization.FORMS[1:2])
    monkeypatch.setattr(fake_quantization, "DTYPES", {"bfloat16": compiled.DTYPES["bfloat16"]})
    monkeypatch.setattr(torch, "compile", lambda step, **options: step)
    assert consistency.main(["--part", "fake-quantization"]) == 0
    assert "affine" in capsys.readouterr().out
    monkeypatch.setattr(fake_quantization, "_by_torch", lambda *arguments: [-one for one in right(*arguments)])
    rows = fake_quantization.rows("usual")
    cases = [case for found in fake_quantization.compare_fake_quantization(rows) for case in found]
    assert {case.backend for case in cases if case.differing} == {"torch kernel", "torch compiled"}
    assert len({(case.format, case.rounding) for case in cases}) == 4


@pytest.mark.parametrize("options", [["--jobs", "0"], ["--count", "10"]])
def test_impossible_numbers_are_refused(options, capsys):
    with pytest.raises(SystemExit):
        consistency.main([*FEW, *options])
    assert f"argument {options[0]}: {options[1]}: allowed are" in capsys.readouterr().err


def test_a_law_with_other_ties_is_found(monkeypatch, capsys):
    """Only the operations' law: what kernels compile, and keep on disk, stays right."""
    right = qtorch._rounding.paths.choice.run

    def wrong(program, *arguments, **options):
        mode = Rounding.NEAREST_AWAY if program.mode is Rounding.NEAREST else program.mode
        return right(replace(program, mode=mode), *arguments, **options)

    monkeypatch.setattr(qtorch._rounding.paths.choice, "run", wrong)
    assert consistency.main([*FEW, "--rounding", "nearest"]) == 1
    assert "torch ops, float(2,1), nearest: " in capsys.readouterr().out
    assert consistency.main([*FEW, "--rounding", "nearest_up"]) == 0
    assert capsys.readouterr().out.startswith("0 of ")


def test_unknown_formats_are_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        consistency.main(["--formats", "flot(5,2)"])
    assert caught.value.code == 2
    assert (
        "argument --formats: 'flot(5,2)' is in no format's text; the texts are: float(2,1), " in capsys.readouterr().err
    )


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    for name, why in (("", "is a folder"), ("none/x.json", "there is no folder")):
        with pytest.raises(SystemExit):
            consistency.main([*FEW, "--json", str(tmp_path / name)])
        assert why in capsys.readouterr().err


def test_every_group_of_programs_comes_first_once():
    """The first formats share no program; all formats are there."""
    ordered = consistency.in_compiling_order(consistency.FORMATS + consistency.MORE)
    assert set(ordered) == set(consistency.FORMATS + consistency.MORE)
    assert len(ordered) == len(consistency.FORMATS + consistency.MORE)
    assert [number.text for number in ordered[:2]] == ["float(2,1)", "float(8,0)"]


@pytest.mark.parametrize("everything", [False, True])
def test_blocks_of_real_numbers(everything):
    """Few shapes for JAX to compile, or all that training has."""
    real = [np.ones((64, 8, 8, 8), np.float32), np.ones(10, np.float32)]
    number = parse("block(8,dim=0)")
    shapes = {piece.x.shape for piece in consistency._pieces(number, 2000, everything, real)}
    assert len(shapes) == (3 if everything else 1)


@pytest.mark.heavy
def test_more_programs_than_processes_take_come_back(monkeypatch):
    """Processes give way to others after some programs, and their results are in order."""
    texts = [f"{i} {i}" for i in range(40)]
    monkeypatch.setattr(compiled, "compare", str.split)
    assert list(compiled.compare_compiled(texts, 2)) == [text.split() for text in texts]


def test_a_quick_run_has_all_modes_and_dtypes():
    """Each format of a kind has two modes; the parts that follow have a few rows each."""
    numbers = [parse(text) for text in compiled.KINDS]
    assert {mode for number in numbers for mode in consistency._quick_modes(number)} == {*MODES}
    rows = fake_quantization.rows("quick")
    assert {dtype for _, _, dtype, _ in rows} == {*compiled.DTYPES}
    assert len({row[:2] for row in rows}) == len(rows) == len(fake_quantization.FORMS) * len(fake_quantization.AXES)


def test_a_stopped_run_keeps_what_it_has(tmp_path, monkeypatch, capsys):
    """The file and the report have the rows that were compared before Ctrl-C."""
    right = products.compare_products

    def stops(work):
        yield next(right(work))
        raise KeyboardInterrupt

    monkeypatch.setattr(products, "compare_products", stops)
    file = tmp_path / "bits.json"
    assert consistency.main(["--quick", "--part", "products", "--json", str(file)]) == consistency.STOPPED
    record = json.loads(file.read_text())
    assert record["stopped"]
    assert [case["backend"] for case in record["cases"]] == ["numpy", "torch kernel", "jax jit"]
    assert capsys.readouterr().out.startswith("0 of ")


def test_each_part_prints_its_count(monkeypatch, capsys):
    rows = products.rows("quick")[:1]
    monkeypatch.setattr(products, "rows", lambda extent: rows)
    assert consistency.main(["--quick", "--part", "products"]) == 0
    assert re.search(r"^products: 0 of [\d,]+ results differ, \d+ s$", capsys.readouterr().err, re.M)
