"""Affine integer quantization: the names of `torch.quantization` as pure functions of arrays and pytrees."""
