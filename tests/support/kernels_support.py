"""A process that forgets its kernels, so that what it loads and compiles next can be seen in the folder of kernels."""

import sys

ROOMS = tuple(f"qtorch.{room}" for room in ("_kernels", "_rounding.plan", "_affine", "linalg", "reproducible.fused"))


def forget_kernels():
    """Clears all caches of kernels, of plans that hold them, and of what was found out about compiler and folders."""
    for name, module in list(sys.modules.items()):
        if name.startswith(ROOMS):
            for value in list(vars(module).values()):
                getattr(value, "cache_clear", lambda: None)()


def libraries(folder):
    """The names of the libraries in a folder of kernels (`QTORCH_CACHE_DIR`)."""
    return {path.name for path in folder.glob("*/*.so")}
