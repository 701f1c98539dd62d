"""Engines: programs that train or serve, as data; attention with the bits of `qcore.engines` and `qjax.engines`."""

from qcore.engines import (
    CACHES,
    ENGINES,
    Attention,
    Coverage,
    Covered,
    Engine,
    Factor,
    Generated,
    KVCache,
    Mismatch,
    Published,
    PublishedCache,
)
from qcore.lazy import public_names
from qtorch.engines.comparison import mismatch
from qtorch.engines.generation import generate
from qtorch.engines.models import apply, report
from qtorch.engines.tensors import attention

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
    "apply",
    "attention",
    "generate",
    "mismatch",
    "report",
]
__dir__ = public_names(__name__)
