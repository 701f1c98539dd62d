"""The law on tensors, operation by operation: run eagerly, or traced into a compiler's program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from qcore.formats.foreign import BytesNumber
from qcore.law.carrier import CARRIERS, Carrier
from qcore.law.program import Decoding, Program
from qcore.law.rounding import rounds_distance
from qcore.law.tiles import Tiles
from qcore.random.threefry import Noise, rounding_words
from qtorch._namespace import FLOATS, Names, reinterpreted

DTYPES = {getattr(torch, name): carrier for name, carrier in CARRIERS.items()}
STORED = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}  # the dtype of codes, by their storage in bits
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def run(program: Program, x: torch.Tensor, constants: Sequence[Any], blocks: Tiles, noise: Noise | None) -> Any:
    """Rounds a tensor of at least one dimension; arguments as for `Program.run` and `rounding_words`.

    For blocks, codes are followed by the codes of the scales, and for NVFP4 by the scale of the tensor.
    """
    word = None
    if noise is not None:
        arange = partial(torch.arange, dtype=torch.int32, device=x.device)
        word = rounding_words(arange, x.shape, noise, rounds_distance(program.mode), Names.materialize)
        # Words before blocks are split and padded: an element's word follows from its index in the tensor alone.
        word = word.to(lane_dtype(program.carrier)) << (program.carrier.lane_bits - 32)
        word = blocks.split(word, pad)
    lanes = blocks.split(to_lanes(x, program.carrier), pad)
    result = program.run(Names, lanes, constants, blocks.axes, word, materialize, around=blocks.around)
    if not program.codes:
        return from_lanes(join(blocks, result), program.carrier, x.dtype)
    codes, *scales = result if program.shared else (result,)
    codes = to_codes(join(blocks, codes), program.storage)
    if not scales:
        return codes
    block, *whole = scales
    scale = _floats(block) if program.float_scales else to_codes(block, program.scale_storage)
    return codes, scale, *(_floats(lanes.reshape(())) for lanes in whole)


def materialize(lanes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [Names.materialize(one) for one in lanes]


def _floats(lanes: torch.Tensor) -> torch.Tensor:
    return reinterpreted(lanes, FLOATS[lanes.dtype])


def join(blocks: Tiles, lanes: torch.Tensor) -> torch.Tensor:
    """`blocks.merge`; in compiled programs the blocks are written to memory first.

    If the caller's program goes on with a part of the elements, torch 2.13's Inductor splits its loop by the size of
    the blocks and leaves out a smaller last block.
    """
    return blocks.merge(lanes if blocks.tiled == blocks.padded else Names.materialize(lanes))


def pad(x: torch.Tensor, missing: tuple[int, ...]) -> torch.Tensor:
    """Appends the given number of zeros along each dimension."""
    return torch.nn.functional.pad(x, [length for count in reversed(missing) for length in (0, count)])


def lane_dtype(carrier: Carrier) -> torch.dtype:
    return {16: torch.int16, 32: torch.int32, 64: torch.int64}[carrier.lane_bits]


def to_lanes(x: torch.Tensor, carrier: Carrier) -> torch.Tensor:
    if carrier.padding == 0:
        return reinterpreted(x, lane_dtype(carrier))
    return reinterpreted(x, torch.int16).to(torch.int32) << carrier.padding


def from_lanes(bits: torch.Tensor, carrier: Carrier, dtype: torch.dtype) -> torch.Tensor:
    if carrier.padding == 0:
        return reinterpreted(bits, dtype)
    return reinterpreted((bits >> carrier.padding).to(torch.int16), dtype)


def bytes_of(x: torch.Tensor, number: BytesNumber) -> torch.Tensor:
    """The bytes of the numbers of a tensor."""
    carrier = DTYPES[x.dtype]
    return number.to_bytes(Names, to_lanes(x.resolve_neg(), carrier), carrier)


def scale_dtype(program: Program) -> torch.dtype:
    """The dtype of the scales that are returned with the codes of blocks."""
    return FLOATS[lane_dtype(program.carrier)] if program.float_scales else STORED[program.scale_storage]


def result_dtype(program: Program, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a program's result for inputs of a dtype."""
    return STORED[program.storage] if program.codes else dtype


def to_codes(lanes: torch.Tensor, storage: int) -> torch.Tensor:
    """Codes as unsigned integers. torch makes unsigned integers of more than 8 bits only by a view of signed ones."""
    dtype = STORED[storage]
    return reinterpreted(lanes.to(_SIGNED.get(dtype, dtype)), dtype)


def from_codes(codes: torch.Tensor, lane_bits: int) -> torch.Tensor:
    """Lanes of codes in integers of any type; bits above the codes are ignored later."""
    return codes.to(torch.int32 if lane_bits == 32 else torch.int64)


def stored_scales(scales: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """The scales of blocks in the type that kernels read: codes, or lanes of floats."""
    if decoding.scales != "floats":
        stored = scales.dtype is STORED[decoding.scale_storage]
        return scales if stored else to_codes(scales, decoding.scale_storage)
    lanes = lane_dtype(decoding.carrier)
    return reinterpreted(scales.to(FLOATS[lanes]), lanes)
