"""The law on tensors: `run` is what all three paths execute, eagerly, traced or compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from qcore.carrier import CARRIERS, Carrier
from qcore.program import Program
from qcore.random import Noise, Rotate, leading_bits_mask, rotate_left, rounding_words
from qcore.tiles import Tiles

DTYPES = {getattr(torch, name): carrier for name, carrier in CARRIERS.items()}
STORED = {8: torch.uint8, 16: torch.int16, 32: torch.int32}  # what holds codes of so many bits
FLOATS = {torch.int32: torch.float32, torch.int64: torch.float64}
ROW = 64  # numbers that kernels take at a time: whole vectors of any width


class Names:
    """The names that the law uses of an array namespace."""

    where = staticmethod(torch.where)
    clip = staticmethod(torch.clip)

    @staticmethod
    def amax(lanes: torch.Tensor, axis: tuple[int, ...], keepdims: bool) -> torch.Tensor:
        if torch.compiler.is_compiling() and lanes.device.type == "cpu":
            return _as_lanes(torch.amax(_as_floats(lanes), axis, keepdims))
        return torch.amax(lanes, axis, keepdims)

    @staticmethod
    def float_bits(lanes: torch.Tensor) -> torch.Tensor:
        return lanes.to(FLOATS[lanes.dtype]).view(lanes.dtype)

    @staticmethod
    def integers(bits: torch.Tensor) -> torch.Tensor:
        return bits.view(FLOATS[bits.dtype]).to(bits.dtype)

    @staticmethod
    def quotient_bits(a: torch.Tensor, b: torch.Tensor | int) -> torch.Tensor:
        floats = FLOATS[a.dtype]
        return (a.to(floats) / (b.to(floats) if isinstance(b, torch.Tensor) else b)).view(a.dtype)


class RowNames(Names):
    """The same for blocks that are long and along the last dimension.

    What is done with the maxima of blocks is done in scalars, since Inductor has no vectors of 16-bit integers on the
    CPU. In vectors of blocks it would be a loop of its own, and the elements of all blocks be read once before it and
    once after it; this way each block's are in the cache the second time.
    """

    @staticmethod
    def amax(lanes: torch.Tensor, axis: tuple[int, ...], keepdims: bool) -> torch.Tensor:
        largest = Names.amax(lanes, axis, keepdims)
        shift = torch.iinfo(lanes.dtype).bits - 16
        high = (largest >> shift).to(torch.int16).to(lanes.dtype)
        return (high << shift) | (largest & ((1 << shift) - 1))


def run(
    program: Program,
    x: torch.Tensor,
    constants: Sequence[int | torch.Tensor],
    blocks: Tiles,
    noise: Noise | None,
    large: bool,
    rotate: Rotate = rotate_left,
    places: torch.Tensor | None = None,
) -> Any:
    """Rounds a tensor of at least one dimension; arguments as in `Program.run` and `rounding_words`.

    Codes of blocks come with their scales' codes, and with the scale of all where there is one.
    """
    word = None
    if noise is not None:
        shape = x.shape if blocks.ragged else blocks.split
        arange = partial(_arange, device=x.device)
        word = _word(program.carrier, shape, _anchored(noise, shape), large, arange, rotate, places)
        word = blocks.apart(word, pad) if blocks.ragged else word
    lanes = blocks.apart(to_lanes(x, program.carrier), pad)
    rows = program.kind == "block" and lanes.dim() - 1 in blocks.axes and x.device.type == "cpu"
    names = RowNames if rows and torch.compiler.is_compiling() else Names
    result = program.run(names, lanes, constants, blocks.axes, word, _settle)
    if not program.codes:
        return _result(put_together(blocks, result), program.carrier, x.dtype)
    codes, *scales = result if program.shared else (result,)
    codes = put_together(blocks, codes).to(result_dtype(program, x.dtype))
    if not scales:
        return codes
    block, *whole = scales
    return codes, block.to(torch.uint8), *(lanes.reshape(()).view(FLOATS[lanes.dtype]) for lanes in whole)


def put_together(blocks: Tiles, lanes: torch.Tensor) -> torch.Tensor:
    """`blocks.together`, in compiled programs after the blocks are in memory.

    An element's block is its index divided by a size. Where the caller's program goes on with the elements, and those
    are not of whole blocks (also since the program takes a part of them), torch 2.13's Inductor leaves out the last.
    """
    return blocks.together(lanes if blocks.split == blocks.padded else _settle(lanes))


def pad(x: torch.Tensor, missing: tuple[int, ...]) -> torch.Tensor:
    """Appends so many zeros along each dimension."""
    return torch.nn.functional.pad(x, [length for count in reversed(missing) for length in (0, count)])


def run_pairs(
    program: Program, rows: torch.Tensor, constants: Sequence[int | torch.Tensor], noise: Noise | None, rotate: Rotate
) -> torch.Tensor:
    """Rounds two elements in each integer of rows of `ROW`, which is of twice their width, to two of 16 bits in int32.

    For Inductor, which has no vectors of 16-bit integers on the CPU.
    """
    carrier, results = program.carrier, []
    for which in (0, 1):
        if carrier.padding == 0:
            lanes = (rows >> (which * 32)).to(torch.int32)
        else:
            lanes = (rows << (16 - which * 16)) >> 16 << carrier.padding

        def arange(size: int, which: int = which) -> torch.Tensor:
            return _arange(ROW, rows.device) * 2 + which if isinstance(size, int) else _arange(size, rows.device)

        word = None
        if noise is not None:
            word = _word(carrier, (rows.shape[0], 2 * ROW), _anchored(noise, rows.shape), False, arange, rotate)
        result = program.run(Names, lanes, constants, (0,), word, _settle)
        results.append(result if program.codes else result >> carrier.padding)
    low, high = results
    return (low & 0xFFFF) | (high << 16)


def run_keyed(
    program: Program,
    x: torch.Tensor,
    constants: Sequence[int | torch.Tensor],
    keys: torch.Tensor,
    starts: torch.Tensor,
    rotate: Rotate,
) -> torch.Tensor:
    """Rounds rows of `ROW` elements, each with a key of its own, stochastically.

    Args:
        keys: int32 tensor of shape (rows, 2), the keys' words.
        starts: int32 tensor of the indices of the rows' first elements.
    """
    word0, word1, start = keys[:, :1], keys[:, 1:], starts[:, None]
    noise = Noise((word0, word1), (torch.zeros_like(start), start, leading_bits_mask(24)))
    word = _word(program.carrier, x.shape[1:], noise, False, partial(_arange, device=x.device), rotate)
    result = program.run(Names, to_lanes(x, program.carrier), constants, (), word, _settle)
    return from_lanes(result, program.carrier, x.dtype)


def indices_in_groups(shape: Sequence[Any], places: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The elements' indices in another order than that of memory, where they are those of groups but for a sum.

    Args:
        shape: (examples, groups, elements), of which elements are counted example by example.
        places: int32 tensor of the indices of a group's elements, less the group's first.
        step: int32 tensor of one element: by how much the first index of the next group is greater.
    """
    examples, groups, elements = shape
    example, group = (torch.arange(size, dtype=torch.int32, device=places.device) for size in (examples, groups))
    return example[:, None, None] * (groups * elements) + group[:, None] * step + places


