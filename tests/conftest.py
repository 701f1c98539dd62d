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
def kernels_of_tests(request):
    """Only some kernels are compiled in an ordinary run."""
    from quick_kernels import QUICK  # after the flags above

    from qtorch import kernels

    load, every = kernels.load_module, request.config.option.markexpr != "not heavy"
    kernels.load_module = lambda name, *rest: load(name, *rest) if every or name in QUICK else None
    yield
    kernels.load_module = load
