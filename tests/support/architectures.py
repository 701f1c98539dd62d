"""Networks that people have, small, as torch and flax modules with the same names: written from their descriptions."""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn
from torch.nn import functional as F

import qjax

room = qjax.reproducible
LEAST = torch.finfo(torch.float32).min
DIM, HEADS = 8, 2


def heads(x, count):
    """(batch, tokens, features) by heads, of both packages."""
    return x.reshape(*x.shape[:-1], count, -1).swapaxes(1, 2)


def together(x):
    """The inverse of `heads`."""
    x = x.swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


def number(value):
    return jnp.float32(value)


class TorchConv1D(nn.Module):
    """GPT-2's linear layer, whose weight has the inputs first."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class FlaxConv1D(nnx.Module):
    def __init__(self, outputs, inputs):
        self.weight, self.bias = nnx.Param(jnp.zeros((inputs, outputs))), nnx.Param(jnp.zeros(outputs))

    def __call__(self, x):
        y = room.linear(x.reshape(-1, x.shape[-1]), self.weight[...].T, self.bias[...])
        return y.reshape(*x.shape[:-1], -1)


class TorchGPT2Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn, self.proj = TorchConv1D(3 * DIM, DIM), TorchConv1D(DIM, DIM)
        self.fc, self.out = TorchConv1D(2 * DIM, DIM), TorchConv1D(DIM, 2 * DIM)
        self.register_buffer("mask", torch.ones(16, 16, dtype=torch.bool).tril()[None, None], persistent=False)

    def forward(self, x):
        q, k, v = (heads(one, HEADS) for one in self.attn(self.ln_1(x)).split(DIM, dim=2))
        w = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], v.size(-1) ** 0.5)
        t = w.size(-1)
        w = torch.where(self.mask[:, :, :t, :t], w, torch.full([], LEAST))
        x = x + self.proj(together(nn.functional.softmax(w, dim=-1) @ v))
        y = self.fc(self.ln_2(x))
        y = 0.5 * y * (1.0 + torch.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.out(y)


class FlaxGPT2Block(nnx.Module):
    def __init__(self):
        self.ln_1, self.ln_2 = (nnx.LayerNorm(DIM, epsilon=1e-5, rngs=nnx.Rngs(0)) for _ in range(2))
        self.attn, self.proj = FlaxConv1D(3 * DIM, DIM), FlaxConv1D(DIM, DIM)
        self.fc, self.out = FlaxConv1D(2 * DIM, DIM), FlaxConv1D(DIM, 2 * DIM)

    def __call__(self, x):
        q, k, v = (heads(one, HEADS) for one in room.chunk(self.attn(self.ln_1(x)), 3))
        w = room.divide(room.matmul(q, k.swapaxes(-1, -2)), number(v.shape[-1] ** 0.5))
        w = room.where(jnp.tri(w.shape[-1], dtype=bool)[None, None], w, LEAST)
        x = room.add(x, self.proj(together(room.matmul(room.softmax(w), v))))
        y = self.fc(self.ln_2(x))
        half = room.multiply(y, number(0.5))
        cube = room.multiply(room.pow(y, number(3)), number(0.044715))
        inner = room.multiply(room.add(y, cube), number((2 / np.pi) ** 0.5))
        y = room.multiply(half, room.add(room.tanh(inner), number(1)))
        return room.add(x, self.out(y))


class TorchGPT2(nn.Module):
    """Token and position tables, a block, and the token table once more."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, DIM), nn.Embedding(16, DIM)
        self.block, self.norm = TorchGPT2Block(), nn.LayerNorm(DIM)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1)) + 0
        x = self.wte(tokens) + self.wpe(positions[None])
        return F.linear(self.norm(self.block(x)), self.wte.weight)


class FlaxGPT2(nnx.Module):
    def __init__(self):
        self.wte, self.wpe = nnx.Embed(11, DIM, rngs=nnx.Rngs(0)), nnx.Embed(16, DIM, rngs=nnx.Rngs(0))
        self.block, self.norm = FlaxGPT2Block(), nnx.LayerNorm(DIM, epsilon=1e-5, rngs=nnx.Rngs(0))

    def __call__(self, tokens):
        positions = jnp.arange(tokens.shape[1])
        x = room.add(self.wte(tokens), self.wpe(positions[None]))
        return room.linear(self.norm(self.block(x)), self.wte.embedding[...])


