"""Engines: programs that train or serve, as data, and what they compute.

A trainer and a server compute the same attention in other orders and formats, so their numbers differ. An `Engine` says
what decides them; `attention` computes as it says, on one machine, with equal bits in NumPy, PyTorch and JAX.

Example:
    >>> import numpy as np
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 97, 128)).astype(np.float32)
    >>> for name in ("fa3.hopper.fp8", "exact"):
    ...     whole = attention(q, k, v, name)  # one pass over 97 tokens
    ...     step = attention(q[:, :, -1:], k, v, name)  # decoding of the last one
    ...     print(name, bool((step == whole[:, :, -1:]).all()))
    fa3.hopper.fp8 False
    exact True
"""

from qcore.engines.arrays import attention
from qcore.engines.attribution import Factor
from qcore.engines.cache import CACHES, KVCache, PublishedCache
from qcore.engines.coverage import Coverage, Covered
from qcore.engines.divergence import Mismatch, mismatch
from qcore.engines.engine import ENGINES, Engine, Published
from qcore.engines.fold import Attention
from qcore.engines.generation import Generated, generate
from qcore.lazy import public_names

__all__ = [
    "CACHES",
    "ENGINES",
    "Attention",
    "Coverage",
    "Covered",
    "Engine",
    "Factor",
    "Generated",
    "KVCache",
    "Mismatch",
    "Published",
    "PublishedCache",
    "attention",
    "generate",
    "mismatch",
]
__dir__ = public_names(__name__)
