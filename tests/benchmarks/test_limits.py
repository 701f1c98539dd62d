"""What bounds rows of `benchmarks.speed`, and which take more."""

import json

import pytest

from benchmarks.speed import Case, Row, against_torch
from benchmarks.support.limits import BOUNDS, PACKAGE, RESULTS, beyond, kind_of, limit_of


def row(text, exponent, ratio, limit=4.0, operation="nearest", vectors="avx2"):
    baseline = 1e-9 * (1 << exponent) / 4  # a quarter of a nanosecond an element
    return Row(vectors, Case(operation, text, "float32", exponent), ratio * baseline, baseline, limit)


def test_rows_beyond_their_limits_are_named():
    limit = limit_of("nearest", "float(5,2)", 20, "avx2")
    found = [
        row("float(5,2)", 20, limit),
        row("float(5,2)", 20, limit + 0.1),
        row("float(5,2)", 20, 99, operation=PACKAGE),
    ]
    assert [(one["ratio"], most) for one, most in beyond(one.record() for one in found)] == [(limit + 0.1, limit)]


def test_stochastic_rounding_in_jax_has_the_kernel_of_torch_as_its_baseline():
    torch_rows = [
        row("float(5,2)", 20, ratio, 0.25, "stochastic", name) for ratio, name in ((2, "avx2"), (1, "avx512"))
    ]
    other = row("float(5,2)", 20, 2, vectors="jax")
    found = against_torch([row("float(5,2)", 20, 3, 1.7, "stochastic", "jax"), other], torch_rows)
    assert [one.ratio for one in found] == pytest.approx([3, 2])
    assert [one.met for one in found] == [False, True]


def test_each_kind_of_the_result_file_has_a_bound():
    """And half of its rows at least keep the limit, so a limit is that of the kind and not of its exceptions."""
    rows = [one for one in json.loads((RESULTS / "speed.json").read_text())["rows"] if one["operation"] != PACKAGE]
    kinds = {(kind_of(one["operation"], one["format"]), one["exponent"], one["vectors"]) for one in rows}
    assert kinds == {(*kind, name) for kind, bound in BOUNDS.items() for name in bound.limits}
    over = [(kind_of(one["operation"], one["format"]), one["exponent"], one["vectors"]) for one, _ in beyond(rows)]
    of_all = [(kind_of(one["operation"], one["format"]), one["exponent"], one["vectors"]) for one in rows]
    assert not [kind for kind in kinds if 2 * over.count(kind) > of_all.count(kind)]