def _word(
    carrier: Carrier,
    shape: Sequence[int],
    noise: Noise,
    large: bool,
    arange: Callable[[int], torch.Tensor],
    rotate: Rotate,
    places: torch.Tensor | None = None,
) -> torch.Tensor:
    """The random words as lanes."""
    word = rounding_words(arange, shape, noise, large, _settle, rotate, places)
    return word.to(lane_dtype(carrier)) << (carrier.lane_bits - 32)


def _arange(size: int, device: torch.device) -> torch.Tensor:
    """0, 1, ..., size - 1. Inductor makes a vector of indices on the CPU from as many scalars, which costs a sixth of
    a kernel's time; a vector that it loads from a table and adds to one scalar is almost free."""
    position = torch.arange(size, dtype=torch.int32, device=device)
    if device.type != "cpu" or not torch.compiler.is_compiling():
        return position
    table = _settle(torch.arange(ROW, dtype=torch.int32, device=device))
    return position // ROW * ROW + table[position % ROW]


def _anchored(noise: Noise, shape: Sequence[int]) -> Noise:
    """The same noise, whose key and mask depend on the indices of all dimensions but the last, though only by zeros.

    Inductor would run some stages of Threefry, or what is done with the words, over all dimensions at once and others
    over each; such loops are not fused, and it would keep the stages between them in memory.
    """
    if not torch.compiler.is_compiling():
        return noise
    zeros = noise.window.new_zeros(())
    for axis, size in enumerate(shape[:-1]):
        position = torch.arange(size, dtype=torch.int32, device=zeros.device)
        zeros = zeros + (position & 0).reshape((-1,) + (1,) * (len(shape) - 1 - axis))
    high, low, mask = noise.window.unbind()
    return Noise((noise.key[0] + zeros, noise.key[1] + zeros), (high, low, mask + zeros))


