"""Products of tensors with a defined accumulator: what is summed in which order, and rounded when.

`docs/products.md` has the law.
"""

from qcore.linalg.accumulator import Accumulator
from qcore.linalg.arrays import first_scaling, matmul
from qcore.linalg.operands.hadamard import Hadamard
from qcore.linalg.operands.operand import Operand
from qcore.linalg.operands.scale import Scale
from qcore.linalg.product import Product
from qcore.linalg.sums.exactness import sums_are_exact

__all__ = ["Accumulator", "Hadamard", "Operand", "Product", "Scale", "first_scaling", "matmul", "sums_are_exact"]
