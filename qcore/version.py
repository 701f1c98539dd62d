"""The version of the three packages, and of the distribution."""

__version__ = "0.1.0"
