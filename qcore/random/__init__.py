"""Random bits that depend on a key and an element's index alone."""

from qcore.random.draws import permutation, random_bits, uniform
from qcore.random.initial import initial_state

__all__ = ["initial_state", "permutation", "random_bits", "uniform"]
