"""Wrong calls of public functions: a ValueError or a TypeError, never an error of Python's or a framework's own."""

import pytest
from wrong_calls import public, recorded, survey

PACKAGES = ("qcore", "qtorch", "qjax")


# Calls of JAX compile: of this package one function in eleven is called.
@pytest.mark.parametrize(("package", "every", "functions"), [("qcore", 4, 1), ("qtorch", 7, 1), ("qjax", 11, 11)])
def test_no_raw_errors(package, every, functions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a text is taken for a path
    count, found = survey(package, (package,), every, functions)
    assert count > 40
    assert [one for one in found if one.raw] == []


@pytest.mark.heavy
@pytest.mark.parametrize("package", PACKAGES)
def test_no_raw_errors_at_all(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, found = survey(package, (package,))
    assert [one for one in found if one.raw] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_most_public_functions_have_a_right_call(package):
    """Otherwise the tests above would test nothing."""
    functions = public(package)
    assert sum(bool(recorded(name, function)) for name, function in list(functions.items())[:40]) > 25
