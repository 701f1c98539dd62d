"""Random bits that depend on a key and an element's index alone."""

from qcore.random.draws import permutation, random_bits, uniform

__all__ = ["permutation", "random_bits", "uniform"]
