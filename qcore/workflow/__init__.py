"""Decisions that the quantization workflows of PyTorch and JAX share: settings by name, fused layers, and stubs."""
