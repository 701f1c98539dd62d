"""Networks that are written once, for PyTorch and for flax (`module_packages`), and what goes into them."""

from typing import NamedTuple

import numpy as np


def between(of):
    """A network between stubs; `rows` are the layers that are fused."""

    class Between(of.Module):
        rows = ()

        def __init__(self):
            super().__init__()
            self.quant, self.dequant = (stub() for stub in of.stubs)
            self.parts()

        def run(self, x):
            return self.dequant(self.network(self.quant(x)))

    return Between


def residual(of):
    """Convolutions of several kinds, sums, products, and linear layers behind them."""

    class Residual(between(of)):
        def parts(self):
            self.first = of.conv2d(3, 8, 3, padding=1)
            self.second = of.conv2d(8, 8, 3, 2, (1, 0), groups=2)
            self.side = of.conv2d(8, 8, 3, 2, (1, 0), bias=False)
            self.sum, self.gate, self.both = (of.FloatFunctional() for _ in range(3))
            self.layers = of.Sequential(of.linear(20, inputs=48), of.linear(5, inputs=20))

        def network(self, x):
            x = of.relu_of_integers(self.first(x))
            x = self.sum.add_relu(self.second(x), self.side(x))
            x = of.flat(self.both.cat([self.gate.mul(x, x), x], of.channels))
            return self.layers(x[:, :48])

    return Residual


def digits(of):
    """`workflow_support.Residual`."""

    class Digits(between(of)):
        rows = ["conv1", "bn1", "relu1"], ["conv2", "bn2"]

        def parts(self):
            self.conv1, self.conv2 = of.conv2d(1, 8, 3, padding=1, bias=False), of.conv2d(8, 8, 3, padding=1)
            self.bn1, self.bn2, self.relu1 = of.BatchNorm(8), of.BatchNorm(8), of.ReLU()
            self.add, self.fc = of.FloatFunctional(), of.linear(10, inputs=128)

        def network(self, x):
            x = self.relu1(self.bn1(self.conv1(x)))
            x = self.add.add_relu(self.bn2(self.conv2(x)), x)
            return self.fc(of.flat(of.max_pool(x, 2)))

    return Digits


def perceptron(of):
    class Perceptron(between(of)):
        def parts(self):
            self.layers = of.Sequential(
                of.linear(32, inputs=64), of.ReLU(), of.linear(32, inputs=32), of.ReLU(), of.linear(10, inputs=32)
            )

        def network(self, x):
            return self.layers(x)

    return Perceptron


def layers(of):
    """Norms, activations, pools and a FloatFunctional."""

    class Layers(between(of)):
        def parts(self):
            self.conv, self.bn, self.act1 = of.conv2d(3, 8, 3, padding=1), of.BatchNorm(8), of.act.ELU(0.7)
            self.group, self.act2, self.instance = of.GroupNorm(2, 8), of.act.Hardswish(), of.InstanceNorm(8)
            self.act3, self.act4, self.clip = of.act.LeakyReLU(0.1), of.act.Sigmoid(), of.act.ReLU6()
            self.mix, self.layer, self.fc = of.FloatFunctional(), of.LayerNorm(8), of.linear(5, inputs=8)
            self.act5, self.act6 = of.act.PReLU(8), of.act.PReLU()

        def network(self, x):
            x = of.max_pool(self.act2(self.group(self.act1(self.bn(self.conv(x))))), 2)
            x = self.clip(self.act3(self.instance(x)))
            x = self.layer(of.mean(of.avg_pool(self.mix.mul_relu(x, self.act4(x)), 2)))
            return self.act6(self.fc(self.act5(x)))

    return Layers


def attention(of):
    """Products by FloatFunctional, and a softmax between them."""

    class Attention(between(of)):
        def parts(self):
            self.qkv = of.linear(24, inputs=8)
            self.scores, self.mixed = of.FloatFunctional(), of.FloatFunctional()

        def network(self, x):
            q, k, v = of.chunk(self.qkv(x), 3, -1)
            return self.mixed.matmul(of.softmax(self.scores.einsum("bik,bjk->bij", q, k)), v)

    return Attention


