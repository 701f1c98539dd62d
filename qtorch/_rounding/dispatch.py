"""Rounding, encoding and decoding of tensors: checks, the straight-through gradient, and the choice of a path."""

from __future__ import annotations

from typing import Any

import torch

from qcore import Number
from qcore.formats.block import Scales, check_float_scales, check_scales
from qcore.formats.foreign import BytesNumber, NestedNumber
from qcore.formats.names import Encode, EncodeResult
from qcore.formats.number import check_number
from qcore.law.rounding import RoundingLike
from qcore.random.threefry import Noise
from qtorch import _exported as exported
from qtorch._namespace import FLOATS, Names
from qtorch._rounding.gradients import for_transforms, is_differentiated
from qtorch._rounding.keys import Key, check_noise, is_default_window, make_cached_noise, make_noise
from qtorch._rounding.packing import check_codes
from qtorch._rounding.paths.choice import check_device, decode_tensor, is_plain_tensor, round_tensor
from qtorch._rounding.paths.operations import bytes_of, from_codes, from_lanes, lane_dtype
from qtorch._rounding.plan import RoundingPlan, check_dtype, decoder, known_plan, make_plan, plan_for
from qtorch._rounding.sharded import check_not_sharded
from qtorch._torch_internals import apply_directly


def quantize(
    x: torch.Tensor,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> torch.Tensor:
    """Rounds every element to the nearest, or another, neighbour in a number format.

    The result has the bits that `qcore.quantize` and `qjax.quantize` give for the same arguments. Its gradient is
    the incoming gradient, and its tangent (`torch.func.jvp`, `torch.autograd.forward_ad`) the incoming tangent,
    unchanged ("straight through").

    Args:
        x: tensor of any shape, strides and device; float32, float64, float16 or bfloat16. The parts of a DTensor get
            the bits of the whole tensor. All processes gather the whole tensor if blocks lie along a sharded dimension,
            or if rounding is stochastic and another dimension than the first is sharded.
        number: the format, or its text (see `parse`).
        rounding: a name or member of `Rounding`; to nearest, ties to even, by default, as a cast does.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, two 32-bit words, or an integer tensor of two
            words. None draws one from torch's default generator, so `torch.manual_seed` repeats a run. In a program
            for `torch.compile` an int is a constant; give a key that changes as a tensor.
        random_bits: the number of random bits for each element, 1 to 24.
        start: the 64-bit index of x's first element: a chunk of a larger tensor gets the larger tensor's bits.
        overflow: the policy for numbers beyond the format's range: "saturate", "propagate" (as "saturate",
            but infinities stay), "inf", "nan", or for fixed point "wrap". None is the format's own policy. Note that
            e4m3fn overflows to NaN here, as in JAX and ml_dtypes, while torch's own cast saturates from version 2.13
            on: overflow="saturate" has its bits.

    Returns:
        A new tensor of x's shape, dtype, device and memory format, and of a DTensor's placements.

    Example:
        >>> from qtorch import FloatingPoint
        >>> quantize(torch.tensor([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2))
        tensor([ 0.1250,  0.3750, -0.7500])
    """
    # Small tensors take a microsecond of work, so their path has few steps: a cached plan, no further checks.
    plain = is_plain_tensor(x)
    if plain:
        try:
            plan = known_plan(number, rounding, x.dtype, overflow, False)
        except TypeError:  # an argument has no hash: `make_plan` raises an error that names the argument
            plan = make_plan(number, rounding, x.dtype, overflow, False)
    else:
        plan = make_plan(number, rounding, x.dtype, overflow, False)
    if plain and plan.stochastic:
        noise = make_cached_noise(key, random_bits, start, x)
    else:
        noise = _noise(x, plan, key, random_bits, start, plain)
    if plain:
        if x.requires_grad and torch.is_grad_enabled():
            return _straight_through(x, plan, *(noise or ()))
    elif is_differentiated(x):
        return for_transforms(_StraightThrough, _WithTangent)(x, plan, *(noise or ()))
    return round_tensor(x, plan, noise, plain)


def _overloaded(function: Any) -> Encode[torch.Tensor, Key, torch.Tensor]:
    """The function, with the types of its results by the kind of format."""
    return function


@_overloaded
def encode(
    x: torch.Tensor,
    number: Number | str,
    rounding: RoundingLike = "nearest",
    *,
    key: Key = None,
    random_bits: int = 24,
    start: int = 0,
    overflow: str | None = None,
) -> EncodeResult[torch.Tensor]:
    """Rounds as `quantize` does, and returns the integer codes of the results: the bits of the format's standard.

    The codes are equal to those of `qcore.encode`, whose documentation lists results without a code.

    Args:
        x, number, rounding, key, random_bits, start, overflow: as for `quantize`.

    Returns:
        A tensor of x's shape, device and memory format: uint8 for formats of up to 8 bits, uint16 up to 16, uint32 up
        to 32. A view of it is a tensor of torch's own dtype, say `encode(x, "e5m2").view(torch.float8_e5m2)`. For
        blocks a pair of such a tensor and the codes of their scales, as in `qcore.encode`, whose view is a tensor of
        torch.float8_e8m0fnu. For `GGUF` the bytes of its blocks: the last axis has the bytes of a row.

    Raises:
        ValueError: if an argument is out of range, or the format has no codes, or codes of more than 32 bits.

    Example:
        >>> encode(torch.tensor([1.0, -1.5, 448]), "e4m3fn")
        tensor([ 56, 188, 126], dtype=torch.uint8)
    """
    plain = is_plain_tensor(x)
    check_not_sharded(x, "x")
    plan = (plan_for if plain else make_plan)(number, rounding, x.dtype, overflow, True)
    noise = _noise(x, plan, key, random_bits, start, plain)
    if isinstance(plan.number, BytesNumber):
        if plan.text:  # a search has thousands of operations, so a traced program calls it
            return torch.ops.qtorch.encode(x.detach(), None, None, *plan.text)[0]
        return bytes_of(x.detach(), plan.number)
    result = round_tensor(x.detach(), plan, noise, plain)
    if not isinstance(result, tuple):
        return result
    codes, block, *whole = result
    return codes, (block, *whole) if whole else block


def decode(
    codes: torch.Tensor,
    number: Number | str,
    dtype: torch.dtype = torch.float32,
    *,
    scales: Scales[torch.Tensor] | None = None,
) -> torch.Tensor:
    """The exact numbers of integer codes; see `qcore.decode`.

    Args:
        codes: integer tensor of any shape and device; bits above a code's highest are ignored. For `GGUF` rows of
            bytes.
        number: the format, or its text (see `parse`).
        dtype: the dtype of the result: torch.float32, float64, float16 or bfloat16. It must hold all numbers of the
            format, or of a block format all numbers of its elements before they are scaled.
        scales: the scales of a block format, as `encode` returns them; None for other formats.

    Returns:
        A tensor of codes' shape. Codes without a number are NaN. For blocks see `qcore.decode`.

    Raises:
        ValueError: if the format has no codes, codes of more than 32 bits, or numbers that are not in dtype; if
            scales are missing, given without blocks, or of the wrong shape.

    Example:
        >>> decode(torch.tensor([56, 188, 126, 127], dtype=torch.uint8), "e4m3fn")
        tensor([  1.0000,  -1.5000, 448.0000,      nan])
    """
    check_not_sharded(check_codes(codes), "codes")
    number = check_number(number)
    if isinstance(number, BytesNumber):
        carrier = check_dtype(dtype, "the result")
        if exported.is_wanted():
            shape = number.shape_of_numbers(tuple(codes.shape))
            return exported.decoded(codes, None, None, number.text, dtype, shape)
        return from_lanes(number.from_bytes(Names, from_codes(codes, 32), carrier, scales), carrier, dtype)
    if isinstance(number, NestedNumber):
        seconds, largest, offset = number.check_scales(tuple(codes.shape), scales)
        offset = torch.as_tensor(offset, dtype=torch.float32, device=codes.device)
        found = number._sums(Names, decode(seconds, number.second, scales=largest), offset)
        return decode(codes, number.first, dtype, scales=found)
    block, whole = check_scales(number, tuple(codes.shape), scales)
    decoding, _ = decoder(number, dtype)
    if codes.numel() == 0:
        return torch.empty(codes.shape, dtype=dtype, device=codes.device)
    if block is not None:
        if decoding.scales == "floats":
            check_float_scales(block, isinstance(block, torch.Tensor) and block.is_floating_point(), "torch.Tensor")
        else:
            check_codes(block, "scales")
        check_device("scales", block, codes.device, "codes")
    if isinstance(whole, torch.Tensor):
        check_device("scales[1]", whole, codes.device, "codes")
    if whole is not None:
        whole = torch.as_tensor(whole, dtype=FLOATS[lane_dtype(decoding.carrier)], device=codes.device)
    plain = is_plain_tensor(codes) and (block is None or is_plain_tensor(block))
    return decode_tensor(codes, number, dtype, block, whole, plain)


def _noise(x: torch.Tensor, plan: RoundingPlan, key: Any, random_bits: Any, start: Any, plain: bool) -> Noise | None:
    if plan.stochastic:
        return (make_cached_noise if plain else make_noise)(key, random_bits, start, x)
    if key is not None or not is_default_window(random_bits, start):
        check_noise(key, random_bits, start)
    return None


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, plan: RoundingPlan, *noise: torch.Tensor) -> torch.Tensor:
        return round_tensor(x, plan, Noise(*noise) if noise else None, is_plain_tensor(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.others = len(inputs) - 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        return grad, *(None,) * ctx.others


class _WithTangent(_StraightThrough):
    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:  # type: ignore[override]
        return tangent.clone()  # not the tangent itself: an operation in place on the result would change it


_straight_through = apply_directly(_StraightThrough)
