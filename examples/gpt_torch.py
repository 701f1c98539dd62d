"""A small GPT of letters, in PyTorch: two blocks of attention and two linear layers each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal attention by heads; its projections are linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-3, -2).flatten(-2))


class Block(nn.Module):
    """Attention and two linear layers, each after normalization, around which the input is added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Logits of the next letter, of shape (batch, length, letters) (Radford et al., 2019, at a small size).

    Args:
        letters: how many there are.
        length: of the longest text.
        width: of the residual stream.
        heads: of attention.
        depth: the number of blocks.
    """

    def __init__(self, letters: int, length: int, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.letters(text) + self.places.weight[: text.shape[1]]
        return self.head(self.norm(self.blocks(x)))
