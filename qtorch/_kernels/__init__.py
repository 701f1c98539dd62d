"""Kernels: how it gets fast."""
