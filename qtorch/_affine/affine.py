"""Fake quantization of tensors: three paths with the same bits, and the masked straight-through gradient.

The paths are those of `qtorch._rounding.dispatch`: a fused kernel, the law traced under `torch.compile`, and the law
operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch

from qcore.affine import AffineInteger, QParams, law
from qcore.affine.parameters import check_input, check_qparams
from qcore.arguments import check_float, check_int, quoted
from qtorch._affine import exported
from qtorch._affine.launch import Bounds, fake_quantize_by_package, fake_quantize_on_cpu, straight_through_on_cpu
from qtorch._affine.namespace import Names
from qtorch._kernels.launch import serve_cpu
from qtorch._rounding.cache import cached, literal
from qtorch._rounding.dense import check_dense
from qtorch._rounding.gradients import for_transforms, is_differentiated, refuse_recording
from qtorch._rounding.paths.choice import check_device, is_plain_tensor
from qtorch._torch_internals import apply_directly, constant_result


def fake_quantize_per_tensor_affine(
    x: torch.Tensor,
    scale: float | torch.Tensor,
    zero_point: int | torch.Tensor,
    quant_min: int,
    quant_max: int,
) -> torch.Tensor:
    """Quantizes and dequantizes x: (clip(rint(x / scale) + zero_point) - zero_point) * scale.

    rint rounds ties to even, and x / scale is x * (1 / scale); all arithmetic is in float32. NaN becomes the number of
    quant_min, infinities become the ends of the range. Gradients and tangents pass where nothing was clipped, and are 0
    elsewhere. The bits are those of `torch.fake_quantize_per_tensor_affine` on the CPU, and of
    `qcore.affine.fake_quantize`.

    Args:
        x: tensor of any shape, strides and device; float32, float64, float16 or bfloat16.
        scale: a number, or a float32 tensor of one element, from 2^-125 to 2^125.
        zero_point: an int, or an int32 or int64 tensor of one element, from quant_min to quant_max.
        quant_min, quant_max: the range of integers, which has 0 in it; see `AffineInteger`.

    Returns:
        A new tensor of x's shape, dtype, device and memory format.

    Raises:
        ValueError: if an argument is out of range. The values of tensors on a GPU, or under `torch.compile`, are not
            checked.

    Example:
        >>> fake_quantize_per_tensor_affine(torch.tensor([-1.0, 0.26, 99.0, 999.0]), 0.5, 0, 0, 255)
        tensor([  0.0000,   0.5000,  99.0000, 127.5000])
    """
    return _fake_quantize(x, scale, zero_point, None, quant_min, quant_max)


def fake_quantize_per_channel_affine(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> torch.Tensor:
    """`fake_quantize_per_tensor_affine` with a scale and a zero point for each channel.

    Args:
        x: tensor of at least one dimension.
        scale: float32 tensor of shape (channels,).
        zero_point: int32 or int64 tensor of shape (channels,).
        axis: the dimension of x along which the channels lie.
        quant_min, quant_max: the range of integers.

    Returns:
        A new tensor of x's shape, dtype, device and memory format.

    Raises:
        ValueError: if an argument is out of range, or the number of channels is not that of x.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
        >>> fake_quantize_per_channel_affine(x, torch.tensor([0.3, 3.0]), torch.tensor([0, 0]), 0, -8, 7)
        tensor([[0.9000, 2.1000],
                [0.0000, 3.0000]])
    """
    if axis is None:
        raise TypeError("axis=None; allowed is an int (fake_quantize_per_tensor_affine has no axis)")
    return _fake_quantize(x, scale, zero_point, axis, quant_min, quant_max)


def _fake_quantize(
    x: torch.Tensor, scale: Any, zero_point: Any, axis: int | None, quant_min: int, quant_max: int
) -> torch.Tensor:
    plain = is_plain_tensor(x)
    check_input(x, Names)
    form = make_form(quant_min, quant_max)
    qparams = make_qparams(scale, zero_point, axis, x.device, plain)
    check_qparams(qparams, form, tuple(x.shape), Names)
    return fake_quantize(x, qparams, form, plain)


def fake_quantize(x: torch.Tensor, qparams: QParams, form: AffineInteger, plain: bool) -> torch.Tensor:
    """The law with its gradient, by the path that suits x; arguments are not checked."""
    parameters = qparams.scale, qparams.zero_point, qparams.axis, Bounds(form.low, form.high)
    if plain:
        if x.requires_grad and torch.is_grad_enabled():
            return _straight_through(x, *parameters)[0]
    elif is_differentiated(x):
        return for_transforms(_StraightThrough, _WithTangent)(x, *parameters)[0]
    return _forward(x, *parameters, plain)[0]


def with_gradient(x: torch.Tensor, run: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> torch.Tensor:
    """The first result of `run`, which fake-quantizes x; the second result of `run` masks the gradient."""
    return (_by_function(x, run) if x.requires_grad and torch.is_grad_enabled() else run(x))[0]


def make_form(quant_min: Any, quant_max: Any) -> AffineInteger:
    """The integers of a user's range; an error names the wrong argument."""
    if torch.compiler.is_dynamo_compiling():
        return _constant_form(literal(quant_min), literal(quant_max))
    return _cached_form(quant_min, quant_max)


