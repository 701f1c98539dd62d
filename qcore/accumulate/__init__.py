"""Products of tensors with a defined accumulator: what is summed in which order, and rounded when.

`docs/products.md` has the law.
"""

from qcore.accumulate.accumulator import Accumulator
from qcore.accumulate.arrays import first_scaling, matmul
from qcore.accumulate.operands.hadamard import Hadamard
from qcore.accumulate.operands.operand import Operand
from qcore.accumulate.operands.scale import Scale
from qcore.accumulate.product import Product
from qcore.accumulate.sums.exactness import sums_are_exact

__all__ = ["Accumulator", "Hadamard", "Operand", "Product", "Scale", "first_scaling", "matmul", "sums_are_exact"]
