"""Networks in PyTorch and flax with the same names, in which nothing was made for quantization.

What stands between their layers has the same bits in both: sums of two, maxima, and functions that move numbers.
"""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from module_packages import Flax, Torch
from torch import nn
from torch.nn import functional as F

IMAGES = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)


def convs(of):
    """Blocks of MobileNetV2, GoogLeNet, ShuffleNet and U-Net, one after the other."""

    def block(inputs, outputs, size=1, groups=1, act=of.ReLU):
        conv = of.conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
        return [conv, of.BatchNorm(outputs), *([act()] if act else [])]

    class Convs(of.Module):
        def __init__(self):
            super().__init__()
            self.stem = of.Sequential(*block(3, 4, 3))
            wide = block(4, 8, act=of.act.ReLU6), block(8, 8, 3, 8, of.act.ReLU6), block(8, 4, act=None)
            self.mobile = of.Sequential(*wide[0], *wide[1], *wide[2])
            self.first = of.Sequential(*block(4, 4, 3))
            self.one, self.other, self.aux = of.conv2d(4, 4), of.conv2d(4, 4, 2), of.linear(3)
            self.branch = of.Sequential(*block(4, 4, 3, 4), *block(4, 4))
            self.down, self.up, self.norm = of.Sequential(*block(8, 6, 3)), of.up2d(6, 4), of.BatchNorm(4)
            self.head, self.fc = of.conv2d(12, 6), of.linear(5, inputs=6)

        def run(self, x):
            x = self.stem(x)
            x = self.first(x + self.mobile(x))
            if of is Torch and self.training:
                self.aux(of.largest(x))
            y = self.other(of.max_pool(of.pad_end(x), 2, 1))
            x = of.window(of.cat([of.window(self.one(x), slice(7)), y], of.channels), slice(1, None))
            left, right = of.halves(x)
            x = of.channel_shuffle(of.cat([left, self.branch(right)], of.channels), 2)
            x = of.cat([x, self.norm(self.up(self.down(of.window(x, slice(None, None, 2)))))], of.channels)
            return self.fc(of.largest(self.head(x)))

    return Convs


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
    """`convs` of PyTorch in evaluation, with statistics as of some training."""
    torch.manual_seed(0)
    model = convs(Torch)()
    for _ in range(3):
        model(torch.from_numpy(IMAGES))
    return model.eval()


FlaxConvs = convs(Flax)
