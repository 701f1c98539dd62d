"""What tests find before they import: eight simulated JAX devices, threads that sleep, the folders of tests."""

import gc
import os
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# Threads that have no work sleep: spinning, those of one test process take the cores of the other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parent))  # for `benchmarks`, which is not installed
sys.path.insert(0, str(Path(__file__).parent / "tests" / "support"))  # for `oracle`, `support` and others

# A first call compiles, and machines are shared. Every run draws the same inputs, so that only a change makes one fail.
SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
hypothesis.settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=SLOW)
hypothesis.settings.load_profile("any machine")

# XLA compiles hundreds of small programs for these tests, most of the time in LLVM's passes and in its newer emitters.
# They are about what programs become, about messages and about integers. Where floats could be contracted or reordered,
# in laws and in whole models, tests take all optimizations: in tests/parity test_bits.py, test_affine.py,
# test_arithmetic.py, test_products.py, test_reproducible.py, test_workflow_models.py and test_workflow_layers.py.
QUICK = (
    "qjax/",
    *(f"tests/jax/{room}/" for room in ("insight", "nnx", "recipes", "workflow")),
    *(f"tests/jax/quantization/test_{name}" for name in ("bad_functions", "layouts", "moves", "tensor")),
    *(f"tests/jax/{file}.py" for file in ("linalg/test_second_derivatives", "rounding/test_derivatives")),
    *(f"tests/parity/test_workflow{rest}.py" for rest in ("", "_architectures", "_formats", "_paddings")),
    *(f"tests/parity/test_{name}" for name in ("bad", "hostile", "insight", "watch", "wrong_calls")),
)


def pytest_collection_finish():
    gc.freeze()  # modules and thousands of tests stay: no collection needs to look at them


@pytest.fixture(autouse=True)
def compile_quickly(request, monkeypatch):
    """Less time in XLA for tests of QUICK that are not heavy."""
    if (
        not request.node.nodeid.startswith(QUICK)
        or request.node.get_closest_marker("heavy")
        or "jax" not in sys.modules
    ):
        yield
        return
    import jax
    from jax._src import compiler

    of_jax = compiler.get_compile_options

    def with_older_emitters(*given, env_options_overrides=None, **named):
        options = {**(env_options_overrides or {}), "xla_cpu_use_fusion_emitters": False}
        return of_jax(*given, env_options_overrides=options, **named)

    monkeypatch.setattr(compiler, "get_compile_options", with_older_emitters)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


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
