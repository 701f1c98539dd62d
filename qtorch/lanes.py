"""The law on tensors: `run` is what all three paths execute, eagerly, traced or compiled."""

from __future__ import annotations

import torch

from qcore.carrier import BFLOAT16, FLOAT16, FLOAT32, Carrier
from qcore.law import Block, Grid, Program
from qcore.random import Noise, rounding_words

CARRIERS = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}


def run(
    program: Program, x: torch.Tensor, constants: Grid | Block, axes: tuple[int, ...], noise: Noise | None, large: bool
) -> torch.Tensor:
    """Rounds a tensor of at least one dimension; arguments as in `Program.run` and `rounding_words`."""
    word = None
    if noise is not None:

        def arange(size: int) -> torch.Tensor:
            return torch.arange(size, dtype=torch.int32, device=x.device)

        word = rounding_words(torch, arange, x.shape, noise, large, _settle)
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
