"""A process that has no kernels yet, without the time of another process."""

import pytest
from kernels_support import forget_kernels


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Makes this process forget its kernels, and what it read of its variables; they are kept in an empty folder."""
    monkeypatch.setenv("QTORCH_CACHE_DIR", str(tmp_path))
    forget_kernels()
    yield forget_kernels
    forget_kernels()
