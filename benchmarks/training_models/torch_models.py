"""An MLP, a residual network and a language model of torch.nn, as anybody would write them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.training_models.sizes import CONTEXT, HEADS, HIDDEN, LAYERS, WIDTH, WIDTHS


class MLP(nn.Module):
    """One hidden layer, for images of 8x8."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, HIDDEN)
        self.out = nn.Linear(HIDDEN, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.hidden(x)))


class ResidualBlock(nn.Module):
    """Two convolutions, each after normalization and ReLU, around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(y))) + self.shortcut(x)


class PreResNet20(nn.Module):
    """He et al., "Identity Mappings in Deep Residual Networks", 2016, with 20 layers, for grey images of 8x8.

    Args:
        widths: channels of the blocks.
    """

    def __init__(self, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        self.conv = convolution(1, widths[0], 3)
        self.blocks = nn.ModuleList(
            ResidualBlock(inputs, outputs, 1 if inputs == outputs else 2) for inputs, outputs in pairwise(widths)
        )
        self.bn = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.reshape(-1, 1, 8, 8))
        for block in self.blocks:
            x = block(x)
        return self.fc(F.avg_pool2d(F.relu(self.bn(x)), 2).flatten(1))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class TransformerBlock(nn.Module):
    """Causal attention and an MLP, each after normalization, around which the input is added."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).chunk(3, -1)
        query, key, value = (part.reshape(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.hidden(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A language model of letters, as Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.

    Args:
        letters: how many there are.
        width: of each letter's vector.
    """

    def __init__(self, letters: int, width: int = WIDTH) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(TransformerBlock(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.letters(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))