def _settle(lanes: torch.Tensor) -> torch.Tensor:
    """The same lanes; Inductor keeps what leads to a strided view, and otherwise repeats it at each use."""
    return lanes.as_strided(lanes.shape, lanes.stride()) if torch.compiler.is_compiling() else lanes


def _as_floats(lanes: torch.Tensor) -> torch.Tensor:
    """Floats in the order of lanes that are not negative: none is subnormal, lest a processor take it for zero.

    Inductor finds the maximum within a vector on the CPU quickly of floats, and of integers one by one.
    """
    half, hidden, last = _order(lanes.dtype)
    centered = lanes - half
    return ((centered ^ ((centered >> last) & (half * 2 - 1))) + hidden).view(FLOATS[lanes.dtype])


def _as_lanes(floats: torch.Tensor) -> torch.Tensor:
    """The inverse of `_as_floats`."""
    dtype = torch.int32 if floats.dtype is torch.float32 else torch.int64
    half, hidden, last = _order(dtype)
    centered = floats.view(dtype) - hidden
    return (centered ^ ((centered >> last) & (half * 2 - 1))) + half


def _order(dtype: torch.dtype) -> tuple[int, int, int]:
    """Half of the lanes' range, the smallest normal float's bits, and the index of a lane's highest bit."""
    return (1 << 30, 1 << 23, 31) if dtype is torch.int32 else (1 << 62, 1 << 52, 63)


def lane_dtype(carrier: Carrier) -> torch.dtype:
    return torch.int32 if carrier.lane_bits == 32 else torch.int64


def to_lanes(x: torch.Tensor, carrier: Carrier) -> torch.Tensor:
    if carrier.padding == 0:
        return x.view(lane_dtype(carrier))
    return x.view(torch.int16).to(torch.int32) << carrier.padding


def from_lanes(bits: torch.Tensor, carrier: Carrier, dtype: torch.dtype) -> torch.Tensor:
    if carrier.padding == 0:
        return bits.view(dtype)
    return (bits >> carrier.padding).to(torch.int16).view(dtype)


def _result(bits: torch.Tensor, carrier: Carrier, dtype: torch.dtype) -> torch.Tensor:
    """Bits as floats, in a user's compiled program as the opposite of their opposites.

    What is only seen as floats Inductor writes as integers, in the order of the dimensions, and then copies if a
    convolution wants another; what it computes as floats it writes once. A float's sign bit is all that this changes.
    """
    user = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if not user or carrier.padding or bits.device.type != "cpu":
        return from_lanes(bits, carrier, dtype)
    return -from_lanes(bits ^ carrier.negative, carrier, dtype)


def result_dtype(program: Program, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a program's result for inputs of a dtype."""
    return STORED[program.storage] if program.codes else dtype


def as_codes(result: torch.Tensor) -> torch.Tensor:
    """A program's codes as unsigned integers."""
    unsigned = {torch.int16: torch.uint16, torch.int32: torch.uint32}
    return result if result.dtype is torch.uint8 else result.view(unsigned[result.dtype])


def pair_dtype(program: Program) -> torch.dtype | None:
    """The integers that hold two elements for `run_pairs`; None where that does not serve."""
    if program.shared:
        return None
    if program.carrier.padding:
        return torch.int32 if program.storage < 32 else None
    return torch.int64 if program.storage == 16 and program.carrier.lane_bits == 32 else None


def from_codes(codes: torch.Tensor, lane_bits: int) -> torch.Tensor:
    """Lanes of codes in integers of any type; what is above the codes does not matter."""
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    lanes = torch.int32 if lane_bits == 32 else torch.int64
    return codes.view(signed.get(codes.dtype, codes.dtype)).to(lanes)