def paddings(of):
    """Margins as flax has them: so many that a stride of 1 keeps the size."""

    class Paddings(between(of)):
        rows = (["conv1", "bn1", "relu1"],)

        def parts(self):
            self.conv1, self.bn1 = of.conv2d(3, 8, 3, padding=1, mode="reflect", bias=False), of.BatchNorm(8)
            self.relu1 = of.ReLU()
            self.conv2 = of.conv2d(8, 6, (5, 3), (2, 1), (2, 2), 2, dilation=(1, 2), mode="circular")
            self.conv3 = of.conv2d(6, 6, 3, padding=1, groups=6, mode="circular")

        def network(self, x):
            return self.conv3(self.conv2(self.relu1(self.bn1(self.conv1(x)))))

    return Paddings


def shuffle_net(of):
    """Two units of ShuffleNet v2: one half of the channels passes, the other goes through three convolutions."""

    class ShuffleNet(between(of)):
        rows = tuple([f"{unit}.{i}" for i in row] for unit in ("a", "b") for row in ((0, 1, 2), (3, 4), (5, 6, 7)))

        def parts(self):
            self.stem, self.fc = of.conv2d(4, 8), of.linear(5, inputs=8)
            for name in ("a", "b"):
                deep = of.conv2d(4, 4, 3, padding=1, groups=4), of.BatchNorm(4)
                last = of.conv2d(4, 4), of.BatchNorm(4), of.ReLU()
                setattr(self, name, of.Sequential(of.conv2d(4, 4), of.BatchNorm(4), of.ReLU(), *deep, *last))
                setattr(self, f"{name}_cat", of.FloatFunctional())

        def network(self, x):
            x = self.stem(x)
            for branch, joined in ((self.a, self.a_cat), (self.b, self.b_cat)):
                left, right = of.chunk(x, 2, of.channels)
                x = of.channel_shuffle(joined.cat([left, branch(right)], of.channels), 2)
            return self.fc(of.mean(x))

    return ShuffleNet


def u_net(of):
    """Down, up by a transposed convolution with a batch norm, and the skipped images beside what comes up."""

    class UNet(between(of)):
        rows = ["down.0", "down.1", "down.2"], ["deep.0", "deep.1", "deep.2"], ["up", "norm"]

        def parts(self):
            self.down = of.Sequential(of.conv2d(4, 6, 3, padding=1), of.BatchNorm(6), of.ReLU())
            self.deep = of.Sequential(of.conv2d(6, 8, 3, padding=1), of.BatchNorm(8), of.ReLU())
            self.up, self.norm, self.cat = of.up2d(8, 6), of.BatchNorm(6), of.FloatFunctional()
            self.act, self.head = of.act.PReLU(12), of.conv2d(12, 2)

        def network(self, x):
            skip = self.down(x)
            x = self.norm(self.up(self.deep(of.max_pool(skip, 2))))
            return self.head(self.act(self.cat.cat([of.pad_rows(skip), of.pad_rows(x)], of.channels)))

    return UNet


class Network(NamedTuple):
    """A network, the shape of one of its inputs, and what is added to random numbers."""

    make: object
    shape: tuple
    shift: float = 0.0

    def inputs(self, count, seed=0):
        drawn = np.random.default_rng(seed).normal(self.shift, size=(count, *self.shape))
        return drawn.astype(np.float32)


NETWORKS = {
    "residual": Network(residual, (3, 9, 8)),
    "digits": Network(digits, (1, 8, 8)),
    "perceptron": Network(perceptron, (64,)),
    "layers": Network(layers, (3, 12, 12)),
    "attention": Network(attention, (6, 8)),
    "paddings": Network(paddings, (3, 9, 8), 3.0),  # numbers that are far from 0, so that 0 around them is not the same
    "ShuffleNet": Network(shuffle_net, (4, 12, 12)),
    "U-Net": Network(u_net, (4, 12, 12)),
}
