"""Wrong calls of public functions: a ValueError or a TypeError, never an error of Python's or a framework's own."""

import pytest
from wrong_calls import public, recorded, survey

# Rooms without a raw error; the heavy test has those that are not mended yet, see there.
MENDED = {
    "qcore": ("qcore",),
    "qtorch": ("qtorch",),
    "qjax": ("qjax.quant.", "qjax.auto_low", "qjax.reproducible"),
}


@pytest.mark.parametrize(("package", "every"), [("qcore", 4), ("qtorch", 7), ("qjax", 11)])
def test_no_raw_errors(package, every, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a text is taken for a path
    count, found = survey(package, MENDED[package], every)
    assert count > 40
    assert [one for one in found if one.raw] == []


@pytest.mark.heavy
@pytest.mark.parametrize("package", MENDED)
def test_no_raw_errors_at_all(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, found = survey(package, MENDED[package])
    assert [one for one in found if one.raw] == []


@pytest.mark.parametrize("package", MENDED)
def test_most_public_functions_have_a_right_call(package):
    """Otherwise the tests above would test nothing."""
    functions = public(package)
    assert sum(bool(recorded(name, function)) for name, function in list(functions.items())[:40]) > 25