def _form(quant_min: Any, quant_max: Any) -> AffineInteger:
    check_int("quant_min", quant_min)
    check_int("quant_max", quant_max)
    return AffineInteger(quant_min, quant_max)


_cached_form = cached(_form)


@constant_result
def _constant_form(quant_min: Any, quant_max: Any) -> AffineInteger:
    return _form(quant_min, quant_max)


def make_qparams(scale: Any, zero_point: Any, axis: int | None, device: torch.device, plain: bool) -> QParams:
    """Parameters on a device, from a user's numbers or tensors; a tensor of one element may have one dimension."""
    numbers = not isinstance(scale, torch.Tensor) and not isinstance(zero_point, torch.Tensor)
    return (_cached_qparams if plain and numbers else _qparams)(scale, zero_point, axis, device)


def _qparams(scale: Any, zero_point: Any, axis: int | None, device: torch.device) -> QParams:
    return QParams(_scale(scale, axis, device), _zero_point(zero_point, axis, device), axis)


_cached_qparams = cached(_qparams)


def _scale(scale: Any, axis: int | None, device: torch.device) -> torch.Tensor:
    if isinstance(scale, torch.Tensor):
        check_dense("scale", scale)
        check_device("scale", scale, device, "x")
        return _without_dimension(scale, axis)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale={quoted(scale)} is a {type(scale).__name__}; allowed is a number or a float32 tensor")
    number = check_float("scale", literal(scale), "a number", lambda _: True)  # torch.full takes no int above 2^64
    if abs(number) > torch.finfo(torch.float32).max and isfinite(number):
        raise ValueError(f"scale={quoted(scale)} is beyond float32; allowed is a number or a float32 tensor")
    return torch.full((), number, dtype=torch.float32, device=device)


def _zero_point(zero_point: Any, axis: int | None, device: torch.device) -> torch.Tensor:
    if isinstance(zero_point, torch.Tensor):
        check_dense("zero_point", zero_point)
        check_device("zero_point", zero_point, device, "x")
        zero_point = _without_dimension(zero_point, axis)
        return zero_point.clip(*_INT32).to(torch.int32) if zero_point.dtype is torch.int64 else zero_point
    return torch.full((), check_int("zero_point", literal(zero_point), *_INT32), dtype=torch.int32, device=device)


def _without_dimension(parameter: torch.Tensor, axis: int | None) -> torch.Tensor:
    return parameter.reshape(()) if axis is None and parameter.shape == (1,) else parameter


def _forward(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None, bounds: Bounds, plain: bool
) -> tuple[torch.Tensor, ...]:
    """The fake-quantized x, and the mask of gradients as 0 and 1 in uint8."""
    # Traced programs, subclasses and empty tensors run the law; its operations have the same bits.
    if plain and x.numel() > 0:
        launch = fake_quantize_on_cpu if x.is_cpu and not serve_cpu() else fake_quantize_by_package
        results = launch(x, scale, zero_point, axis, bounds)
        if results is not None:
            return results
    if exported.is_wanted() and bounds.high - bounds.low < 1 << 16:
        form = AffineInteger(int(bounds.low), int(bounds.high))
        y = exported.fake_quantize(x, QParams(scale, zero_point, axis), form)
        return y, torch.ones_like(x, dtype=torch.uint8)
    y, mask = law.fake_quantize(Names, x, scale, zero_point, axis, bounds)  # type: ignore[arg-type]
    return y, mask.to(torch.uint8)


def _backward(gradient: torch.Tensor, mask: torch.Tensor, plain: bool) -> torch.Tensor:
    recorded = torch.is_grad_enabled() and gradient.requires_grad  # then the gradient has a derivative, the same mask
    if plain and gradient.is_cpu and mask.numel() > 0 and not recorded:
        result = straight_through_on_cpu(gradient, mask)
        if result is not None:
            return result
    return law.straight_through(Names, gradient, mask != 0)


class _StraightThrough(torch.autograd.Function):
    """(x, scale, zero_point, axis, bounds) -> the fake-quantized x and the mask of gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, *parameters: Any) -> tuple[torch.Tensor, ...]:
        return _forward(x, *parameters, plain=is_plain_tensor(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.others = len(inputs) - 1
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        refuse_recording(gradient)
        (mask,) = ctx.saved_tensors
        return _backward(gradient, mask, is_plain_tensor(gradient)), *(None,) * ctx.others


class _WithTangent(_StraightThrough):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        _StraightThrough.setup_context(ctx, inputs, output)
        ctx.save_for_forward(output[1])

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        return _backward(tangent, mask, is_plain_tensor(tangent)), None


class _ByFunction(_StraightThrough):
    """(x, function of x) -> the fake-quantized x and the mask of gradients."""

    @staticmethod
    def forward(x: torch.Tensor, run: Any) -> tuple[torch.Tensor, ...]:
        return run(x)


_straight_through = apply_directly(_StraightThrough)
_by_function = apply_directly(_ByFunction)


_INT32 = (-(2**31), 2**31 - 1)
