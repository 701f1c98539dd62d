"""Models between PyTorch and flax, as arrays by the names of a `state_dict`."""
