"""Modules of torch.nn, and whole models, whose results and gradients have defined bits."""
