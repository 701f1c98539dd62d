"""Laws of plain tensors in few kernels: recorded once for their shapes, and run from then on without torch's own."""
