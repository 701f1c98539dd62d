"""A step of a layer of the examples, forward and backward: with exact sums, and the framework's own in float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import qjax.nnx
import qtorch
from benchmarks.support.timing import Call

IMAGES, CHANNELS, TAPS = (16, 16, 32, 32), 16, 3  # of PreResNet20's first blocks
TEXTS, WIDTH, HEADS = (16, 64), 64, 4  # of the GPT
_E4M3 = "product(e4m3fn,e4m3fn)"
_LAYER = {"operands": ("e4m3fn", "e4m3fn"), "grad_input": _E4M3, "grad_weight": _E4M3}
_MATRICES = {"operands": ("e4m3fn", "e4m3fn"), "grad_a": _E4M3, "grad_b": _E4M3}
ATTENTION: dict[str, Any] = {"linear": _LAYER, "scores": _MATRICES, "output": _MATRICES}

MACS = {
    "convolution": 3 * CHANNELS * TAPS**2 * int(np.prod(IMAGES)),
    "attention": 3 * 2 * TEXTS[0] * TEXTS[1] * WIDTH * (2 * WIDTH + TEXTS[1]),
}


def inputs(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = IMAGES if name == "convolution" else (*TEXTS, WIDTH)
    return rng.standard_normal(shape).astype(np.float32)


def torch_step(name: str) -> tuple[Call, Call]:
    """The step by qtorch and by torch, of the inputs and all parameters."""
    x = torch.from_numpy(inputs(name)).requires_grad_()
    if name == "convolution":
        sizes: Any = (CHANNELS, CHANNELS, TAPS)
        ours: Any = qtorch.linalg.Conv2d(*sizes, padding=TAPS // 2, bias=False, **_LAYER)
        theirs: Any = torch.nn.Conv2d(*sizes, padding=TAPS // 2, bias=False)
    else:
        attention = [
            qtorch.linalg.MultiheadAttention(WIDTH, HEADS, bias=False, **ATTENTION),
            torch.nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True),
        ]
        ours, theirs = (_attend(layer) for layer in attention)
    return _torch_call(ours, x), _torch_call(theirs, x)


def _attend(layer: Any) -> torch.nn.Module:
    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x, x, need_weights=False)[0]

    return Attend()


def _torch_call(layer: torch.nn.Module, x: torch.Tensor) -> Call:
    tensors = (x, *layer.parameters())

    def call() -> Any:
        y = layer(x)
        return torch.autograd.grad(y, tensors, y.detach())

    return call


def jax_step(name: str) -> tuple[Call, Call]:
    """The step by qjax and by flax."""
    rngs = nnx.Rngs(0)
    if name == "convolution":
        options: Any = {"kernel_size": (TAPS, TAPS), "padding": TAPS // 2, "use_bias": False, "rngs": rngs}
        ours: Any = qjax.nnx.Conv(CHANNELS, CHANNELS, **options, **_LAYER)
        theirs: Any = nnx.Conv(CHANNELS, CHANNELS, **options)
        x = jnp.moveaxis(jnp.asarray(inputs(name)), 1, -1)
    else:
        ours = qjax.nnx.MultiheadAttention(HEADS, WIDTH, use_bias=False, **ATTENTION, rngs=rngs)
        theirs = nnx.MultiHeadAttention(HEADS, WIDTH, use_bias=False, decode=False, rngs=rngs)
        x = jnp.asarray(inputs(name))
    return _jax_call(ours, x), _jax_call(theirs, x)


def _jax_call(layer: Any, x: jax.Array) -> Call:
    graph, state = nnx.split(layer)

    @jax.jit
    def step(state: Any, x: jax.Array) -> Any:
        y, pull = jax.vjp(lambda state, x: nnx.merge(graph, state)(x), state, x)
        return pull(y)

    return lambda: jax.block_until_ready(step(state, x))


STEPS = {"torch": torch_step, "jax": jax_step}
