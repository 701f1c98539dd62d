"""Low-precision training as an optax transformation, QPyTorch's `OptimLP` in JAX's idiom; needs optax.

`import qjax` does not import this package: `from qjax.optim import low_precision`.
"""

from qjax.optim.low_precision import low_precision
from qjax.optim.state import LowPrecisionState, accumulators, apply_updates

__all__ = ["LowPrecisionState", "accumulators", "apply_updates", "low_precision"]
