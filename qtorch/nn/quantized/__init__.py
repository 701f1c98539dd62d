"""Layers that compute with integers, with the names and arguments of torch's."""

from qtorch.nn.quantized.linear import Linear

__all__ = ["Linear"]
