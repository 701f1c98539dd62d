"""Modules of flax nnx, and whole models, whose results and gradients have defined bits; it needs flax."""
