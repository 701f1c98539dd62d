"""Engines: programs that train or serve, as data; attention with the bits of `qcore.engines` and `qtorch.engines`."""

from qcore.engines import ENGINES, Attention, Engine, KVCache, Published
from qcore.lazy import public_names
from qjax.engines.arrays import attention

__all__ = ["ENGINES", "Attention", "Engine", "KVCache", "Published", "attention"]
__dir__ = public_names(__name__)
