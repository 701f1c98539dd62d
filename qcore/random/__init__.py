"""Random bits that depend on a key and an element's index alone."""

from qcore.lazy import public_names
from qcore.random.draws import initial_state, permutation, random_bits, uniform

__all__ = ["initial_state", "permutation", "random_bits", "uniform"]
__dir__ = public_names(__name__)
