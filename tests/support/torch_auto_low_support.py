"""What the tests of qtorch.recipes share: a network, a layer of any output, what they hold and compute."""

import collections

import torch
from torch import nn

import qtorch
from qcore import FixedPoint, FloatingPoint
from qtorch import recipes
from qtorch.recipes import lower, sequential_lower

F = FloatingPoint(5, 2)
FIXED = FixedPoint(6, 3)
BOTH = ("nearest", "nearest")
WAYS = [lower, sequential_lower]


def rounded(x):
    return qtorch.quantize(x, F, "nearest")


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        collections.OrderedDict(
            conv=nn.Conv2d(1, 4, 3),
            bn=nn.BatchNorm2d(4),
            act=nn.GELU(),
            flat=nn.Flatten(),
            fc=nn.Linear(4 * 6 * 6, 5),
        )
    )


IMAGE = torch.randn(2, 1, 8, 8)


def value_and_gradients(model, x):
    model.zero_grad()
    y = model(x)
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape))
    return [y.detach(), *(p.grad.clone() for p in model.parameters())]


Pair = collections.namedtuple("Pair", "value index")


class Odd(nn.Module):
    """Outputs of many kinds."""

    def forward(self, x, kind="tuple"):
        integers = torch.arange(3)
        return {
            "tuple": (x, integers, None),
            "list": [x, [x, 7]],
            "dict": {"a": x, "b": integers},
            "namedtuple": Pair(x, integers),
            "none": None,
        }[kind]


def quantizers_of(model):
    pairs = [m[1] for m in model.modules() if isinstance(m, recipes.RoundedPair)]
    hooks = [
        hook.quantizer for m in model.modules() for hook in m._forward_hooks.values() if hasattr(hook, "quantizer")
    ]
    return pairs + hooks
