"""Operations of quantized tensors in programs that leave as ONNX: each is one node, not the operations of its law.

The nodes have the domain "qbits". `qtorch.export.to_onnx` replaces them by the laws of `qcore.exchange.laws`; other
programs, such as those of `torch.export.export`, never have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from qcore.affine import AffineInteger, QParams

DOMAIN = "qbits"
WANTED: ContextVar[bool] = ContextVar("nodes of the laws instead of their operations", default=False)


def is_wanted() -> bool:
    """True while a model is traced for ONNX."""
    return not torch.compiler.is_dynamo_compiling() and WANTED.get()


def quantize(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """The integers of a tensor of floats."""
    return _node("Quantize", (x, *_parameters(qparams)), _storage(form), x.shape, _axis(qparams) | _range(form))


def dequantize(values: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """The numbers of integers, in float32."""
    settings = _axis(qparams) | _range(form)
    return _node("Dequantize", (values, *_parameters(qparams)), torch.float32, values.shape, settings)


def fake_quantize(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor:
    """The numbers of the integers of a tensor of floats, in its dtype."""
    return _node("FakeQuantize", (x, *_parameters(qparams)), x.dtype, x.shape, _axis(qparams) | _range(form))


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
    return _node("Requantize", inputs, _storage(form), sums.shape, {"axis": axis} | _range(form))


def dynamic(
    x: torch.Tensor, weight: Any, bias: torch.Tensor | None, form: AffineInteger, dtype: torch.dtype
) -> torch.Tensor:
    """The product of rows of floats, quantized by their own range, with a weight; dtype is that of the sums."""
    inputs = x, weight.values, weight.qparams.scale, weight.qparams.zero_point, bias
    settings = _range(form) | {"dtype": _named(dtype)}
    return _node("Dynamic", inputs, torch.float32, (*x.shape[:-1], weight.shape[0]), settings)


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
    return _node("Products", _operands(input, weight), dtype, shape, {"dtype": _named(dtype)})


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
        "dtype": _named(dtype),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "groups": groups,
    }
    return _node("Windows", _operands(input, weight), dtype, (input.shape[0], weight.shape[0], *places), settings)


def rounded(x: torch.Tensor, number: str, rounding: str, overflow: str) -> torch.Tensor:
    """A tensor rounded to a format, in its dtype; an empty overflow is the format's own."""
    texts = {"number": number, "rounding": rounding, "overflow": overflow}
    return _node("Round", (x,), x.dtype, x.shape, texts)


def scaled(x: torch.Tensor, scale: torch.Tensor, number: str, axis: int) -> torch.Tensor:
    """A tensor rounded to a format times a scale, or one for each index along the axis, in its dtype."""
    return _node("RoundScaled", (x, scale), x.dtype, x.shape, {"number": number, "axis": axis})


def unpacked(packed: torch.Tensor, bits: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The codes that bytes hold, size of them along the last axis."""
    return _node("Unpack", (packed,), dtype, (*packed.shape[:-1], size), {"bits": bits, "size": size})


def decoded(
    codes: torch.Tensor, scales: torch.Tensor | None, scale: torch.Tensor | None, number: str, dtype: torch.dtype
) -> torch.Tensor:
    """The numbers of a format's codes, with the scales of its blocks and of the whole."""
    return _node("Decode", (codes, scales, scale), dtype, codes.shape, {"number": number, "dtype": _named(dtype)})


def _node(
    name: str, inputs: Sequence[torch.Tensor | None], dtype: torch.dtype, shape: Sequence[Any], attributes: Any
) -> torch.Tensor:
    return torch.onnx.ops.symbolic(f"{DOMAIN}::{name}", inputs, attributes, dtype=dtype, shape=shape, version=1)


def _operands(input: Any, weight: Any) -> tuple[torch.Tensor, ...]:
    return input.values, input.qparams.zero_point, weight.values, weight.qparams.zero_point


def _parameters(qparams: QParams) -> tuple[torch.Tensor, torch.Tensor]:
    return qparams.scale, qparams.zero_point


def _axis(qparams: QParams) -> dict[str, Any]:
    """The axis of the channels; ONNX has no attribute for None, so that a node without channels has none."""
    return {} if qparams.axis is None else {"axis": qparams.axis}


def _range(form: AffineInteger) -> dict[str, Any]:
    return {"qmin": form.qmin, "qmax": form.qmax, "signed": int(bool(form.signed))}


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _storage(form: AffineInteger) -> torch.dtype:
    return getattr(torch, form.storage)
