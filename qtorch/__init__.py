"""Low-precision arithmetic in PyTorch: QPyTorch's API with the same bits as NumPy (qcore) and JAX (qjax).

`qtorch.arithmetic`, `qtorch.distributed`, `qtorch.engines`, `qtorch.exchange`, `qtorch.export`, `qtorch.insight`,
`qtorch.linalg`, `qtorch.nn`, `qtorch.optim`, `qtorch.quantization`, `qtorch.recipes`, `qtorch.reproducible` and
`qtorch.testing` are imported when they are first used.
"""

from typing import TYPE_CHECKING

import qcore
import qtorch._operators  # noqa: F401  # registers operators
from qcore import __version__ as __version__
from qcore.lazy import subpackages

if TYPE_CHECKING:  # first, as some of its names are replaced below
    from qcore import *  # noqa: F403

from qtorch import quant as quant
from qtorch._rounding.dispatch import decode, encode, quantize  # noqa: F401  # replace qcore's
from qtorch._rounding.packing import pack, unpack  # noqa: F401  # replace qcore's
from qtorch.quant import block_quantize, fixed_point_quantize, float_quantize, quantizer

if TYPE_CHECKING:
    from qtorch import arithmetic as arithmetic
    from qtorch import auto_low as auto_low
    from qtorch import distributed as distributed
    from qtorch import engines as engines
    from qtorch import exchange as exchange
    from qtorch import export as export
    from qtorch import insight as insight
    from qtorch import linalg as linalg
    from qtorch import nn as nn
    from qtorch import optim as optim
    from qtorch import quantization as quantization
    from qtorch import recipes as recipes
    from qtorch import reproducible as reproducible
    from qtorch import testing as testing

# Subpackages are not in it: `from qtorch import *` must not replace a program's `nn` and `optim`, which are torch's.
__all__ = ["block_quantize", "fixed_point_quantize", "float_quantize", "quantizer"]
__all__ += qcore.__all__

if not TYPE_CHECKING:  # type checkers know the names above, and refuse others
    __getattr__, __dir__ = subpackages(
        __name__,
        (
            "arithmetic",
            "auto_low",
            "distributed",
            "engines",
            "exchange",
            "export",
            "insight",
            "linalg",
            "nn",
            "optim",
            "quant",
            "quantization",
            "recipes",
            "reproducible",
            "testing",
        ),
        {"qcore": qcore.__all__},
    )
