"""What tests of defined float32 functions share: functions with arguments, and their gradients in each package."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

import qjax
import qtorch
from qcore.reproducible.elementary import ELEMENTARY
from qcore.reproducible.functions import Arrays
from qcore.reproducible.operations import Names


def numbers(rng, *shape):
    """Of all magnitudes, but mostly of ordinary ones."""
    x = rng.normal(size=shape) * 2.0 ** rng.choice([-130, -60, -8, 0, 0, 0, 0, 3], shape)
    return x.astype(np.float32)


def every_kind(rng, count):
    """Random bits, NaN, infinities, zeros, subnormals and their neighbours among them, and ordinary numbers."""
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 2.0**-126, -(2.0**-126), 1.0, -1.0])
    special = np.concatenate([special, np.nextafter(special[-4:], np.float32(np.inf)), np.float32([0.5, 88.8, -104])])
    random = rng.integers(0, 2**32, (count - len(special)) // 2, np.uint64).astype(np.uint32).view(np.float32)
    ordinary = numbers(rng, count - len(special) - len(random))
    return np.concatenate([special, np.uint32([0xFFC00001, 0x7F800001]).view(np.float32), random, ordinary])[:count]


def hard_quotients(rng, count):
    """(a, b) whose quotients lie as close to the middle of two float32 numbers as any do.

    The middle is an odd q of 25 bits. b q = 1 or -1 modulo 2^24, so that a / b misses q by 1 / b where a is b q / 2^24,
    rounded.
    """
    b = rng.integers(2**23, 2**24, count) | 1
    sign = rng.choice([-1, 1], count)
    inverse = np.array([pow(int(one), -1, 2**24) for one in b])
    q = sign * inverse % 2**24 + 2**24
    a = (b * q - sign) >> 24
    fits = a < 2**24
    return a[fits].astype(np.float32), b[fits].astype(np.float32)


def hard_powers():
    """(a, b) whose powers are the very middle of two float32 numbers: odd integers of 25 bits."""
    for b in (2, 3, 5):
        low, high = round(2 ** (24 / b)) + 1, int(2 ** (25 / b))
        a = np.arange(low | 1, high + 1, 2)
        yield a.astype(np.float32), np.full(len(a), b, np.float32)


def all_cases():
    """(name, function of a package's room and arrays, arrays)."""
    rng = np.random.default_rng(5)
    x, pairs = every_kind(rng, 3000), every_kind(rng, 400)
    for name in ELEMENTARY:
        if name == "gelu_tanh":
            yield name, lambda room, x: room.gelu(x, "tanh"), (x,)
        else:
            yield name, lambda room, x, name=name: getattr(room, name)(x), (x,)
    for name in ("add", "subtract", "multiply", "divide", "pow"):
        special = pairs[:20, None], pairs[None, :20]
        yield name, lambda room, a, b, name=name: getattr(room, name)(a, b), (rng.permutation(x), x)
        yield f"{name} of special numbers", lambda room, a, b, name=name: getattr(room, name)(a, b), special
    yield "divide next to middles", lambda room, a, b: room.divide(a, b), hard_quotients(rng, 2000)
    powers = [np.concatenate(one) for one in zip(*hard_powers(), strict=True)]
    yield "pow at middles", lambda room, a, b: room.pow(a, b), powers
    y = numbers(rng, 5, 7, 13)
    hard = y.copy()
    hard[0, 0, 0], hard[1, 1, 1], hard[2, :, 2], hard[3, :3, 3] = np.nan, np.inf, -np.inf, 1e-39
    for name in ("sum", "mean", "var", "norm", "max", "logsumexp"):
        yield name, lambda room, x, name=name: getattr(room, name)(x, (0, -1)), (y,)
        yield f"{name} of special numbers", lambda room, x, name=name: getattr(room, name)(x, 1, True), (hard,)
    for name in ("softmax", "log_softmax"):
        yield name, lambda room, x, name=name: getattr(room, name)(x, 1), (hard,)
    target = rng.integers(-1, 13, (5, 7))
    yield "cross_entropy", lambda room, x, target: room.cross_entropy(x, target), (y, target)
    yield "mse", lambda room, x, target: room.mse(x, target), (y, numbers(rng, 5, 7, 13))
    weight, bias = numbers(rng, 7, 13), numbers(rng, 7, 13)
    yield "layer_norm", lambda room, *a: room.layer_norm(*a, axis=(1, 2)), (y, weight, bias)
    yield "layer_norm without parameters", lambda room, x: room.layer_norm(x), (y,)
    yield "rms_norm", lambda room, *a: room.rms_norm(*a, eps=1e-3), (y, weight[0])
    weight, bias = numbers(rng, 7), numbers(rng, 7)
    yield "batch_norm", lambda room, *a: room.batch_norm(*a)[0], (y, weight, bias)
    yield "statistics", lambda room, *a: room.batch_norm(*a)[2], (y, weight, bias)
    yield "normalize", lambda room, x, w, b: room.normalize(x, b, w * w, w, b), (y, weight, bias)
    weight, indices = numbers(rng, 6, 3), rng.integers(0, 5, (4, 9))  # of row 5 there is no use
    yield "embedding", lambda room, weight, indices: room.embedding(indices, weight), (weight, indices)
    images = hard[:, :, :8].reshape(5, 7, 8)
    images[4, 2:4, 2:4], images[4, 4, 4] = 1.5, 1.5  # equal ones in a window
    for name in ("max_pool2d", "avg_pool2d"):
        yield name, lambda room, x, name=name: getattr(room, name)(x, (3, 2), (1, 2), 1), (images,)
    yield "dropout", lambda room, x: room.dropout(x, 0.3, 7), (hard,)
    yield "settle", lambda room, x: room.settle(x), (hard,)


CASES = list(all_cases())


class Recorder(Arrays):
    """NumPy's functions, which keep what their gradients need."""

    def call(self, law, *arrays, **options):
        result, saved = law.run(Names, arrays, options)
        self.kept = law, saved, options, isinstance(result, tuple)
        return result


def with_gradient(shape, dtype=np.float32):
    """A gradient for a result of a shape."""
    return np.random.default_rng(7).normal(size=shape).astype(dtype)


def by_numpy(function, arrays):
    recorder = Recorder()
    result = function(recorder, *arrays)
    law, saved, options, several = recorder.kept
    gradient = with_gradient(np.shape(result))
    if several:  # batch_norm, of which a case takes one result
        first = with_gradient(law.run(Names, arrays, options)[0][0].shape)
        gradient = (first if np.shape(result) == first.shape else np.zeros_like(first), np.float32(0), np.float32(0))
    return [result, *(g for g in law.gradients(Names, saved, gradient, options) if g is not None)]


def by_torch(function, arrays):
    tensors = [torch.from_numpy(np.array(x)) for x in arrays]
    floats = [x.requires_grad_() for x in tensors if x.dtype is torch.float32]
    result = function(qtorch.reproducible, *tensors)
    gradient = torch.from_numpy(with_gradient(tuple(result.shape)))
    found = torch.autograd.grad(result, floats, gradient, allow_unused=True)
    return [result.detach(), *(g for g in found if g is not None)]


def by_jax(function, arrays):
    arrays = [jnp.asarray(x) for x in arrays]
    floats = [i for i, x in enumerate(arrays) if x.dtype == jnp.float32]

    def of_floats(*given):
        whole = list(arrays)
        for i, x in zip(floats, given, strict=True):
            whole[i] = x
        return function(qjax.reproducible, *whole)

    result, pullback = jax.vjp(of_floats, *(arrays[i] for i in floats))
    return [result, *pullback(jnp.asarray(with_gradient(result.shape)))]
