"""The ways to round a tensor: kernels on the CPU and on GPUs, an operator in compiled programs, and operations."""
