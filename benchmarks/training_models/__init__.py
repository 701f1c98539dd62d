"""The models of `benchmarks.same_training`, once in torch.nn and once in flax.nnx, with the same names; and their data."""
