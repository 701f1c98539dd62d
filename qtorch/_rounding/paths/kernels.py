"""Calls of the kernels that round and decode, for tensors of any shape, strides and memory format.

On the CPU kernels are written in C: a tensor is memory, or a matrix whose blocks are tiles (`qtorch._kernels.laws`). On
GPUs, and on the CPU with QTORCH_KERNELS, they are packages: a tensor is an array in which blocks have axes of their
own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import torch

import qcore
from qcore import Number
from qcore.law.program import Decoding, Program, flat
from qcore.law.tiles import Matrix, Sizes, Tiles, as_matrix, block_counts, is_flat
from qcore.random.threefry import Noise
from qtorch import _kernels, _namespace
from qtorch._kernels.launch import LIMIT, VECTOR, aligned, is_dense, with_strides_of
from qtorch._namespace import Names
from qtorch._rounding.paths import operations
from qtorch._rounding.paths.operations import (
    DTYPES,
    FLOATS,
    STORED,
    from_codes,
    from_lanes,
    lane_dtype,
    scale_dtype,
    stored_scales,
)
from qtorch._rounding.plan import RoundingPlan, decoder_for

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions
_RUN = 1 << 12  # elements of channels_last tensors that share a table of indices
_SMALL = 1024  # elements of the largest block for whose size a kernel is compiled; such kernels read a block once

# Patterns of a tensor's axes, inside of blocks ("r") and outside ("k"), and the sizes of an example. "" has no blocks.
_EXAMPLES = {
    "": (1 << 20,),
    "r": (1 << 20,),
    "kr": (1 << 14, 64),
    "rk": (1 << 14, 64),
    "rkr": (16, 64, 1 << 10),
    "krk": (64, 32, 1 << 9),
    "krkr": (16, 64, 16, 64),
}


def round_on_cpu(x: torch.Tensor, plan: RoundingPlan, noise: Noise | None) -> Any:
    """Rounds, or encodes, a plain tensor that has elements; None where there is no kernel. See `operations.run`.

    The common case comes first and takes few steps: Python code is cold in the CPU's caches between operations.
    """
    if not plan.elementwise:
        return _round_blocks(x, plan, noise)
    if not x.is_contiguous():
        return _round_strided(x, plan, noise)
    kernel = plan.kernels["flat"]
    if kernel is None:
        return None
    function, constants = kernel
    result = torch.empty_like(x) if plan.dtype is x.dtype else torch.empty_like(x, dtype=plan.dtype)
    if noise is None:
        function(x.numel(), x.data_ptr(), constants, result.data_ptr())
    else:
        key, window = noise
        function(x.numel(), x.data_ptr(), constants, key.data_ptr(), window.data_ptr(), result.data_ptr())
    return result


def _round_strided(x: torch.Tensor, plan: RoundingPlan, noise: Noise | None) -> torch.Tensor | None:
    """Rounds a tensor with other strides. Unless results depend on indices, memory without gaps is rounded as it is."""
    if noise is not None:
        result = _round_places(x, plan, noise)
        if result is not None:
            return result
    elif is_dense(x):
        flat = x.as_strided((x.numel(),), (1,))
        result = round_on_cpu(flat, plan, None)
        return None if result is None else result.as_strided(x.shape, x.stride())
    result = round_on_cpu(x.contiguous(), plan, noise)
    return None if result is None else with_strides_of(x, result)


def _round_places(x: torch.Tensor, plan: RoundingPlan, noise: Noise) -> torch.Tensor | None:
    """Stochastic rounding where channels lie side by side in memory: elements' indices come from a table."""
    if x.dim() not in _CHANNELS_LAST or not x.is_contiguous(memory_format=_CHANNELS_LAST[x.dim()]):
        return None
    examples, channels = x.shape[:2]
    positions = x.numel() // (examples * channels)
    if channels * positions >= 2**31 or (kernel := plan.kernels["places"]) is None:
        return None
    count, places = _places(channels, positions)
    runs = positions // count  # all of one length, so that one table serves them
    sizes = examples * runs, count * channels, 1, 1, runs, count, channels * positions
    result = torch.empty_like(x, dtype=plan.dtype)
    function, constants = kernel
    key, window = noise
    addresses = (one.data_ptr() for one in (key, window, places, result))
    function(*sizes, x.data_ptr(), constants, *addresses)
    return result


