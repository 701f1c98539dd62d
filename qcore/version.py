"""The version of the three packages, and of the distribution; and the version of their numerics."""

__version__ = "1.0.0"

# The bits of results: it rises whenever a law returns others for the same call, and `tests/parity/golden.json` has the
# laws' hashes of each.
NUMERICS = 2
