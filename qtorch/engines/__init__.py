"""Engines: programs that train or serve, as data; attention with the bits of `qcore.engines` and `qjax.engines`."""

from qcore.engines import ENGINES, Attention, Coverage, Covered, Engine, KVCache, Mismatch, Published
from qcore.lazy import public_names
from qtorch.engines.models import apply, mismatch, report
from qtorch.engines.tensors import attention

__all__ = [
    "ENGINES",
    "Attention",
    "Coverage",
    "Covered",
    "Engine",
    "KVCache",
    "Mismatch",
    "Published",
    "apply",
    "attention",
    "mismatch",
    "report",
]
__dir__ = public_names(__name__)
