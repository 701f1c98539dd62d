"""The workflow of quantized models of flax, in files with the names of `qtorch.quantization`."""
