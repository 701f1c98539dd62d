"""Kernels of quantized tensors: the affine law, sums of bytes, and layers in floats with integer weights."""
