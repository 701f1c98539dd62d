"""Engines: programs that train or serve, as data; attention with the bits of `qcore.engines` and `qjax.engines`."""

from qcore.engines import ENGINES, Attention, Engine, KVCache, Published
from qcore.lazy import public_names
from qtorch.engines.models import apply
from qtorch.engines.tensors import attention

__all__ = ["ENGINES", "Attention", "Engine", "KVCache", "Published", "apply", "attention"]
__dir__ = public_names(__name__)
