"""The ways to round a tensor, all with the same bits.

- A kernel, for plain tensors: C on the CPU, a package made by Inductor on a GPU (on the CPU with QTORCH_KERNELS).
- An operator, in programs for `torch.compile`: Inductor makes a loop of it (`inductor`), or it calls the kernel.
- The law operation by operation, eagerly or traced, in all other cases: subclasses, fake and transformed tensors,
  exported programs, devices without kernels.

A tensor that is sharded over processes is rounded part by part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from qcore import Number, Rounding
from qcore.formats.foreign import NestedProgram
from qcore.law.tiles import block_counts, tiles
from qcore.random.threefry import Noise
from qtorch import _exported as exported
from qtorch._kernels.launch import serve_cpu, with_strides_of
from qtorch._namespace import Names, reinterpreted
from qtorch._rounding.dense import check_dense
from qtorch._rounding.paths.kernels import decode_by_package, decode_on_cpu, round_by_package, round_on_cpu
from qtorch._rounding.paths.operations import (
    DTYPES,
    FLOATS,
    from_codes,
    from_lanes,
    join,
    lane_dtype,
    pad,
    run,
    scale_dtype,
    stored_scales,
)
from qtorch._rounding.plan import (
    RoundingPlan,
    block_sizes,
    decoder,
    law_of_decoding,
    make_plan,
    plan_for,
    text_of,
    tile_sizes,
)
from qtorch._rounding.sharded import check_not_transformed, is_sharded, round_shards
from qtorch._torch_internals import is_memory


def is_plain_tensor(x: torch.Tensor) -> bool:
    """True if x is memory that a kernel may read: no subclass, no transform, no tracing.

    Raises:
        TypeError: if x is not a tensor, or is sparse or nested.
    """
    # Exact types: a subclass may hold its numbers elsewhere, or want to see each operation.
    kind = type(x)
    if (
        (kind is torch.Tensor or kind is Parameter)
        and not torch.compiler.is_dynamo_compiling()
        and (x.is_cpu or x.is_cuda)
        and not x.is_nested
        and is_memory(x)
        and not x.is_neg()
    ):
        return True
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is a {kind.__name__}; allowed is a torch.Tensor of {', '.join(map(str, DTYPES))}")
    check_dense("x", x)
    return False


def are_plain_tensors(tensors: Iterable[torch.Tensor | None]) -> bool:
    """True if all tensors are plain (None is skipped) and on the CPU, or all on one GPU. Faster than a loop."""
    if torch.compiler.is_dynamo_compiling():
        return False
    found, on_cpu = [], 0
    for x in tensors:
        if x is None:
            continue
        found.append(x)
        kind = type(x)
        if not ((kind is torch.Tensor or kind is Parameter) and (x.is_cpu or x.is_cuda) and not x.is_nested):
            return False
        if x.is_neg():
            return False
        on_cpu += x.is_cpu
    one_device = on_cpu == len(found) or (on_cpu == 0 and len({x.device for x in found}) == 1)
    return one_device and is_memory(*found)


def check_device(name: str, x: torch.Tensor, device: torch.device, other: str) -> None:
    """Raises a ValueError if a tensor is on another device than the argument that it is used with."""
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}; allowed is the device of {other}, {device}")


def round_tensor(x: torch.Tensor, plan: RoundingPlan, noise: Noise | None, plain: bool) -> Any:
    """The law by the fastest path for x; see `operations.run`."""
    if plain:
        if isinstance(plan.program, NestedProgram):
            return _round_nested(x, plan, noise)
        in_c = x.is_cpu and not serve_cpu()
        result = (round_on_cpu if in_c else round_by_package)(x, plan, noise) if x.numel() > 0 else None
        if result is None:
            # Operations return contiguous results; kernels have given theirs the strides of x.
            result = by_operations(x, plan, noise)
            result = (
                (with_strides_of(x, result[0]), *result[1:])
                if isinstance(result, tuple)
                else with_strides_of(x, result)
            )
        return result
    if not torch.compiler.is_dynamo_compiling():
        check_not_transformed(x)
    if is_sharded(x):
        return round_shards(x, plan, noise, lambda part, own: round_tensor(part, plan, own, is_plain_tensor(part)))
    if exported.is_wanted() and noise is None and not plan.program.codes:
        return exported.rounded(x, plan.number.text, plan.program.mode.value, plan.overflow or "")
    if not plan.calls_operator(x):
        return (_round_nested if isinstance(plan.program, NestedProgram) else by_operations)(x, plan, noise)
    if not plan.program.codes:
        return torch.ops.qtorch.round(x, *(noise or (None, None)), *plan.text)
    results = torch.ops.qtorch.encode(x, *(noise or (None, None)), *plan.text)
    return tuple(results) if plan.program.shared else results[0]


def _round_nested(x: torch.Tensor, plan: RoundingPlan, noise: Noise | None) -> Any:
    """The laws of a `NestedNumber`: numbers, or codes, codes of scales, largest magnitudes and the offset."""
    number: Any = plan.number

    def encoded(x: torch.Tensor, number: Number, mode: Rounding, noise: Noise | None) -> Any:
        plain = is_plain_tensor(x)
        return round_tensor(x, (plan_for if plain else make_plan)(number, mode, x.dtype, None, True), noise, plain)

    codes, scales = encoded(x, number.first, plan.program.mode, noise)
    differences, offset = number._differences(Names, scales)
    seconds, largest = encoded(differences, number.second, Rounding.NEAREST, None)
    if plan.program.codes:
        return codes, seconds, largest, offset
    if x.numel() == 0:
        return torch.empty_like(x)
    decoded = decode_tensor(seconds, number.second, torch.float32, largest, None, is_plain_tensor(seconds))
    scales = number._sums(Names, decoded, offset)
    numbers = decode_tensor(codes, number.first, x.dtype, scales, None, is_plain_tensor(codes))
    return torch.where(x != x, x, numbers)  # NaN has no code


def decode_tensor(
    codes: torch.Tensor,
    number: Number,
    dtype: torch.dtype,
    scales: torch.Tensor | None,
    scale: torch.Tensor | None,
    plain: bool,
) -> torch.Tensor:
    """The numbers of codes by the fastest path; `scales` of blocks and the `scale` of the array are tensors or None."""
    if plain:
        in_c = codes.is_cpu and not serve_cpu()
        result = (decode_on_cpu if in_c else decode_by_package)(codes, number, dtype, scales, scale)
        if result is not None:
            return result
    elif torch.compiler.is_dynamo_compiling() and codes.is_cpu and not torch.compiler.is_exporting():
        return torch.ops.qtorch.decode(codes, scales, scale, text_of(number), dtype, law_of_decoding(number, dtype))
    elif exported.is_wanted():
        return exported.decoded(codes, scales, scale, text_of(number), dtype, codes.shape)
    decoding, constants = decoder(number, dtype)
    blocks = tiles(tuple(codes.shape) or (1,), block_sizes(number, codes.dim()) or (1,))
    lanes = blocks.split(from_codes(codes, decoding.carrier.lane_bits).reshape(blocks.shape), pad)
    if scales is not None:
        scales = blocks.spread(from_codes(stored_scales(scales, decoding), decoding.carrier.lane_bits))
    if scale is not None:
        scale = reinterpreted(scale.reshape((1,) * lanes.dim()), lanes.dtype)
    lanes = join(blocks, decoding.run(Names, lanes, constants, scales, scale))
    return from_lanes(lanes, decoding.carrier, dtype).reshape(codes.shape)


def by_operations(x: torch.Tensor, plan: RoundingPlan, noise: Noise | None) -> Any:
    """The law on x's own shape, eagerly or traced into the caller's program; see `operations.run`."""
    program, sizes = plan.program, tile_sizes(plan.number, x.dim())  # raises where x has no such dimensions
    if x.numel() == 0:
        result = torch.empty_like(x, dtype=plan.dtype)
        if not (program.shared and program.codes):
            return result
        scales = torch.empty(block_counts(tuple(x.shape), sizes), dtype=scale_dtype(program), device=x.device)
        whole = torch.ones((), dtype=FLOATS[lane_dtype(program.carrier)], device=x.device)
        return result, scales, *([whole] if program.has_array_scale else [])
    x = x.resolve_neg()  # a lazy negation is not in the bits
    lanes = x.reshape(1) if x.dim() == 0 else x
    blocks = tiles(tuple(lanes.shape), sizes or (1,))
    result = run(program, lanes, plan.constants, blocks, noise)
    if isinstance(result, tuple):
        codes, scales, *whole = result
        scales = blocks.collect(scales).contiguous()  # as kernels return them, and files take them
        return codes.reshape(x.shape), scales.reshape(blocks.counts[: x.dim()]), *whole
    return result.reshape(x.shape)
