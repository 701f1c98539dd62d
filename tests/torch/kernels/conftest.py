"""A process that has no kernels yet, without the time of another process."""

import pytest

from qtorch._kernels import compiler, laws, store
from qtorch._rounding.plan import plan_for


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Makes this process forget its kernels, and what it read of its variables; they are kept in an empty folder."""

    def forget():
        of_variables = compiler.target_flags, compiler._added, compiler._has_openmp, compiler.processor
        of_folders = store._folder_of_process, store._clear_abandoned
        for known in (*of_variables, *of_folders, laws.rounding, plan_for):
            known.cache_clear()

    monkeypatch.setenv("QTORCH_CACHE_DIR", str(tmp_path))
    forget()
    yield forget
    forget()
