"""Tables of products: shares, what stayed in high precision, and how they print."""

import pickle

import numpy as np
import pytest

from qcore import RECIPES, Product, parse
from qcore.affine import INT8, PerChannelMinMax
from qcore.report import ProductReport, RunReport, short_product
from qcore.workflow.reporting import Reports, Rounding, row

LOW = RECIPES["mxfp8"].entries[0].products
RUN = RunReport(
    [
        ProductReport("a", 0, "linear", ((2, 8), (4, 8)), 64, LOW),
        ProductReport("", 1, "matmul", ((8, 2), (2, 8)), 128, None, "no entry"),
        ProductReport("b", 0, "lstm", ((2, 8),), None, None, "qtorch.linalg has no such product"),
    ]
)


def test_shares_are_of_all_known_multiply_adds():
    assert [one.share for one in RUN] == [1 / 3, 2 / 3, 0.0]
    assert RUN.lowered == 1 / 3
    assert (len(RUN), RUN["a"][0].products, RUN["c"]) == (3, LOW, ())
    assert RunReport([]).lowered == 0


def test_tables_name_formats_and_reasons(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    head, *lines, forward, grad_input, grad_weight, end = str(RUN).splitlines()
    assert head.split()[:4] == ["path", "kind", "shapes", "share"]
    assert lines[0].split()[:4] == ["a", "linear", "2x8", "4x8"]
    assert "33.3%" in lines[0]
    assert lines[1].startswith("(model) #1")
    assert [line.split("%")[-1].strip() for line in lines[:2]] == ["(1)", "none: no entry"]
    assert lines[2].split()[3] == "?"
    rows, columns = "scaled(e4m3fn,{-1:32},rule=rceil)", "scaled(e4m3fn,{-2:32},rule=rceil)"
    assert forward == f"(1) forward: {rows} x {rows}"
    assert grad_input == f"(1) gradient of the input: {rows} x {columns}"
    assert grad_weight == f"(1) gradient of the weight: {columns} x {columns}"
    assert end == "lowered: 33.3%"


def test_equal_formats_have_one_name_and_accumulators_are_named(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    chunked = RECIPES["fp8_chunked"].entries[-1].products
    places = {"a": LOW, "b": chunked, "c": LOW}
    run = RunReport([ProductReport(place, 0, "linear", ((2, 8),), 64, one) for place, one in places.items()])
    lines = str(run).splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["(1)", "(2)", "(1)"]
    assert [line[:4] for line in lines[4:-1]] == ["(1) "] * 3 + ["(2) "] * 3
    assert lines[7].endswith(", accumulator(float(6,9),chunk=64,inner=accumulator(float(6,9),chunk=1))")


def test_formats_are_short():
    for recipe in RECIPES.values():
        for entry in recipe.entries:
            if entry.products is not None:
                assert len(short_product(entry.forward)) <= 75
    assert short_product(Product("e4m3fn", None)) == "e4m3fn x float32"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_run_fits_and_says_all(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = str(RUN)
    assert max(map(len, text.splitlines())) <= width
    words = "".join(text.split())
    for part in ("none: qtorch.linalg has no such product", "33.3%", "(model) #1", *RUN._legend()):
        assert "".join(part.split()) in words


def test_pickles_of_before_are_read():
    now = pickle.dumps(RUN.products[0], protocol=2)
    before = now.replace(b"X\x04\0\0\0path", b"X\x05\0\0\0place")
    assert before != now
    assert pickle.loads(before) == RUN.products[0]


class Part:
    """A module."""

    def __init__(self, *arrays, is_part=False, **children):
        self.arrays, self.is_part, self.inner = arrays, is_part, children


class Parts(Reports):
    def is_part(self, module):
        return module.is_part

    def children(self, module):
        return list(module.inner.items())

    def owns_arrays(self, module):
        return bool(module.arrays)

    def row(self, path, module):
        return row(path, "Part", "float", arrays=[(array, True) for array in module.arrays], reason="none")


def test_rows_are_layers_and_containers_with_arrays_of_their_own_once():
    shared, numbers = Part(np.zeros(3, np.float16)), np.ones((2, 2), np.float32)
    inner = Part(numbers, a=shared, observer=Part(is_part=True), b=shared)
    found = Parts().report(Part(first=inner, empty=Part(only=Part()), again=shared, last=inner))
    assert [(one.path, one.bits, one.bytes) for one in found] == [
        ("first", 32, 16),
        ("first.a", 16, 6),
        ("empty.only", None, 0),
    ]


class Coded:
    """A weight in codes."""

    number, shape = parse("e2m1fn"), (2, 32)


class Observer:
    rule = PerChannelMinMax(INT8)


def test_a_row_has_the_widest_weight_and_one_pair_of_parameters():
    result = Rounding.of(Observer(), Observer())
    assert (result.name, result.text) == ("Observer(Observer)", "affine(-128,127) per channel")
    assert result.with_parameters(np.ones(2)) is result
    result = result.with_parameters(np.float32([0.5]), np.int32([3]))
    found = row("a", "Linear", "rounded", arrays=[], codes=[Coded(), Coded()], result=result)
    assert (found.weight, found.bits, found.scale, found.zero_point) == ("e2m1fn", 4, 0.5, 3)
    unseen = row("a", "L", "observed", arrays=[], weight=Rounding("", parse("e4m3fn")), result=Rounding(seen=False))
    assert (unseen.weight, unseen.reason) == ("e4m3fn", "it has seen nothing yet")
