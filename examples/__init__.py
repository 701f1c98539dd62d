"""Programs that train in low precision, in PyTorch and JAX; each runs with `python -m examples.NAME`."""
