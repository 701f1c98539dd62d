"""Networks in PyTorch and flax with the same names, in which nothing was made for quantization.

What stands between their layers has the same bits in both: sums of two, maxima, and functions that move numbers.
"""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

import qjax.nnx as qnn
from qjax.quantization import functional

IMAGES = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)


def torch_conv(inputs, outputs, size=1, groups=1, act=nn.ReLU):
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), *([act()] if act else [])]


def flax_conv(inputs, outputs, size=1, groups=1, act=qnn.ReLU):
    settings = {"padding": size // 2, "feature_group_count": groups, "use_bias": False, "rngs": nnx.Rngs(0)}
    conv = nnx.Conv(inputs, outputs, (size, size), **settings)
    return [conv, nnx.BatchNorm(outputs, epsilon=1e-5, rngs=nnx.Rngs(0)), *([act()] if act else [])]


class TorchConvs(nn.Module):
    """Blocks of MobileNetV2, GoogLeNet, ShuffleNet and U-Net, one after the other."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(*torch_conv(3, 4, 3))
        wide = torch_conv(4, 8, act=nn.ReLU6), torch_conv(8, 8, 3, 8, nn.ReLU6), torch_conv(8, 4, act=None)
        self.mobile = nn.Sequential(*wide[0], *wide[1], *wide[2])
        self.first = nn.Sequential(*torch_conv(4, 4, 3))
        self.one, self.pool, self.other = nn.Conv2d(4, 4, 1), nn.MaxPool2d(2, 1), nn.Conv2d(4, 4, 2)
        self.aux = nn.Linear(4, 3)
        self.branch = nn.Sequential(*torch_conv(4, 4, 3, 4), *torch_conv(4, 4))
        self.down, self.up = nn.Sequential(*torch_conv(8, 6, 3)), nn.ConvTranspose2d(6, 4, 2, 2)
        self.norm, self.head, self.fc = nn.BatchNorm2d(4), nn.Conv2d(12, 6, 1), nn.Linear(6, 5)

    def forward(self, x):
        x = self.stem(x)
        x = self.first(x + self.mobile(x))
        if self.training:
            self.aux(x.amax((2, 3)))
        x = torch.cat([self.one(x)[:, :, :7, :7], self.other(self.pool(F.pad(x, (0, 1, 0, 1))))], 1)[:, :, 1:, 1:]
        left, right = x.chunk(2, 1)
        x = F.channel_shuffle(torch.cat([left, self.branch(right)], 1), 2)
        x = torch.cat([x, self.norm(self.up(self.down(x[:, :, ::2, ::2])))], 1)
        return self.fc(self.head(x).amax((2, 3)))


class FlaxConvs(nnx.Module):
    def __init__(self):
        self.stem = nnx.Sequential(*flax_conv(3, 4, 3))
        wide = flax_conv(4, 8, act=qnn.ReLU6), flax_conv(8, 8, 3, 8, qnn.ReLU6), flax_conv(8, 4, act=None)
        self.mobile = nnx.Sequential(*wide[0], *wide[1], *wide[2])
        self.first = nnx.Sequential(*flax_conv(4, 4, 3))
        self.one, self.other = (
            nnx.Conv(4, 4, (1, 1), rngs=nnx.Rngs(0)),
            nnx.Conv(4, 4, (2, 2), padding="VALID", rngs=nnx.Rngs(0)),
        )
        self.aux = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.branch = nnx.Sequential(*flax_conv(4, 4, 3, 4), *flax_conv(4, 4))
        self.down = nnx.Sequential(*flax_conv(8, 6, 3))
        self.up = nnx.ConvTranspose(6, 4, (2, 2), (2, 2), padding="VALID", rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(4, epsilon=1e-5, rngs=nnx.Rngs(0))
        self.head, self.fc = nnx.Conv(12, 6, (1, 1), rngs=nnx.Rngs(0)), nnx.Linear(6, 5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        x = self.stem(x)
        x = self.first(x + self.mobile(x))
        y = qnn.max_pool(functional.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0))), (2, 2))
        x = jnp.concatenate([self.one(x)[:, :7, :7], self.other(y)], -1)[:, 1:, 1:]
        left, right = jnp.split(x, 2, -1)
        x = functional.channel_shuffle(jnp.concatenate([left, self.branch(right)], -1), 2, channels_last=True)
        x = jnp.concatenate([x, self.norm(self.up(self.down(x[:, ::2, ::2])))], -1)
        return self.fc(self.head(x).max((1, 2)))


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight has the inputs first."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.nf, self.bias = outputs, nn.Parameter(torch.randn(outputs))
        self.weight = nn.Parameter(0.3 * torch.randn(inputs, outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class TorchGPT2(nn.Module):
    """The four linear layers of a block of GPT-2, with functions of equal bits in the place of softmax and GELU."""

    def __init__(self):
        super().__init__()
        self.attn, self.proj, self.fc, self.out = (Conv1D(*s) for s in ((24, 8), (8, 8), (16, 8), (8, 16)))

    def forward(self, x):
        q, k, v = self.attn(x).chunk(3, -1)
        x = x + self.proj(torch.maximum(q, k) + v)
        return x + self.out(F.relu(self.fc(x)))


class FlaxGPT2(nnx.Module):
    def __init__(self):
        self.attn, self.proj = nnx.Linear(8, 24, rngs=nnx.Rngs(0)), nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        self.fc, self.out = nnx.Linear(8, 16, rngs=nnx.Rngs(0)), nnx.Linear(16, 8, rngs=nnx.Rngs(0))

    def __call__(self, x):
        q, k, v = jnp.split(self.attn(x), 3, -1)
        x = x + self.proj(jnp.maximum(q, k) + v)
        return x + self.out(nnx.relu(self.fc(x)))


def torch_convs():
    """`TorchConvs` in evaluation, with statistics as of some training."""
    torch.manual_seed(0)
    model = TorchConvs()
    for _ in range(3):
        model(torch.from_numpy(IMAGES))
    return model.eval()
