"""Affine integer quantization."""
from qtorch.quantization.affine import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
