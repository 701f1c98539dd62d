"""A model of torch as a file in QONNX, for tools that build hardware."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch

from qcore.arrays import decode
from qcore.exchange import qonnx
from qcore.exchange.accumulators import finished
from qcore.exchange.graph import Graph, check_target, save
from qcore.exchange.symbols import is_known
from qtorch.export.expansion import LAWS, Laws, form_of
from qtorch.export.models import made_of


def to_qonnx(
    model: torch.nn.Module,
    args: tuple[object, ...],
    file: str | os.PathLike[str] | BinaryIO,
    *,
    kwargs: Mapping[str, object] | None = None,
) -> None:
    """Writes a model of rounded floats as QONNX: QONNX's executor has the model's numbers, and hls4ml and FINN read it.

    Roundings to fixed point and to floats become Quant and FloatQuant, also those of weights, and fake quantization
    becomes Quant. Sums have the narrowest fixed point type with all their values as annotation. A node has the law's
    results for all numbers but infinities and NaN, and zeros may change their sign. Sums of more than 24 bits are
    rounded by whoever adds in float32.

    Args:
        model: a module in evaluation, with layers of formats (`quantize_model` with a `QConfig` of formats),
            quantizers, or fake quantization whose scales are powers of two.
        args: the inputs of one call, whose shapes the file has; tools for hardware want batches of one.
        file: path of the file, which is written whole or not at all, or a file that is open for bytes.
        kwargs: the inputs that the call takes by name.

    Returns:
        Nothing; the file is written, and an existing file is replaced.

    Raises:
        ValueError: if the model is in training, or a layer has a law that QONNX cannot say; the message names the
            layer.
        ImportError: if onnx or onnxscript is missing.

    Example:
        >>> import tempfile
        >>> from qtorch.quant import Quantizer
        >>> from qtorch.quantization import QConfig, quantize_model
        >>> x = torch.randn(1, 4)
        >>> layer = quantize_model(
        ...     torch.nn.Linear(4, 3).eval(), QConfig("fixed(8,4)", "fixed(6,4)"), calibrate=[x]
        ... )
        >>> model = torch.nn.Sequential(Quantizer("fixed(8,4)", forward_rounding="nearest"), layer).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_qonnx(model, (x,), f"{folder}/model.onnx")
    """
    check_target(file)
    graph, opset = made_of(model, args, kwargs, None, _LAWS)
    save(finished(graph.model(opset)), file)


def _round(graph: Graph, x: Any, number: str, rounding: str, overflow: str) -> Any:
    return qonnx.rounded(graph, x, number, rounding, overflow)


def _decode(graph: Graph, codes: Any, scales: Any = None, scale: Any = None, *, number: str, dtype: str) -> Any:
    """The weights that codes stand for, with the node that rounds to their format: tools read their type there."""
    if not is_known(codes, scales, scale):
        return LAWS["Decode"](graph, codes, scales, scale, number=number, dtype=dtype)  # which says why it cannot be
    if scales is not None:
        return qonnx.stored(graph, codes, scales, scale, number)
    return qonnx.rounded(graph, decode(codes, number), number)


def _fake_quantize(graph: Graph, x: Any, scale: Any, zero_point: Any, axis: int | None = None, **form: int) -> Any:
    return qonnx.fake_quantize(graph, x, scale, zero_point, axis, form_of(**form))


def _refused(graph: Graph, *operands: Any, **attributes: Any) -> Any:
    raise ValueError(qonnx.INTEGERS)


_INTEGERS = ("Quantize", "Dequantize", "Requantize", "Dynamic", "Cell", "Products", "Windows")
_LAWS: Laws = {
    **LAWS,
    **dict.fromkeys(_INTEGERS, _refused),
    "Round": _round,
    "RoundScaled": qonnx.round_scaled,
    "Decode": _decode,
    "FakeQuantize": _fake_quantize,
}
