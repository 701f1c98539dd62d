"""Low-precision arithmetic in JAX: pure functions with the same bits as NumPy (qcore) and PyTorch (qtorch).

`qjax.arithmetic`, `qjax.distributed`, `qjax.engines`, `qjax.exchange`, `qjax.export`, `qjax.insight`, `qjax.linalg`,
`qjax.nnx`, `qjax.optim`, `qjax.quantization`, `qjax.recipes`, `qjax.reproducible` and `qjax.testing` are imported
when they are first used. `qjax.optim` needs optax and `qjax.nnx` needs flax.
"""

from typing import TYPE_CHECKING

import qcore
from qcore import __version__ as __version__
from qcore.lazy import subpackages

if TYPE_CHECKING:  # first, as some of its names are replaced below
    from qcore import *  # noqa: F403

from qjax import quant as quant
from qjax._rounding.dispatch import decode, encode, quantize  # noqa: F401  # replace qcore's
from qjax._rounding.packing import pack, unpack  # noqa: F401  # replace qcore's
from qjax.quant import block_quantize, fixed_point_quantize, float_quantize, quantizer

if TYPE_CHECKING:
    from qjax import arithmetic as arithmetic
    from qjax import distributed as distributed
    from qjax import engines as engines
    from qjax import exchange as exchange
    from qjax import export as export
    from qjax import insight as insight
    from qjax import linalg as linalg
    from qjax import nnx as nnx
    from qjax import optim as optim
    from qjax import quantization as quantization
    from qjax import recipes as recipes
    from qjax import reproducible as reproducible
    from qjax import testing as testing

# Subpackages are not in it: `from qjax import *` must not replace a program's `nnx` and `optim`.
__all__ = ["block_quantize", "fixed_point_quantize", "float_quantize", "quantizer"]
__all__ += qcore.__all__

if not TYPE_CHECKING:  # type checkers know the names above, and refuse others
    __getattr__, __dir__ = subpackages(
        __name__,
        (
            "arithmetic",
            "distributed",
            "engines",
            "exchange",
            "export",
            "insight",
            "linalg",
            "nnx",
            "optim",
            "quant",
            "quantization",
            "recipes",
            "reproducible",
            "testing",
        ),
        {"qcore": qcore.__all__},
    )
