"""What tests find before they import: eight simulated JAX devices, threads that sleep, the folders of tests."""

import gc
import os
import sys
from pathlib import Path

import hypothesis
import pytest

# XLA's programs are small here: to compile one in 32 parts, each with a start of its own, takes a tenth longer.
FLAGS = " --xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + FLAGS
# Threads that have no work sleep: spinning, those of one test process take the cores of the other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Inductor starts processes for Triton, each of which imports torch; here they have nothing to compile.
os.environ.setdefault("TORCH_WARM_POOL", "0")
# It compiles headers and starts Python thrice to see which vectors a compiler knows, for ten seconds: GCC 12 knows all.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
sys.path.insert(0, str(Path(__file__).parent))  # for `benchmarks`, which is not installed
sys.path.insert(0, str(Path(__file__).parent / "tests" / "support"))  # for `oracle`, `support` and others

# Programs that are traced and tests that are collected are millions of objects, and few of them are garbage.
gc.set_threshold(20_000, 20, 20)

# A first call compiles, and machines are shared. Every run draws the same inputs, so that only a change makes one fail.
SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
hypothesis.settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=SLOW)
hypothesis.settings.load_profile("any machine")

pytest_plugins = ["go_on"]

# Functions of one text with one example in three packages: of JAX, which compiles each, one of five is quick.
ALIKE = {"qjax/arithmetic/__init__.py", "qjax/reproducible/__init__.py"}

# The first registers formats, which a module may do once; tests import it. The others run in environments of their own.
collect_ignore = ["tests/support/own_formats.py", "tests/docs/days"]


def pytest_configure(config):
    """Workers, and later runs, find the programs that XLA compiled before; `--cache-clear` forgets them."""
    if config.pluginmanager.hasplugin("cacheprovider"):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("xla")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")  # also of the smallest
    else:
        os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "0")  # without a folder it has keys only, which take time


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items):
    for place, item in enumerate(item for item in items if item.nodeid.partition("::")[0] in ALIKE):
        if place % 5:
            item.add_marker(pytest.mark.heavy)


def pytest_collection_finish():
    gc.freeze()  # modules and thousands of tests stay: no collection needs to look at them


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """What the tests of a file leave stays, too, millions of objects to look at; JAX's programs, most of it, go."""
    if nextitem is None or nextitem.path != item.path:
        if "jax" in sys.modules:  # 100 MB a file; the next file finds those on disk that it needs
            sys.modules["jax"].clear_caches()
        gc.collect()
        gc.freeze()
