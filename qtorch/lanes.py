"""The law on tensors: `run` is what all three paths execute, eagerly, traced or compiled."""

from __future__ import annotations

from typing import NamedTuple

import torch

from qcore.carrier import BFLOAT16, FLOAT16, FLOAT32, Carrier
from qcore.law import Block, Grid, Program
from qcore.random import element_words

CARRIERS = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}


class Noise(NamedTuple):
    """Where an array's random words come from.

    Attributes:
        key: int32 tensor of two words.
        window: int32 tensor of three words: the first element's 64-bit index (high, low), and a mask that keeps
            the leading `random_bits` bits of each random word.
    """

    key: torch.Tensor
    window: torch.Tensor


def run(
    program: Program, x: torch.Tensor, constants: Grid | Block, axes: tuple[int, ...], noise: Noise | None, large: bool
) -> torch.Tensor:
    """Rounds a tensor of at least one dimension; arguments as in `Program.run` and `element_words`."""
    word = None
    if noise is not None:

        def arange(size: int) -> torch.Tensor:
            return torch.arange(size, dtype=torch.int32, device=x.device)

        key = (noise.key[0], noise.key[1])
        start = (noise.window[0], noise.window[1])
        word = element_words(torch, arange, x.shape, key, start, large, _settle) & noise.window[2]
    bits = program.run(torch, to_lanes(x, program.carrier), constants, axes, word, _settle)
    return from_lanes(bits, program.carrier, x.dtype)


def _settle(lanes: torch.Tensor) -> torch.Tensor:
    """The same lanes; Inductor keeps what leads to a strided view, and otherwise repeats it at each use."""
    return lanes.as_strided(lanes.shape, lanes.stride()) if torch.compiler.is_compiling() else lanes


def to_lanes(x: torch.Tensor, carrier: Carrier) -> torch.Tensor:
    if carrier.padding == 0:
        return x.view(torch.int32)
    return x.view(torch.int16).to(torch.int32) << carrier.padding


def from_lanes(bits: torch.Tensor, carrier: Carrier, dtype: torch.dtype) -> torch.Tensor:
    if carrier.padding == 0:
        return bits.view(dtype)
    return (bits >> carrier.padding).to(torch.int16).view(dtype)
