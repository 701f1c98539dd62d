"""Sums over ranks as programs compute them: bits of `qcore.distributed` and `qtorch.distributed`."""

from qcore.distributed import BACKENDS, Backend, Collective, WireScale, named
from qcore.lazy import public_names
from qjax.distributed.arrays import all_gather, psum, reduce, reduce_scatter
from qjax.distributed.reducer import Reducer
from qjax.distributed.updates import reduce_updates

__all__ = [
    "BACKENDS",
    "Backend",
    "Collective",
    "Reducer",
    "WireScale",
    "all_gather",
    "named",
    "psum",
    "reduce",
    "reduce_scatter",
    "reduce_updates",
]
__dir__ = public_names(__name__)
