"""The models of `benchmarks.same_training` in torch.nn and in flax.nnx, their data, and how each is trained."""
