"""Where JAX keeps its compiled programs: beside PyTorch's kernels, so that a second run compiles nothing."""

from __future__ import annotations

import sys
import tempfile

import jax

from qtorch._kernels.store import cache_root, make_private


def keep_programs(quiet: bool = False) -> None:
    """Keeps what JAX compiles on disk: thousands of small programs. Where it cannot, says so and goes on.

    Args:
        quiet: whether another process says so already.
    """
    place = cache_root() / "jax"
    try:
        make_private(place)
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        if not quiet:
            said = f"compiled programs cannot be kept in {place} ({error}); every process compiles its own, which takes"
            print(f"{said} longer and has the same results. QTORCH_CACHE_DIR names another folder.", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
