"""Products that are one call of a kernel, once their operands are rounded."""
