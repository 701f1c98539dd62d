"""Engines: programs that train or serve, as data; attention with the bits of `qcore.engines` and `qjax.engines`."""

from qcore.engines import ENGINES, Attention, Engine, KVCache, Mismatch, Published
from qcore.lazy import public_names
from qtorch.engines.models import apply, mismatch
from qtorch.engines.tensors import attention

__all__ = ["ENGINES", "Attention", "Engine", "KVCache", "Mismatch", "Published", "apply", "attention", "mismatch"]
__dir__ = public_names(__name__)
