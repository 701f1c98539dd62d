"""Number formats, the rounding law and random bits, framework-agnostic; runs by itself on NumPy arrays.

`qcore.affine`, `qcore.arithmetic`, `qcore.distributed`, `qcore.engines`, `qcore.exchange`, `qcore.insight`,
`qcore.linalg`, `qcore.recipes`, `qcore.reproducible` and `qcore.testing` are imported when they, or their names here,
are first used.

In all three packages a wrong argument raises a TypeError or a ValueError, which says its name, what came and what is
allowed. Docstrings list what they raise besides.
"""

from functools import partial
from typing import TYPE_CHECKING

from qcore.arrays import decode, encode, quantize
from qcore.formats.block import NVFP4, BlockFloatingPoint, BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.names import NAMED, p3109
from qcore.formats.number import Number
from qcore.formats.posit import Posit
from qcore.formats.table import Table
from qcore.formats.text import parse, register_elsewhere, register_format
from qcore.law.rounding import Rounding
from qcore.lazy import subpackages
from qcore.packing import pack, unpack
from qcore.random.threefry import fold_in
from qcore.recipes.rules import Quantization, Rule
from qcore.version import __version__ as __version__

if TYPE_CHECKING:
    from qcore import affine as affine
    from qcore import arithmetic as arithmetic
    from qcore import distributed as distributed
    from qcore import engines as engines
    from qcore import exchange as exchange
    from qcore import insight as insight
    from qcore import linalg as linalg
    from qcore import recipes as recipes
    from qcore import reproducible as reproducible
    from qcore import testing as testing
    from qcore.exchange.formats.doubled import Doubled
    from qcore.exchange.formats.gguf import GGUF
    from qcore.linalg import Accumulator, Hadamard, Operand, Product, Scale
    from qcore.recipes import RECIPES, Entry, Recipe

__all__ = [
    "GGUF",
    "NAMED",
    "NVFP4",
    "RECIPES",
    "Accumulator",
    "BinaryFloat",
    "BlockFloatingPoint",
    "BlockScaled",
    "Doubled",
    "Entry",
    "FixedPoint",
    "FloatingPoint",
    "Hadamard",
    "Number",
    "Operand",
    "Posit",
    "Product",
    "Quantization",
    "Recipe",
    "Rounding",
    "Rule",
    "Scale",
    "Table",
    "decode",
    "encode",
    "fold_in",
    "p3109",
    "pack",
    "parse",
    "quantize",
    "register_format",
    "unpack",
]

if not TYPE_CHECKING:  # type checkers know the names above, and refuse others
    __getattr__, __dir__ = subpackages(
        __name__,
        (
            "affine",
            "arithmetic",
            "distributed",
            "engines",
            "exchange",
            "insight",
            "linalg",
            "random",
            "recipes",
            "reproducible",
            "testing",
        ),
        {
            "qcore.exchange.formats.doubled": ("Doubled",),
            "qcore.exchange.formats.gguf": ("GGUF",),
            "qcore.linalg": ("Accumulator", "Hadamard", "Operand", "Product", "Scale"),
            "qcore.recipes": ("RECIPES", "Entry", "Recipe"),
        },
    )

    # Texts whose kinds rooms register when they are imported.
    _ROOMS = {
        "GGUF": ("gguf",),
        "Doubled": ("doubled",),
        "affine": ("affine",),
        "distributed": ("collective", "wire_scale"),
        "engines": ("attention", "engine", "kv_cache"),
        "linalg": ("accumulator", "hadamard", "operand", "product", "scale"),
        "recipes": ("entry", "recipe"),
    }
    register_elsewhere({kind: partial(__getattr__, room) for room, kinds in _ROOMS.items() for kind in kinds})
