"""Processes in which Triton interprets and compiles kernels for a GPU that is not there; see `absent_gpu`."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

TRITON = find_spec("triton") is not None


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("triton") and not TRITON:
            item.add_marker(pytest.mark.skip(reason="needs the package triton"))


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    import absent_gpu

    with absent_gpu.interpreter(str(tmp_path_factory.mktemp("interpreter"))) as process:
        yield process


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    import absent_gpu

    with absent_gpu.compiler(str(tmp_path_factory.mktemp("compiler"))) as process:
        yield process