def rotations(tokens, size):
    """Cosines and sines of rotary positions."""
    angles = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = np.concatenate([angles, angles], -1)
    return np.cos(angles), np.sin(angles)


class TorchRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        x = x.to(torch.float32)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class FlaxRMSNorm(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(jnp.ones(DIM))

    def __call__(self, x):
        variance = room.mean(room.pow(x, number(2)), -1, True)
        y = room.multiply(x, room.rsqrt(room.add(variance, number(1e-6))))
        return room.multiply(self.weight[...], y)


class TorchLlama(nn.Module):
    """Rotary positions, RMS norm, a head of keys for two of queries, SwiGLU."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.after, self.final = nn.Embedding(11, DIM), *(TorchRMSNorm() for _ in range(3))
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, n, bias=False) for n in (DIM, DIM // 2, DIM // 2, DIM))
        self.gate, self.up, self.down = (nn.Linear(m, n, bias=False) for m, n in ((8, 12), (8, 12), (12, 8)))
        self.head = nn.Linear(DIM, 11, bias=False)

    def forward(self, tokens):
        x = self.table(tokens)
        h = self.norm(x)
        q, k, v = heads(self.q(h), 2), heads(self.k(h), 1), heads(self.v(h), 1)
        cos, sin = (torch.from_numpy(one)[None, None] for one in rotations(tokens.shape[1], 4))
        q, k = q * cos + self.rotated(q) * sin, k * cos + self.rotated(k) * sin
        k, v = (one[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for one in (k, v))
        mask = torch.full((tokens.shape[1],) * 2, LEAST).triu(diagonal=1)
        w = torch.matmul(q, k.transpose(2, 3)) * 0.5 + mask[None, None]
        w = F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype)
        x = x + self.o(together(torch.matmul(w, v)))
        h = self.after(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.head(self.final(x))

    @staticmethod
    def rotated(x):
        first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-second, first), dim=-1)


class FlaxLlama(nnx.Module):
    def __init__(self):
        def linear(inputs, outputs):
            return nnx.Linear(inputs, outputs, use_bias=False, rngs=nnx.Rngs(0))

        self.table, self.norm, self.after = nnx.Embed(11, DIM, rngs=nnx.Rngs(0)), FlaxRMSNorm(), FlaxRMSNorm()
        self.final = FlaxRMSNorm()
        self.q, self.k, self.v, self.o = (linear(DIM, n) for n in (DIM, DIM // 2, DIM // 2, DIM))
        self.gate, self.up, self.down = (linear(m, n) for m, n in ((8, 12), (8, 12), (12, 8)))
        self.head = linear(DIM, 11)

    def __call__(self, tokens):
        x = self.table(tokens)
        h = self.norm(x)
        q, k, v = heads(self.q(h), 2), heads(self.k(h), 1), heads(self.v(h), 1)
        cos, sin = (jnp.asarray(one)[None, None] for one in rotations(tokens.shape[1], 4))
        q = room.add(room.multiply(q, cos), room.multiply(self.rotated(q), sin))
        k = room.add(room.multiply(k, cos), room.multiply(self.rotated(k), sin))
        k, v = (
            room.broadcast_to(one[:, :, None], (*one.shape[:2], 2, *one.shape[2:])).reshape(q.shape) for one in (k, v)
        )
        mask = jnp.where(jnp.tri(tokens.shape[1], dtype=bool), 0.0, LEAST)
        scores = room.multiply(room.matmul(q, k.swapaxes(2, 3)), number(0.5))
        w = room.softmax(room.add(scores, mask[None, None]))
        x = room.add(x, self.o(together(room.matmul(w, v))))
        h = self.after(x)
        x = room.add(x, self.down(room.multiply(room.silu(self.gate(h)), self.up(h))))
        return self.head(self.final(x))

    @staticmethod
    def rotated(x):
        half = x.shape[-1] // 2
        first, second = room.part(x, np.index_exp[..., :half]), room.part(x, np.index_exp[..., half:])
        return jnp.concatenate((-second, first), -1)


class TorchViT(nn.Module):
    """Patches, a class token, positions, a block with GELU, and the class token's logits."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm, self.after = nn.Conv2d(3, DIM, 4, 4), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, DIM)), nn.Parameter(torch.zeros(1, 5, DIM))
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.fc, self.out, self.head = nn.Linear(DIM, 16), nn.Linear(16, DIM), nn.Linear(DIM, 5)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        h = self.norm(x)
        q, k, v = (heads(layer(h), HEADS) for layer in (self.q, self.k, self.v))
        x = x + self.o(together(F.scaled_dot_product_attention(q, k, v)))
        x = x + self.out(F.gelu(self.fc(self.after(x))))
        return self.head(x[:, 0])


class FlaxViT(nnx.Module):
    def __init__(self):
        def linear(inputs, outputs):
            return nnx.Linear(inputs, outputs, rngs=nnx.Rngs(0))

        self.patches = nnx.Conv(3, DIM, (4, 4), strides=4, padding="VALID", rngs=nnx.Rngs(0))
        self.norm, self.after = (nnx.LayerNorm(DIM, epsilon=1e-5, rngs=nnx.Rngs(0)) for _ in range(2))
        self.token, self.positions = nnx.Param(jnp.zeros((1, 1, DIM))), nnx.Param(jnp.zeros((1, 5, DIM)))
        self.q, self.k, self.v, self.o = (linear(DIM, DIM) for _ in range(4))
        self.fc, self.out, self.head = linear(DIM, 16), linear(16, DIM), linear(DIM, 5)

    def __call__(self, images):
        x = self.patches(jnp.moveaxis(images, 1, -1))
        x = x.reshape(x.shape[0], -1, DIM)
        token = room.broadcast_to(self.token[...], (x.shape[0], 1, DIM))
        x = room.add(jnp.concatenate([token, x], 1), self.positions[...])
        h = self.norm(x)
        q, k, v = (heads(layer(h), HEADS) for layer in (self.q, self.k, self.v))
        x = room.add(x, self.o(together(room.scaled_dot_product_attention(q, k, v))))
        x = room.add(x, self.out(room.gelu(self.fc(self.after(x)))))
        return self.head(room.part(x, np.index_exp[:, 0]))


class TorchBert(nn.Module):
    """Three tables, of which one has padding; masked attention, norms after sums, a pooler."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(11, DIM, 0), nn.Embedding(8, DIM), nn.Embedding(2, DIM)
        self.norm, self.after, self.last = (nn.LayerNorm(DIM, eps=1e-12) for _ in range(3))
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.fc, self.out, self.pool, self.head = (nn.Linear(m, n) for m, n in ((8, 16), (16, 8), (8, 8), (8, 3)))

    def forward(self, tokens):
        mask = (1.0 - (tokens != 0)[:, None, None, :].to(torch.float32)) * LEAST
        places = torch.arange(tokens.shape[1]).expand(1, -1)
        x = self.words(tokens) + self.kinds(torch.zeros_like(tokens)) + self.places(places)
        x = self.norm(x)
        q, k, v = (heads(layer(x), HEADS) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.after(self.o(together(y)) + x)
        x = self.last(self.out(F.gelu(self.fc(x))) + x)
        return self.head(torch.tanh(self.pool(x[:, 0])))


class FlaxBert(nnx.Module):
    def __init__(self):
        self.words, self.places, self.kinds = (nnx.Embed(n, DIM, rngs=nnx.Rngs(0)) for n in (11, 8, 2))
        self.norm, self.after, self.last = (nnx.LayerNorm(DIM, epsilon=1e-12, rngs=nnx.Rngs(0)) for _ in range(3))
        self.q, self.k, self.v, self.o = (nnx.Linear(DIM, DIM, rngs=nnx.Rngs(0)) for _ in range(4))
        sizes = ((8, 16), (16, 8), (8, 8), (8, 3))
        self.fc, self.out, self.pool, self.head = (nnx.Linear(m, n, rngs=nnx.Rngs(0)) for m, n in sizes)

    def __call__(self, tokens):
        counted = jnp.where((tokens != 0)[:, None, None, :], 0.0, 1.0)
        mask = room.multiply(counted, number(LEAST))
        words = room.embedding(tokens, self.words.embedding[...], padding_idx=0)
        x = room.add(words, self.kinds(jnp.zeros_like(tokens)))
        x = self.norm(room.add(x, self.places(jnp.arange(tokens.shape[1])[None])))
        q, k, v = (heads(layer(x), HEADS) for layer in (self.q, self.k, self.v))
        y = room.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.after(room.add(self.o(together(y)), x))
        x = self.last(room.add(self.out(room.gelu(self.fc(x))), x))
        return self.head(room.tanh(self.pool(room.part(x, np.index_exp[:, 0]))))


class FlaxPReLU(nnx.Module):
    """A slope for each channel of (batch, channels, height, width)."""

    def __init__(self, channels):
        self.weight = nnx.Param(jnp.full(channels, 0.25))

    def __call__(self, x):
        return room.prelu(x, self.weight[...].reshape(-1, 1, 1))


class TorchMTCNN(nn.Module):
    """The first stage of face detection: slopes by channel, pools whose last windows are cut."""

    def __init__(self):
        super().__init__()
        self.conv1, self.slope1, self.pool = nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.slope2, self.head = nn.Conv2d(4, 6, 3), nn.PReLU(6), nn.Conv2d(6, 2, 1)

    def forward(self, x):
        x = self.slope2(self.conv2(self.pool(self.slope1(self.conv1(x)))))
        return self.head(x).mean((2, 3))


class FlaxMTCNN(nnx.Module):
    def __init__(self):
        def conv(inputs, outputs, size):
            return nnx.Conv(inputs, outputs, (size, size), padding="VALID", rngs=nnx.Rngs(0))

        self.conv1, self.slope1, self.conv2, self.slope2 = conv(3, 4, 3), FlaxPReLU(4), conv(4, 6, 3), FlaxPReLU(6)
        self.head = conv(6, 2, 1)

    def __call__(self, x):
        x = self.slope1(first(self.conv1(last(x))))
        x = room.max_pool2d(x, 2, 2, ceil_mode=True)
        x = self.slope2(first(self.conv2(last(x))))
        return room.mean(first(self.head(last(x))), (2, 3))


def last(x):
    return jnp.moveaxis(x, 1, -1)


def first(x):
    return jnp.moveaxis(x, -1, 1)


class TorchCrepe(nn.Module):
    """Pitch tracking: convolutions of frames that F.pad keeps as long, batch norm, pools, logits of pitches."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 4, (6, 1), (2, 1)), nn.BatchNorm2d(4, eps=0.001)
        self.conv2, self.norm2 = nn.Conv2d(4, 3, (4, 1), (1, 1)), nn.BatchNorm2d(3, eps=0.001)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = x[:, None, :, None]
        x = F.max_pool2d(self.norm1(F.relu(self.conv1(F.pad(x, (0, 0, 2, 2))))), (2, 1), (2, 1))
        x = F.max_pool2d(self.norm2(F.relu(self.conv2(F.pad(x, (0, 0, 1, 2))))), (2, 1), (2, 1))
        return self.head(x.permute(0, 2, 1, 3).reshape(-1, 12))


class FlaxCrepe(nnx.Module):
    def __init__(self):
        self.conv1 = nnx.Conv(1, 4, (6, 1), strides=(2, 1), padding="SAME", rngs=nnx.Rngs(0))
        self.conv2 = nnx.Conv(4, 3, (4, 1), padding="SAME", rngs=nnx.Rngs(0))
        self.norm1, self.norm2 = (nnx.BatchNorm(n, epsilon=0.001, momentum=0.9, rngs=nnx.Rngs(0)) for n in (4, 3))
        self.head = nnx.Linear(12, 5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        x = self.norm1(room.relu(self.conv1(x[:, :, None, None])))
        x = last(room.max_pool2d(first(x), (2, 1), (2, 1)))
        x = self.norm2(room.relu(self.conv2(x)))
        x = room.max_pool2d(first(x), (2, 1), (2, 1))
        return self.head(x.transpose(0, 2, 1, 3).reshape(-1, 12))


_RNG = np.random.default_rng(31)
_TOKENS = _RNG.integers(1, 11, (3, 6))
_PADDED = np.where(np.arange(6) < np.array([[6], [4], [5]]), _TOKENS, 0)


def _images(*shape):
    return _RNG.normal(size=shape).astype(np.float32)


# Torch's class, flax's, an input, and the classes to learn.
ARCHITECTURES = {
    "gpt2": (TorchGPT2, FlaxGPT2, _TOKENS, _RNG.integers(0, 11, (3, 6))),
    "llama": (TorchLlama, FlaxLlama, _TOKENS, _RNG.integers(0, 11, (3, 6))),
    "vit": (TorchViT, FlaxViT, _images(2, 3, 8, 8), np.array([1, 3])),
    "bert": (TorchBert, FlaxBert, _PADDED, np.array([0, 2, 1])),
    "mtcnn": (TorchMTCNN, FlaxMTCNN, _images(2, 3, 11, 12), np.array([1, 0])),
    "crepe": (TorchCrepe, FlaxCrepe, _images(3, 32), np.array([0, 4, 2])),
}
