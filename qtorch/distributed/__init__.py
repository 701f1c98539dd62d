"""Sums over ranks as programs compute them: bits of `qcore.distributed` and `qjax.distributed`."""

from qcore.distributed import BACKENDS, Backend, Collective, WireScale, named
from qcore.lazy import public_names
from qtorch.distributed.fsdp import FSDPReduceScatter
from qtorch.distributed.hooks import comm_hook
from qtorch.distributed.reducer import Reducer
from qtorch.distributed.tensors import all_gather, reduce, reduce_scatter

__all__ = [
    "BACKENDS",
    "Backend",
    "Collective",
    "FSDPReduceScatter",
    "Reducer",
    "WireScale",
    "all_gather",
    "comm_hook",
    "named",
    "reduce",
    "reduce_scatter",
]
__dir__ = public_names(__name__)
