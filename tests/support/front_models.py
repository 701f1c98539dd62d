"""Networks as people have them, written from their descriptions: nothing in them was made for quantization."""

import torch
from torch import nn


class InvertedResidual(nn.Module):
    """MobileNetV2's block: wide in the middle, depthwise, with a skip where shapes agree."""

    def __init__(self, inputs, outputs, stride, wider):
        super().__init__()
        hidden = inputs * wider
        self.skip = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x):
        return x + self.conv(x) if self.skip else self.conv(x)


class BasicBlock(nn.Module):
    """ResNet's block: one ReLU that is called twice, and a sum in place."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


class Inception(nn.Module):
    """GoogLeNet: branches that are concatenated, ReLUs as functions, and a head that only training uses."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.one = nn.Conv2d(width, width // 2, 1)
        self.pool, self.other = nn.MaxPool2d(3, 1, 1), nn.Conv2d(width, width // 2, 1)
        self.aux = nn.Linear(width, 3)

    def forward(self, x):
        x = nn.functional.relu(self.bn(self.conv(x)), inplace=True)
        if self.training:
            self.aux(x.mean((2, 3)))
        return torch.cat([self.one(x), self.other(self.pool(x))], 1)


class ConvNet(nn.Module):
    """All three, one after the other, with statistics as of some training."""

    def __init__(self, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(
            InvertedResidual(width, width, 1, 2),
            InvertedResidual(width, width, 2, 2),
            BasicBlock(width),
            Inception(width),
        )
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(width, 5)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
                module.weight.data.uniform_(0.5, 1.5)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


class SameConv(nn.Conv2d):
    """A convolution that pads in a child and calls its base class, as timm's and efficientnet's do."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        return super().forward(self.pad(x.to(self.weight.dtype)))


class Conv1D(nn.Module):
    """transformers' linear layer of GPT-2, with its weight the other way round."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.nf = outputs
        self.weight, self.bias = nn.Parameter(0.2 * torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class Transformer(nn.Module):
    """A block of GPT-2 between an embedding and a head with the same weight."""

    def __init__(self, words=50, width=32, heads=4):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.embed = heads, nn.Embedding(words, width)
        self.ln_1, self.attn, self.proj = nn.LayerNorm(width), Conv1D(3 * width, width), Conv1D(width, width)
        self.ln_2, self.fc, self.act, self.out = nn.LayerNorm(width), Conv1D(64, width), nn.GELU(), Conv1D(width, 64)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        x = self.embed(words)
        q, k, v = (
            part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in self.attn(self.ln_1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(x.shape))
        return self.head(x + self.out(self.act(self.fc(self.ln_2(x)))))


class Others(nn.Module):
    """Layers with weights that are neither linear nor convolutions, and one of these that is a subclass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.same, self.act = SameConv(3, 4, 2), nn.PReLU()
        self.up = nn.ConvTranspose2d(4, 4, 2, 2, bias=False)
        self.lstm, self.gru = nn.LSTM(4, 6, batch_first=True), nn.GRU(6, 5, bidirectional=True, bias=False)
        self.cell = nn.LSTMCell(10, 4)

    def forward(self, x):
        x = self.up(self.act(self.same(x))).flatten(2).transpose(1, 2)
        x, _ = self.lstm(x)
        x, _ = self.gru(x.transpose(0, 1))
        return self.cell(x[-1])[0]


def images(count=4):
    """Batches for `ConvNet`."""
    torch.manual_seed(1)
    return [torch.randn(8, 3, 16, 16) for _ in range(count)]


def decibels(exact, found):
    """Signal over error."""
    return (20 * torch.log10(exact.norm() / (exact - found).norm())).item()
