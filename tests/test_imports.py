"""Which package imports what, seen by a fresh process."""

import subprocess
import sys

import pytest


def modules_after(statement):
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("qcore", {"torch", "jax", "qtorch", "qjax", "ml_dtypes"}),
        ("qtorch", {"jax", "qjax", "torch._inductor.compile_fx", "torch._dynamo"}),
        ("qjax", {"torch", "qtorch"}),
    ],
)
def test_packages_are_isolated(package, forbidden):
    assert not forbidden & modules_after(f"import {package}")
