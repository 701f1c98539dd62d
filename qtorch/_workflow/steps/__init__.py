"""The steps from a float model to a quantized one."""
