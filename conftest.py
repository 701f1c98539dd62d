"""What tests find before they import: eight simulated JAX devices, threads that sleep, the folders of tests."""

import copy
import functools
import gc
import os
import sys
import threading
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# XLA's programs are small here: to compile one in 32 parts, each with a start of its own, takes a tenth longer.
FLAGS = " --xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + FLAGS
# Threads that have no work sleep: spinning, those of one test process take the cores of the other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parent))  # for `benchmarks`, which is not installed
sys.path.insert(0, str(Path(__file__).parent / "tests" / "support"))  # for `oracle`, `support` and others

# Programs that are traced and tests that are collected are millions of objects, and few of them are garbage.
gc.set_threshold(20_000, 20, 20)

# A first call compiles, and machines are shared. Every run draws the same inputs, so that only a change makes one fail.
SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
hypothesis.settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=SLOW)
hypothesis.settings.load_profile("any machine")

# Ordinary runs compile kernels and programs of XLA with less optimization than users do: eleven thousand programs and a
# thousand kernels would take most of the time. No optimization may change a bit of the law, and most tests are about
# what programs become, about messages and about integers. With `--as-users`, and in runs with heavy tests, nothing is;
# .ci/run has a step for the bits of all laws. Always with all optimizations: tests of what XLA does to floats, and the
# main job. A program of one operation, as each is without jit, has nothing to contract or to reorder.
OPTIMIZED = (
    "tests/benchmarks/test_consistency.py",
    "tests/jax/recipes/test_compiled.py",
    "tests/peers/",
    *(f"tests/parity/test_{law}.py" for law in ("numerics", "reproducible")),
    *(f"tests/parity/test_arithmetic.py::test_{name}" for name in ("parameters", "sigmoids", "sums")),
)

# Users' options take GCC up to a second for a kernel. Tests with the fixture `users_options` take them all the same.
QUICKER = "-O0"

PATCHED = []  # modules of others, which are patched once in a process

pytest_plugins = ["go_on"]

collect_ignore = ["tests/support/own_formats.py"]  # registers formats, which a module may do once; tests import it


def pytest_addoption(parser):
    parser.addoption("--as-users", action="store_true", help="compile kernels and programs as users do: longer")


def pytest_configure(config):
    if is_quick(config):
        os.environ.setdefault("QTORCH_CFLAGS", QUICKER)
        os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "0")  # its keys do not know of passes that are left out
    elif config.pluginmanager.hasplugin("cacheprovider"):
        # Workers, and later runs, find the programs that XLA compiled before. `--cache-clear` forgets them.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("xla")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")  # also of the smallest


def is_quick(config):
    """Whether a run compiles with less optimization than users do."""
    return "not heavy" in config.option.markexpr and not config.option.as_users


def pytest_collection_modifyitems(config, items):
    """Tests of the marker `as_users` are for runs that compile as users do."""
    if not is_quick(config):
        return
    left = [item for item in items if item.get_closest_marker("as_users")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not item.get_closest_marker("as_users")]


def pytest_collection_finish():
    gc.freeze()  # modules and thousands of tests stay: no collection needs to look at them


def pytest_runtest_setup():
    """torch.onnx.export reads the signatures of two thousand functions in each call, for half a second: here once."""
    registration = sys.modules.get("torch.onnx._internal.exporter._registration")
    if registration is None or registration in PATCHED:
        return
    PATCHED.append(registration)
    of_torch = functools.cache(registration.ONNXRegistry.from_torchlib)

    def from_torchlib(opset_version):
        registry = copy.copy(of_torch(opset_version))
        registry.functions = {target: [*metas] for target, metas in registry.functions.items()}
        return registry

    registration.ONNXRegistry.from_torchlib = staticmethod(from_torchlib)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """What the tests of a file leave stays, too, compiled programs most of all: millions of objects to look at."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Less time in XLA for tests of quick runs, and their fixtures, that are not of OPTIMIZED."""
    compiler = sys.modules.get("jax._src.compiler")
    if compiler is None or not is_quick(item.config):
        return (yield)
    of_jax, optimized = compiler.backend_compile_and_load, item.nodeid.startswith(OPTIMIZED)

    def with_fewer_passes(backend, module, devices, options, callbacks):
        if not optimized or has_one_operation(module):
            options.env_option_overrides = [*options.env_option_overrides, ("xla_cpu_use_fusion_emitters", False)]
            debug = options.executable_build_options.debug_options
            debug.xla_backend_optimization_level, debug.xla_llvm_disable_expensive_passes = 0, True
        return of_jax(backend, module, devices, options, callbacks)

    mlir, lax = sys.modules["jax._src.interpreters.mlir"], sys.modules["jax._src.lax.lax"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "backend_compile_and_load", with_fewer_passes)
        patch.setattr(lax.stage_p, "impl", array_of)
        # JAX makes a context for each program, which takes milliseconds.
        patch.setattr(mlir, "make_ir_context", shared_by_programs(mlir.make_ir_context))
        return (yield)


def array_of(x):
    """An array of a number or of NumPy's array, for which JAX would compile a program for each shape."""
    import jax

    return x if isinstance(x, jax.Array) else jax.device_put(np.array(x) if isinstance(x, np.ndarray) else x)


# Casts to eight bits have other bits where XLA does not optimize (tests/peers/test_casts.py); products are sums.
NEEDS_PASSES = "stablehlo.convert", "stablehlo.convolution", "stablehlo.dot_general"


def has_one_operation(module):
    """Whether a program is one operation, which no pass changes, and its return."""
    first, *more = module.body.operations
    blocks = [block for region in first.regions for block in region.blocks]  # the mesh of devices has none
    operations = [operation.name for block in blocks for operation in block.operations]
    return not more and len(operations) == 2 and operations[0] not in NEEDS_PASSES


def shared_by_programs(make_context):
    """Gives all programs of a thread one context of MLIR, except a program that is made while JAX writes another."""
    from jax._src.lib.mlir import ir

    of_thread = threading.local()

    def context():
        if ir.Context.current is not None:
            return make_context()
        if not hasattr(of_thread, "context"):
            of_thread.context = make_context()
        return of_thread.context

    return context


@pytest.fixture
def users_options(monkeypatch):
    """Kernels are compiled with the options that users have."""
    from kernels_support import forget_kernels

    monkeypatch.delenv("QTORCH_CFLAGS", raising=False)
    forget_kernels()
    yield
    forget_kernels()


@pytest.fixture(autouse=True)
def first_weights_by_numpy(monkeypatch):
    """First weights of flax's layers are drawn by NumPy: XLA compiles a truncated normal for half a second a shape."""
    initializers = sys.modules.get("jax._src.nn.initializers")
    if initializers is None:
        return
    import jax

    of_jax = initializers.random.truncated_normal

    def truncated_normal(key, lower, upper, shape, dtype=float, **others):
        if isinstance(key, jax.core.Tracer) or others.get("out_sharding") is not None:
            return of_jax(key, lower, upper, shape, dtype, **others)
        x = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel()).standard_normal(shape)
        return jax.numpy.asarray(np.clip(x, lower, upper), dtype)

    monkeypatch.setattr(initializers.random, "truncated_normal", truncated_normal)
