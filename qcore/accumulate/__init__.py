"""Products of tensors with a defined accumulator: what is summed in which order, and rounded when.

`docs/products.md` has the law.
"""

from qcore.accumulate.accumulator import Accumulator
from qcore.accumulate.arrays import matmul
from qcore.accumulate.exactness import sums_are_exact
from qcore.accumulate.product import Operand, Product

__all__ = ["Accumulator", "Operand", "Product", "matmul", "sums_are_exact"]
