"""Formats as values: printed as QPyTorch prints them, hashable, comparable, frozen, picklable."""

import copy
import pickle

import pytest

import qcore
import qjax
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Number

EXAMPLES = [
    (FixedPoint(8, 4), "FixedPoint (wl=8, fl=4)"),
    (FixedPoint(wl=8, fl=4, clamp=False), "FixedPoint (wl=8, fl=4, clamp=False)"),
    (FixedPoint(8, 4, True, True), "FixedPoint (wl=8, fl=4, symmetric=True)"),
    (FloatingPoint(5, 2), "FloatingPoint (exponent=5, mantissa=2)"),
    (BlockFloatingPoint(8), "BlockFloatingPoint (wl=8, dim=-1)"),
    (BlockFloatingPoint(wl=8, dim=0), "BlockFloatingPoint (wl=8, dim=0)"),
]


@pytest.mark.parametrize(("number", "text"), EXAMPLES)
def test_text(number, text):
    assert str(number) == repr(number) == text


@pytest.mark.parametrize(("number", "text"), EXAMPLES)
def test_value_semantics(number, text):
    twin = pickle.loads(pickle.dumps(number))
    assert twin == number == copy.deepcopy(number)
    assert hash(twin) == hash(number)
    assert isinstance(number, Number)
    assert sum(number == other for other, _ in EXAMPLES) == 1
    with pytest.raises(AttributeError):
        number.wl = 3


def test_all_packages_have_the_same_formats():
    for name in ("BlockFloatingPoint", "FixedPoint", "FloatingPoint", "Number", "Rounding", "fold_in"):
        assert getattr(qcore, name) is getattr(qtorch, name) is getattr(qjax, name)


def test_public_names():
    assert qcore.__all__ == sorted(qcore.__all__)
    assert set(qtorch.__all__) == set(qjax.__all__) == {*qcore.__all__, "quant"}
    assert set(qtorch.quant.__all__) == set(qjax.quant.__all__)
