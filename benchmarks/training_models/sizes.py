"""The sizes of the models of `benchmarks.same_training`."""

HIDDEN = 128  # of the MLP

WIDTHS = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]  # channels of the residual network's blocks

WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 32  # of the language model

BATCH = {"mlp": 64, "preresnet20": 64, "gpt": 16}
