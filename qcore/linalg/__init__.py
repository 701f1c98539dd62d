"""Products (GEMM, convolutions, attention) with a defined accumulator: the order of sums, and the steps that round.

`docs/products.md` has the law.
"""

from qcore.lazy import public_names
from qcore.linalg.accumulator import Accumulator
from qcore.linalg.arrays import first_scaling, matmul
from qcore.linalg.exactness import sums_are_exact
from qcore.linalg.operands import Hadamard, Operand, Scale
from qcore.linalg.product import Product

__all__ = ["Accumulator", "Hadamard", "Operand", "Product", "Scale", "first_scaling", "matmul", "sums_are_exact"]
__dir__ = public_names(__name__)
