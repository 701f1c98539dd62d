"""Low-precision arithmetic in JAX: pure functions with the same bits as NumPy (qcore) and PyTorch (qtorch).

`qjax.auto_low`, `qjax.insight`, `qjax.linalg`, `qjax.nnx`, `qjax.optim`, `qjax.quantization` and
`qjax.reproducible` are imported when they are first used.
`qjax.optim` needs optax and `qjax.nnx` needs flax.
"""

from typing import TYPE_CHECKING

import qcore
from qcore import *  # noqa: F403
from qcore import __version__ as __version__
from qcore.lazy import subpackages
from qjax import quant
from qjax._rounding.dispatch import decode, encode, quantize  # noqa: F401  # replace qcore's
from qjax._rounding.packing import pack, unpack  # noqa: F401  # replace qcore's
from qjax.quant import block_quantize, fixed_point_quantize, float_quantize, quantizer

if TYPE_CHECKING:
    from qjax import auto_low, insight, linalg, quantization, reproducible
    from qjax import nnx as nnx  # not in __all__, as what they need may be missing
    from qjax import optim as optim

__all__ = [
    "auto_low",
    "block_quantize",
    "fixed_point_quantize",
    "float_quantize",
    "insight",
    "linalg",
    "quant",
    "quantization",
    "quantizer",
    "reproducible",
]
__all__ += qcore.__all__

__getattr__, __dir__ = subpackages(
    __name__, ("auto_low", "insight", "linalg", "nnx", "optim", "quantization", "reproducible")
)
