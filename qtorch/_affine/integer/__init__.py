"""How quantized linear layers and convolutions are executed: exact sums of products of integers."""
