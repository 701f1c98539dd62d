"""Integers with scales and zero points on tensors: QTensor, observers, fake quantization, configurations."""
