"""Functions of one float32 number, arithmetic of two, and their gradients."""
