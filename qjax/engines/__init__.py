"""Engines: programs that train or serve, as data; attention with the bits of `qcore.engines` and `qtorch.engines`."""

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
    mismatch,
)
from qcore.lazy import public_names
from qjax.engines.arrays import attention
from qjax.engines.functions import apply, report
from qjax.engines.generation import generate

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
