"""Quantized models in NumPy's integers, from a state_dict alone; it imports nothing of the packages under test."""

import numpy as np

F32 = np.float32


def rounded(steps, zero_point, low, high):
    return np.clip(np.rint(steps) + F32(zero_point), low, high).astype(np.int64)


class Layers:
    """Layers by their names in a state_dict of arrays; results are integers from `low` to `high`."""

    def __init__(self, state, low=0, high=255):
        self.state, self.low, self.high = state, low, high

    def scale(self, name):
        return F32(self.state[f"{name}.scale"]), int(self.state[f"{name}.zero_point"])

    def weight(self, name):
        """The differences, and the scale or scales."""
        prefix = f"{name}.weight." if name else "weight."
        q, zero = (self.state[prefix + part].astype(np.int64) for part in ("int_repr", "zero_point"))
        return q - zero.reshape(-1, *(1,) * (q.ndim - 1)) if zero.ndim else q - zero, self.state[prefix + "scale"]

    def quantize(self, name, x):
        scale, zero = self.scale(name)
        return rounded(x * (F32(1) / scale), zero, self.low, self.high)

    def dequantize(self, name, q):
        scale, zero = self.scale(name)
        return (q - zero).astype(F32) * scale

    def requantize(self, name, sums, source, relu):
        """Channels lie along the last axis."""
        (so, zo), product = self.scale(name), self.scale(source)[0] * self.weight(name)[1]
        total = sums.astype(F32)
        if (bias := self.state.get(f"{name}.bias")) is not None:
            total = total + bias / product
        q = rounded(total * (product / so), zo, self.low, self.high)
        return np.maximum(q, zo) if relu else q

    def linear(self, name, q, source, relu=False):
        return self.requantize(name, (q - self.scale(source)[1]) @ self.weight(name)[0].T, source, relu)

    def conv2d(self, name, q, source, relu=False, padding=0, mode=None, groups=1):
        """`mode` is NumPy's; None puts zero points around images."""
        zero, (w, _) = self.scale(source)[1], self.weight(name)
        widths = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        x = np.pad(q - zero, widths, mode or "constant")
        height, width = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
        parts = []
        for images, filters in zip(np.split(x, groups, 1), np.split(w, groups), strict=True):
            sums = np.zeros((len(x), height, width, len(filters)), np.int64)
            for i, j in np.ndindex(*w.shape[2:]):
                window = images[:, :, i : i + height, j : j + width]
                sums += np.einsum("nchw,oc->nhwo", window, filters[:, :, i, j])
            parts.append(sums)
        return np.moveaxis(self.requantize(name, np.concatenate(parts, -1), source, relu), -1, 1)

    def of_numbers(self, name, x, relu=False):
        q = self.quantize(name, x)
        return np.maximum(q, self.scale(name)[1]) if relu else q

    def add(self, name, a, b, sources, relu=False):
        return self.of_numbers(name, self.dequantize(sources[0], a) + self.dequantize(sources[1], b), relu)

    def mul(self, name, a, b, sources):
        (sa, za), (sb, zb), (so, zo) = (self.scale(one) for one in (*sources, name))
        ratio = (sa * sb) * (F32(1) / so)
        return rounded(((a - za) * (b - zb)).astype(F32) * ratio, zo, self.low, self.high)

    def cat(self, name, arrays, sources):
        numbers = [self.dequantize(source, q) for source, q in zip(sources, arrays, strict=True)]
        return np.concatenate([self.of_numbers(name, x) for x in numbers], 1)

    def dynamic(self, name, x):
        """The product with what is quantized by its own range to 0..127."""
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        scale = (high - low) / 127 or 0.1
        assert scale > 6.2e-5, "the oracle knows no smaller ranges"
        below, above = low / scale, high / scale
        offset = -below if -abs(below) < 127 - abs(above) else 127 - above
        zero, scale = int(np.clip(np.rint(offset), 0, 127)), F32(scale)
        q = rounded(x * (F32(1) / scale), zero, 0, 127)
        w, of_weight = self.weight(name)
        y = ((q - zero) @ w.T).astype(F32) * (scale * of_weight)
        return y + self.state[f"{name}.bias"]

    def lstm(self, name, x):
        """One layer and direction; x has shape (steps, batch, features)."""
        of_input = self.dynamic(f"{name}.ih.0", x)
        size = of_input.shape[-1] // 4
        hidden = cell = np.zeros((x.shape[1], size), F32)
        found = []
        for step in of_input:
            i, f, g, o = np.split(step + self.dynamic(f"{name}.hh.0", hidden), 4, -1)
            cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
            hidden = sigmoid(o) * tanh(cell)
            found.append(hidden)
        return np.stack(found)


def sigmoid(x):
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(F32)


def tanh(x):
    return np.tanh(x.astype(np.float64)).astype(F32)


def max_pool2d(q, size):
    batch, channels, height, width = q.shape
    q = q[:, :, : height // size * size, : width // size * size]
    return q.reshape(batch, channels, height // size, size, width // size, size).max((3, 5))
