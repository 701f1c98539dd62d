"""Formats whose laws are those of other programs: ggml's blocks of bytes, and bitsandbytes' scales of scales."""
