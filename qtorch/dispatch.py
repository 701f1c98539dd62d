"""Rounding tensors: checks, the choice among three paths with the same bits, and the straight-through gradient.

`kernel`: a fused kernel, for ordinary tensors. `inline`: under `torch.compile` the law is traced into the caller's
program. `ops`: the law operation by operation, for whatever has no kernel and for tensors that are not ordinary
(subclasses, fake tensors, functorch's). Of tensors in several processes each rounds its own part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _has_storage, _len_torch_dispatch_stack  # type: ignore[attr-defined]
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from qcore import Number, Rounding
from qcore import codes as law
from qcore.block import check_scales
from qcore.named import check_number
from qcore.program import decode_blocks
from qcore.random import Noise
from qcore.tiles import block_counts, tiles
from qtorch.autograd import apply_directly
from qtorch.keys import Key, check_noise, make_noise, make_noise_quickly
from qtorch.lanes import (
    DTYPES,
    FLOATS,
    Names,
    as_codes,
    from_codes,
    from_lanes,
    lane_dtype,
    pad,
    put_together,
    result_dtype,
    run,
)
from qtorch.launch import KERNEL_LIMIT, by_kernel, laid_out
from qtorch.packing import check_codes
from qtorch.plan import Plan, block_sizes, decoder, make_plan, plan_for
from qtorch.sharded import check_not_sharded, check_not_transformed, is_sharded, round_shards


def quantize(
    x: torch.Tensor,
    number: Number | str,
    rounding: str | Rounding = "stochastic",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> torch.Tensor:
    """Rounds every element to the nearest, or another, neighbour in a number format.

    The result has the bits that `qcore.quantize` and `qjax.quantize` give for the same arguments. Its gradient is
    the incoming gradient, unchanged ("straight through").

    Args:
        x: tensor of any shape, strides and device; float32, float64, float16 or bfloat16. A DTensor's parts get the
            bits of the whole tensor, which all processes gather if blocks lie along a sharded dimension, or
            rounding is stochastic and another dimension than the first is sharded.
        number: the format, or its name (see `NAMED`).
        rounding: a name or member of `Rounding`.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, two 32-bit words, or an integer tensor of two
            words. None draws one from torch's default generator, so `torch.manual_seed` repeats a run. In a program
            for `torch.compile` an int is a constant; give a key that changes as a tensor.
        random_bits: how many random bits an element's rounding uses, 1 to 24.
        start: the 64-bit index of x's first element: a chunk of a larger tensor gets the larger tensor's bits.
        overflow: what numbers beyond the format's range become: "saturate", "inf", "nan", or for fixed point "wrap";
            None is the format's own policy. Note that e4m3fn overflows to NaN here, as in JAX and ml_dtypes, while
            torch's own cast saturates from version 2.13 on: overflow="saturate" has its bits.

    Returns:
        A new tensor of x's shape, dtype, device and memory format, and of a DTensor's placements.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range.

    Example:
        >>> from qtorch import FloatingPoint
        >>> quantize(torch.tensor([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2), "nearest")
        tensor([ 0.1250,  0.3750, -0.7500])
    """
    ordinary = is_ordinary(x)
    plan = (plan_for if ordinary else make_plan)(number, rounding, x.dtype, overflow, False)
    noise = _noise(x, plan, key, random_bits, start, ordinary)
    transformed = not ordinary and not torch.compiler.is_compiling()  # such tensors may not say what they require
    if (x.requires_grad or transformed) and torch.is_grad_enabled():
        return (_straight_through if ordinary else _StraightThrough.apply)(x, plan, *(noise or ()))
    return round_tensor(x, plan, noise, ordinary)


def encode(
    x: torch.Tensor,
    number: Number | str,
    rounding: str | Rounding = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> Any:
    """Rounds as `quantize` does, and returns the integer codes of the results: the bits of the format's standard.

    The codes are those of `qcore.encode`, which says what has no code.

    Args:
        x, number, rounding, key, random_bits, start, overflow: as for `quantize`; the rounding is nearest by default.

    Returns:
        A tensor of x's shape, device and memory format: uint8 for formats of up to 8 bits, uint16 up to 16, uint32 up
        to 32. A view of it is a tensor of torch's own dtype, say `encode(x, "e5m2").view(torch.float8_e5m2)`. For
        blocks a pair of such a tensor and the codes of their scales, as in `qcore.encode`, whose view is a tensor of
        torch.float8_e8m0fnu.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or the format has no codes, or codes of more than 32 bits.

    Example:
        >>> encode(torch.tensor([1.0, -1.5, 448]), "e4m3fn")
        tensor([ 56, 188, 126], dtype=torch.uint8)
    """
    ordinary = is_ordinary(x)
    check_not_sharded(x, "x")
    plan = (plan_for if ordinary else make_plan)(number, rounding, x.dtype, overflow, True)
    result = round_tensor(x.detach(), plan, _noise(x, plan, key, random_bits, start, ordinary), ordinary)
    if not isinstance(result, tuple):
        return as_codes(result)
    codes, block, *whole = result
    return as_codes(codes), (block, whole[0]) if whole else block


def decode(
    codes: torch.Tensor,
    number: Number | str,
    dtype: torch.dtype = torch.float32,
    *,
    scales: Any = None,
) -> torch.Tensor:
    """The numbers that integer codes stand for, exactly; see `qcore.decode`.

    Args:
        codes: integer tensor of any shape and device; bits above a code's highest are ignored.
        number: the format, or its name (see `NAMED`).
        dtype: of the result: torch.float32, float64, float16 or bfloat16; it must hold all the format's numbers, of
            blocks all of the elements' before they are scaled.
        scales: for blocks, and only for them, their scales as `encode` returns them.

    Returns:
        A tensor of codes' shape. Codes that stand for no number are NaN. For blocks see `qcore.decode`.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if the format has no codes, codes of more than 32 bits, or numbers that are not in dtype; if
            scales are missing, unasked for, or of the wrong shape.

    Example:
        >>> decode(torch.tensor([56, 188, 126, 127], dtype=torch.uint8), "e4m3fn")
        tensor([  1.0000,  -1.5000, 448.0000,      nan])
    """
    check_codes(codes)
    check_not_sharded(codes, "codes")
    number = check_number(number)
    block, whole = check_scales(number, tuple(codes.shape), scales)
    carrier, layout = decoder(number, dtype)
    lanes = from_codes(codes, carrier.lane_bits)
    if block is None:
        return from_lanes(law.decode(Names, lanes, carrier, layout), carrier, dtype)
    if codes.numel() == 0:
        return torch.empty(codes.shape, dtype=dtype, device=codes.device)
    blocks = tiles(tuple(codes.shape) or (1,), block_sizes(number, codes.dim()) or (1,))
    split = blocks.apart(lanes.reshape(blocks.shape), pad)
    scale = blocks.spread(from_codes(check_codes(block, "scales"), carrier.lane_bits))
    if whole is not None:
        whole = torch.as_tensor(whole, dtype=FLOATS[split.dtype]).reshape((1,) * split.dim()).view(split.dtype)
    lanes = put_together(blocks, decode_blocks(Names, split, carrier, number, scale, whole))
    return from_lanes(lanes, carrier, dtype).reshape(codes.shape)


def _noise(x: torch.Tensor, plan: Plan, key: Any, random_bits: Any, start: Any, ordinary: bool) -> Noise | None:
    if plan.stochastic:
        return (make_noise_quickly if ordinary else make_noise)(key, random_bits, start, x)
    if key is not None or random_bits != 24 or start != 0:
        check_noise(key, random_bits, start)
    return None


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, plan: Plan, *noise: torch.Tensor) -> torch.Tensor:
        return round_tensor(x, plan, Noise(*noise) if noise else None, is_ordinary(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.others = len(inputs) - 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        return grad, *(None,) * ctx.others


_straight_through = apply_directly(_StraightThrough)


def is_ordinary(x: torch.Tensor) -> bool:
    """Whether x is memory that a kernel may read: no subclass, no transform, no tracing."""
    kind = type(x)
    if (
        (kind is torch.Tensor or kind is Parameter)
        and not is_dynamo_compiling()
        and (x.is_cpu or x.is_cuda)
        and _has_storage(x)  # unlike those of other layouts, and those that outlive a transform
        and not x.is_nested
        and not x.is_neg()
        and not x._is_zerotensor()
        and peek_interpreter_stack() is None
        and _len_torch_dispatch_stack() == 0
    ):
        return True
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is a {kind.__name__}; allowed is a torch.Tensor of {', '.join(map(str, DTYPES))}")
    if not is_dynamo_compiling() and (x.layout is not torch.strided or x.is_nested):
        raise TypeError(
            f"x is a {'nested' if x.is_nested else x.layout} tensor; allowed are dense ones, such as that of its values"
        )
    return False


def round_tensor(x: torch.Tensor, plan: Plan, noise: Noise | None, ordinary: bool) -> Any:
    """The law, in the fastest way there is for x; see `qtorch.lanes.run`."""
    if not ordinary:
        if not torch.compiler.is_compiling():
            check_not_transformed(x)
        if is_sharded(x):
            return round_shards(x, plan, noise, lambda part, words: round_tensor(part, plan, words, is_ordinary(part)))
    if noise is not None and plan.spelling and x.numel() > 0:
        return torch.ops.qtorch.round_stochastically(x, *noise, plan.spelling)  # see qtorch.opaque
    result = by_kernel(x, plan, noise) if ordinary and x.numel() > 0 else None
    if result is not None:
        return result
    result = by_operations(x, plan, noise)
    if not ordinary:
        return result
    return (laid_out(result[0], x), *result[1:]) if isinstance(result, tuple) else laid_out(result, x)


def by_operations(x: torch.Tensor, plan: Plan, noise: Noise | None) -> Any:
    """The law on x's own shape, eagerly or traced into the caller's program; see `qtorch.lanes.run`."""
    sizes = block_sizes(plan.number, x.dim())  # raises where x has no such dimensions
    if x.numel() == 0:
        result = torch.empty_like(x, dtype=result_dtype(plan.program, x.dtype))
        if not (plan.program.shared and plan.program.codes):
            return result
        scales = torch.empty(block_counts(tuple(x.shape), sizes), dtype=torch.uint8, device=x.device)
        whole = torch.ones((), dtype=FLOATS[lane_dtype(plan.program.carrier)], device=x.device)
        return result, scales, *([whole] if plan.program.kind == "nvfp4" else [])
    x = x.resolve_neg()
    lanes = x.reshape(1) if x.dim() == 0 else x
    blocks = tiles(tuple(lanes.shape), sizes or (1,))
    result = run(plan.program, lanes, plan.constants, blocks, noise, large=x.numel() >= KERNEL_LIMIT)
    if isinstance(result, tuple):
        codes, scales, *whole = result
        return codes.reshape(x.shape), scales.reshape(blocks.counts[: x.dim()]), *whole
    return result.reshape(x.shape)
