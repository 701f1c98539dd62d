"""Rounding of arrays."""
