"""Low-precision training as an optax transformation, QPyTorch's `OptimLP` in JAX's idiom; needs optax.

`import qjax` does not import optax; the first use of `qjax.optim` does.
"""

try:
    import optax  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("qjax.optim needs optax: pip install optax") from error

from qcore.lazy import public_names
from qjax.optim.low_precision import low_precision
from qjax.optim.state import LowPrecisionState, accumulators, apply_updates

__all__ = ["LowPrecisionState", "accumulators", "apply_updates", "low_precision"]
__dir__ = public_names(__name__)
