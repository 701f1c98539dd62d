"""Sums over ranks as programs compute them: gloo, NCCL, XLA, and what N ranks do to a gradient, on one machine.

A `Collective` is the law of such a sum, and `BACKENDS` has those of programs by name. gloo and XLA on CPUs were
compared by bits; NCCL was read from its source, and not measured.

Example:
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).standard_normal((1536, 64))
    >>> gradients = (1 + 0.3 * noise).astype(np.float32)  # of 1,536 ranks
    >>> left = {
    ...     name: reduce(gradients, name).mean() / 1536 for name in ("nccl.ring.bf16", "nccl.tree.bf16")
    ... }
    >>> [f"{part:.2f}" for part in left.values()]  # of the gradient
    ['0.33', '1.00']
"""

from qcore.distributed.arrays import all_gather, reduce, reduce_scatter
from qcore.distributed.backends import BACKENDS, Backend, named
from qcore.distributed.collective import Collective
from qcore.distributed.reducer import Reducer
from qcore.distributed.scale import WireScale
from qcore.lazy import public_names

__all__ = [
    "BACKENDS",
    "Backend",
    "Collective",
    "Reducer",
    "WireScale",
    "all_gather",
    "named",
    "reduce",
    "reduce_scatter",
]
__dir__ = public_names(__name__)
