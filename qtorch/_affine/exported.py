"""Operations of quantized tensors in programs that leave as ONNX, see `qtorch._exported`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from qcore.affine import AffineInteger, QParams
from qcore.affine.quantized import QuantizedArray
from qtorch._exported import DOMAIN, named, node
from qtorch._exported import is_near as is_near
from qtorch._exported import is_wanted as is_wanted


def of_numbers(function: Callable[..., torch.Tensor], *operands: Any, output: QParams, form: AffineInteger) -> Any:
    """A quantized tensor of what a function makes of the numbers of quantized tensors: near its law, and fast."""
    first = next(one for one in operands if not isinstance(one, str))
    kind = type(first[0] if isinstance(first, (list, tuple)) else first)
    return kind._made(quantize(function(*map(_numbers, operands)), output, form), output, form)


def _numbers(operand: Any) -> Any:
    if isinstance(operand, (list, tuple)):
        return [_numbers(one) for one in operand]
    return operand.dequantize() if isinstance(operand, QuantizedArray) else operand


def quantize(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """The integers of a tensor of floats."""
    return node("Quantize", (x, *_parameters(qparams)), _storage(form), x.shape, _axis(qparams) | _range(form))


def dequantize(values: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """The numbers of integers, in float32."""
    settings = _axis(qparams) | _range(form)
    return node("Dequantize", (values, *_parameters(qparams)), torch.float32, values.shape, settings)


def fake_quantize(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """The numbers of the integers of a tensor of floats, in its dtype."""
    return node("FakeQuantize", (x, *_parameters(qparams)), x.dtype, x.shape, _axis(qparams) | _range(form))


def requantize(
    sums: torch.Tensor,
    input_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output: QParams,
    form: AffineInteger,
    axis: int,
) -> torch.Tensor:
    """The integers of sums of products, whose channels lie along an axis."""
    inputs = sums, input_scale, weight_scale, bias, *_parameters(output)
    return node("Requantize", inputs, _storage(form), sums.shape, {"axis": axis} | _range(form))


def dynamic(
    x: torch.Tensor, weight: Any, bias: torch.Tensor | None, form: AffineInteger, dtype: torch.dtype, rows: bool
) -> torch.Tensor:
    """The product of rows of floats, quantized by their own range, with a weight; dtype is that of the sums."""
    inputs = x, weight.values, weight.qparams.scale, weight.qparams.zero_point, bias
    settings = _range(form) | {"dtype": named(dtype), "rows": int(rows)}
    return node("Dynamic", inputs, torch.float32, (*x.shape[:-1], weight.shape[0]), settings)


def cell(law: str, of_input: torch.Tensor, of_hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The states after a step of a recurrent layer, from its two products."""
    count = 2 if law == "lstm" else 1
    types, shapes = [torch.float32] * count, [state.shape] * count
    texts: dict[str, Any] = {"law": law}
    inputs = of_input, of_hidden, state
    return tuple(
        torch.onnx.ops.symbolic_multi_out(f"{DOMAIN}::Cell", inputs, texts, dtypes=types, shapes=shapes, version=1)
    )


def products(input: Any, weight: Any, dtype: torch.dtype) -> torch.Tensor:
    """The sums of products of rows with a weight of shape (outputs, terms)."""
    shape = *input.shape[:-1], weight.shape[0]
    return node("Products", _operands(input, weight), dtype, shape, {"dtype": named(dtype)})


def windows(
    input: Any,
    weight: Any,
    dtype: torch.dtype,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """The sums of products of windows with a weight, of shape (batch, outputs, *places)."""
    whole = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    places = [(size + 2 * margin - gap * (count - 1) - 1) // step + 1 for size, count, step, margin, gap in whole]
    settings = {
        "dtype": named(dtype),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "groups": groups,
    }
    return node("Windows", _operands(input, weight), dtype, (input.shape[0], weight.shape[0], *places), settings)


def scaled(x: torch.Tensor, scale: torch.Tensor, number: str, axis: int) -> torch.Tensor:
    """A tensor rounded to a format times a scale, or one for each index along the axis, in its dtype."""
    return node("RoundScaled", (x, scale), x.dtype, x.shape, {"number": number, "axis": axis})


def _operands(input: Any, weight: Any) -> tuple[torch.Tensor, ...]:
    return input.values, input.qparams.zero_point, weight.values, weight.qparams.zero_point


def _parameters(qparams: QParams) -> tuple[torch.Tensor, torch.Tensor]:
    return qparams.scale, qparams.zero_point


def _axis(qparams: QParams) -> dict[str, Any]:
    """The axis of the channels; ONNX has no attribute for None, so that a node without channels has none."""
    return {} if qparams.axis is None else {"axis": qparams.axis}


def _range(form: AffineInteger) -> dict[str, Any]:
    return {"qmin": form.qmin, "qmax": form.qmax, "signed": int(bool(form.signed))}


def _storage(form: AffineInteger) -> torch.dtype:
    return getattr(torch, form.storage)
