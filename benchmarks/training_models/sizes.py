"""The sizes of the models of `benchmarks.same_training`: small, so that 1,000 steps take minutes of one processor."""

HIDDEN = 128  # of the MLP

WIDTHS = [4, 4, 4, 4, 8, 8, 8, 16, 16, 16]  # channels of the residual network's blocks

WIDTH, HEADS, LAYERS, CONTEXT = 32, 2, 2, 16  # of the language model

BATCH = {"mlp": 64, "preresnet20": 8, "gpt": 4}
