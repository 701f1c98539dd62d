"""An MLP, a residual network and a language model of torch.nn, as anybody would write them."""

from __future__ import annotations

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
    """He et al., "Identity Mappings in Deep Residual Networks", 2016, with 20 layers, for grey images of 8x8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = convolution(1, WIDTHS[0], 3)
        self.blocks = nn.ModuleList(
            ResidualBlock(inputs, outputs, 1 if inputs == outputs else 2) for inputs, outputs in pairwise(WIDTHS)
        )
        self.bn = nn.BatchNorm2d(WIDTHS[-1])
        self.fc = nn.Linear(WIDTHS[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.reshape(-1, 1, 8, 8))
        for block in self.blocks:
            x = block(x)
        return self.fc(F.avg_pool2d(F.relu(self.bn(x)), 2).flatten(1))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class TransformerBlock(nn.Module):
    """Causal attention and an MLP, each after normalization, around which the input is added."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.hidden = nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.attention(self.norm1(x)).chunk(3, -1)
        query, key, value = (part.reshape(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.out(F.gelu(self.hidden(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A language model of letters, as Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.

    Args:
        letters: how many there are.
    """

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, letters, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.letters(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))
