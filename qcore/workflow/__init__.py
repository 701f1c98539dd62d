"""What the quantization workflows of PyTorch and JAX decide alike: settings by name, layers in a row, and stubs."""
