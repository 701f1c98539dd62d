"""Eight simulated JAX devices for the sharding tests; helpers that compare bits, never values."""

import os
import sys
from pathlib import Path

import hypothesis
import pytest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).parent.parent))  # for `benchmarks`, which is not installed
sys.path.insert(0, str(Path(__file__).parent))  # for `oracle`, `support` and others

hypothesis.settings.register_profile("any machine", deadline=None)  # a first call compiles, and machines are shared
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True, scope="session")
def precompiled_headers():
    """Many kernels are compiled here, for which compiling torch's headers once pays; a program needs two or three."""
    from qtorch import kernels  # after the flags above

    options = kernels._options
    kernels._options = lambda stack: options(stack) | {"aot_inductor.precompile_headers": True}
    yield
    kernels._options = options
