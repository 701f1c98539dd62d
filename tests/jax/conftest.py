"""Less time in XLA for tests that compile much."""

import jax
import pytest


@pytest.fixture
def compile_quickly():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