@lru_cache(maxsize=256)
def _places(channels: int, positions: int) -> tuple[int, torch.Tensor]:
    """The number of positions in a run, and the indices of its elements in memory order, less the first index."""
    # The longest run that fits the table and divides all positions, so that no run is shorter than the others.
    most = max(1, _RUN // channels)
    count = next(count for count in range(min(most, positions), 0, -1) if positions % count == 0)
    position, channel = (torch.arange(size, dtype=torch.int32, device="cpu") for size in (count, channels))
    return count, (position[:, None] + channel * positions).flatten()


def _round_blocks(x: torch.Tensor, plan: RoundingPlan, noise: Noise | None) -> Any:
    matrix, layout = plan.matrices[x.shape]
    if matrix is None or (kernel := plan.kernels[layout]) is None:
        return None
    function, constants = kernel
    lanes = x.contiguous()  # blocks are ranges of indices, not of memory
    together = plan.program.together
    results = [torch.empty_like(lanes, dtype=plan.dtype)]
    if together and plan.program.codes:  # each element of a sub-block writes the scale
        results.append(torch.empty_like(lanes, dtype=scale_dtype(plan.program)))
    else:
        results += _scales(plan, x)
    addresses = [] if noise is None else [one.data_ptr() for one in noise]
    addresses += [result.data_ptr() for result in results]
    function(*matrix, lanes.data_ptr(), constants, *addresses)
    result = results[0] if lanes is x else with_strides_of(x, results[0])
    if together and plan.program.codes:
        return result, results[1][..., ::together].contiguous()
    return (result, *results[1:]) if plan.program.codes else result


def _scales(plan: RoundingPlan, x: torch.Tensor) -> list[torch.Tensor]:
    """Memory for the scales of blocks, and for NVFP4 for the scale of the tensor."""
    if not (plan.program.codes and plan.program.shared):
        return []
    counts = block_counts(tuple(x.shape), plan.number.block_sizes(x.dim()))
    scales = [torch.empty(counts, dtype=scale_dtype(plan.program), device=x.device)]
    if plan.program.has_array_scale:
        scales.append(torch.empty((), dtype=FLOATS[lane_dtype(plan.program.carrier)], device=x.device))
    return scales


@lru_cache(maxsize=1024)
def _matrix(number: Number, shape: torch.Size) -> Matrix | None:
    return as_matrix(tuple(shape), number.block_sizes(len(shape)))


def decode_on_cpu(
    codes: torch.Tensor, number: Number, dtype: torch.dtype, scales: torch.Tensor | None, scale: torch.Tensor | None
) -> torch.Tensor | None:
    """Decodes a plain tensor that has elements; None where there is no kernel."""
    decoding, constants = decoder_for(number, dtype)
    codes = codes.contiguous()
    storage, result = str(codes.dtype).removeprefix("torch."), torch.empty_like(codes, dtype=dtype)
    if scales is None:
        function, sizes, others = _kernels.laws.decoding(decoding, storage, "flat"), (codes.numel(),), []
    elif (matrix := _matrix(number, codes.shape)) is None:
        return None
    else:
        function, sizes = _kernels.laws.decoding(decoding, storage, _kernels.laws.layout_of(matrix)), matrix
        others = [aligned(stored_scales(scales, decoding).contiguous()), *([] if scale is None else [aligned(scale)])]
    if function is None:
        return None
    function(*sizes, codes.data_ptr(), constants.data_ptr(), *(one.data_ptr() for one in others), result.data_ptr())
    return result


def round_by_package(x: torch.Tensor, plan: RoundingPlan, noise: Noise | None) -> Any:
    """Rounds, or encodes, a plain tensor that has elements; None where there is no kernel. See `operations.run`."""
    sizes = () if plan.elementwise else plan.number.tile_sizes(x.dim())
    pattern, shape, block = _layout(tuple(x.shape), sizes)
    kernel = load(plan.program, pattern, block, x.device) if pattern in _EXAMPLES else None
    if kernel is None:
        return None
    lanes = aligned(x.contiguous(), VECTOR)
    results = [torch.empty_like(lanes, dtype=plan.dtype), *_scales(plan, x)]
    constants = torch.tensor(flat(plan.constants), dtype=lane_dtype(plan.program.carrier), device=x.device)
    memory = [_bits(results[0]).view(shape), *(result.view(-1) for result in results[1:])]
    kernel([_bits(lanes).view(shape), constants, *(noise or ()), *memory])
    results[0] = with_strides_of(x, results[0])
    return tuple(results) if len(results) > 1 else results[0]


def decode_by_package(
    codes: torch.Tensor, number: Number, dtype: torch.dtype, scales: torch.Tensor | None, scale: torch.Tensor | None
) -> torch.Tensor | None:
    """Decodes a plain tensor that has elements; None where there is no kernel."""
    decoding, constants = number.decoding(DTYPES[dtype])
    sizes = () if scales is None else number.block_sizes(codes.dim())
    pattern, shape, block = _layout(tuple(codes.shape), sizes)
    kernel = load_decoder(decoding, codes.dtype, pattern, block, codes.device) if pattern in _EXAMPLES else None
    if kernel is None:
        return None
    source = aligned(codes.contiguous(), VECTOR)
    result = torch.empty_like(source, dtype=dtype)
    arguments = [
        source.view(shape),
        torch.tensor(flat(constants), dtype=lane_dtype(decoding.carrier), device=codes.device),
    ]
    if scales is not None:
        stored = aligned(stored_scales(scales, decoding).contiguous(), VECTOR)
        arguments.append(stored.view(_outside(pattern, shape)))
    if scale is not None:
        arguments.append(scale.reshape(()))
    kernel([*arguments, _bits(result).view(shape)])
    return with_strides_of(codes, result)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Floats of 16 bits as integers: Inductor holds them as float32, and to go back changes the bits of NaN."""
    return x.view(_stored(x.dtype))


def _stored(dtype: torch.dtype) -> torch.dtype:
    return torch.int16 if dtype in (torch.float16, torch.bfloat16) else dtype


def _layout(shape: tuple[int, ...], sizes: Sizes) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The pattern of a tensor, its lengths, and the block's lengths if a kernel is compiled for them.

    The pattern "?" has no kernel.
    """
    if not 1 < prod(shape) < LIMIT:
        return "?", (), ()
    if not sizes:
        return "", (prod(shape),), ()
    shape, sizes = ((prod(shape),), sizes[1:]) if is_flat(sizes) else (shape, sizes)
    if (matrix := as_matrix(shape, sizes)) is None:
        return "?", (), ()
    pattern, lengths = _pattern(matrix)
    given = [size for size, length in zip(sizes, shape, strict=True) if size is not None and size <= length]
    # Sizes that follow from the format alone: sizes that follow from a shape would compile a kernel for each shape.
    small = len(given) == len(sizes) and prod(given) <= _SMALL
    block = tuple(length for kind, length in zip(pattern, lengths, strict=False) if kind == "r")
    return pattern, lengths, block if small else ()


def _pattern(matrix: Matrix) -> tuple[str, tuple[int, ...]]:
    """The pattern of a matrix and the lengths of its axes, without axes of length 1; "?" if blocks do not divide it."""
    if matrix.rows % matrix.block_rows or matrix.columns % matrix.block_columns:
        return "?", ()
    down, across = matrix.counts
    lengths = (down, matrix.block_rows, across, matrix.block_columns)
    axes = [(kind, length) for kind, length in zip("krkr", lengths, strict=True) if length > 1]
    merged: list[tuple[str, int]] = []
    for kind, length in axes:
        if merged and merged[-1][0] == kind:
            merged[-1] = kind, merged[-1][1] * length
        else:
            merged.append((kind, length))
    return "".join(kind for kind, _ in merged), tuple(length for _, length in merged)


def _outside(pattern: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths of an array with one element a block, which broadcasts with the tensor."""
    return tuple(1 if kind == "r" else length for kind, length in zip(pattern, shape, strict=True))


class Law(torch.nn.Module):
    """The law as a module, from which a kernel is compiled."""

    def __init__(self, program: Program, pattern: str) -> None:
        super().__init__()
        self.program = program
        self.inside = tuple(axis for axis, kind in enumerate(pattern) if kind == "r")

    def forward(self, x: torch.Tensor, constants: torch.Tensor, *noise: torch.Tensor) -> Any:
        blocks = Tiles(x.shape, x.shape, x.shape, x.shape, self.inside, ())
        return operations.run(self.program, x, self.program.split(constants), blocks, Noise(*noise) if noise else None)


class Decoder(torch.nn.Module):
    """Decoding as a module."""

    def __init__(self, decoding: Decoding, dtype: torch.dtype) -> None:
        super().__init__()
        self.decoding = decoding
        self.dtype = dtype

    def forward(self, codes: torch.Tensor, constants: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
        carrier = self.decoding.carrier
        lanes: list[Any] = [from_codes(one, carrier.lane_bits) for one in (codes, *scales[:1])]
        whole = [one.reshape((1,) * codes.dim()).view(lane_dtype(carrier)) for one in scales[1:]]
        found = self.decoding.run(Names, lanes[0], self.decoding.split(constants), *lanes[1:], *whole)
        return from_lanes(found, carrier, self.dtype)


@cache
def load(
    program: Program, pattern: str, block: tuple[int, ...], device: torch.device
) -> Callable[[list[torch.Tensor]], object] | None:
    if not program.has_kernels:
        return None
    make = partial(example, program, pattern, block, device)
    return _kernels.packages.load(f"{program} {pattern} {block}", _sources(), device, make)


@cache
def load_decoder(
    decoding: Decoding, storage: torch.dtype, pattern: str, block: tuple[int, ...], device: torch.device
) -> Callable[[list[torch.Tensor]], object] | None:
    make = partial(decoder_example, decoding, storage, pattern, block, device)
    return _kernels.packages.load(f"{decoding} {storage} {pattern} {block}", _sources(), device, make)


def _sources() -> list[Path]:
    core = Path(qcore.__file__).parent
    return [
        *sorted((core / "law").rglob("*.py")),
        core / "random" / "threefry.py",
        Path(operations.__file__),
        Path(_namespace.__file__),
        Path(__file__),
    ]


def example(program: Program, pattern: str, block: tuple[int, ...], device: torch.device) -> _kernels.packages.Example:
    """The module and arguments of a kernel for a pattern, with fixed blocks of these lengths, or () for any lengths."""
    shape, sizes = _axes(pattern, block)
    arguments = [torch.zeros(shape, dtype=_stored(getattr(torch, program.carrier.name)), device=device)]
    arguments += [torch.zeros(program.count(), dtype=lane_dtype(program.carrier), device=device)]
    words = [torch.zeros(count, dtype=torch.int32, device=device) for count in (2, 3)]
    arguments += words if program.mode.stochastic else []
    return _kernels.packages.Example(Law(program, pattern), tuple(arguments), (sizes, *(None,) * (len(arguments) - 1)))


def decoder_example(
    decoding: Decoding, storage: torch.dtype, pattern: str, block: tuple[int, ...], device: torch.device
) -> _kernels.packages.Example:
    shape, sizes = _axes(pattern, block)
    dtype, lane = getattr(torch, decoding.carrier.name), lane_dtype(decoding.carrier)
    arguments = [torch.zeros(shape, dtype=storage, device=device)]
    arguments += [torch.zeros(decoding.count(), dtype=lane, device=device)]
    dynamic: list[Any] = [sizes, None]
    if decoding.scales:
        stored = lane if decoding.scales == "floats" else STORED[decoding.scale_storage]
        arguments.append(torch.zeros(_outside(pattern, shape), dtype=stored, device=device))
        dynamic.append({axis: size for axis, size in sizes.items() if pattern[axis] == "k"})
    if decoding.has_array_scale:
        arguments.append(torch.zeros((), dtype=FLOATS[lane], device=device))
        dynamic.append(None)
    return _kernels.packages.Example(Decoder(decoding, _stored(dtype)), tuple(arguments), tuple(dynamic))


def _axes(pattern: str, block: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, Any]]:
    """The shape of an example, and its sizes that vary; the sizes of blocks vary only if `block` is ()."""
    inside = iter(block)
    fixed = [next(inside, None) if kind == "r" else None for kind in pattern or "k"]
    shape = tuple(length or usual for length, usual in zip(fixed, _EXAMPLES[pattern], strict=True))
    most = (LIMIT - 1) // prod(block)
    sizes = {axis: torch.export.Dim(f"d{axis}", min=2, max=most) for axis, length in enumerate(fixed) if not length}
    return shape, sizes
