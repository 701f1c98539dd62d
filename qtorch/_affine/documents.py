"""Documents of functions and layers of quantized tensors, made of the rows of `qcore.affine.rows`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from qcore.affine.rows import OPERATIONS, SCALE, ZERO_POINT, F, Operation, Words, document, settings_of

_ARGUMENTS = {
    "input": "QTensor.",
    "inplace": "True writes the result over input, and returns input; it takes no parameters.",
    "scale, zero_point": "of the result; None means input's.",
}


def of_row(**arguments: str) -> Callable[[F], F]:
    """Gives a function the document of the row with its name; `arguments` says what its own arguments are."""

    def describe(function: F) -> F:
        row = OPERATIONS[function.__name__]
        returns = "A QTensor of input's shape and integers, with the parameters given."
        if row.limits:
            unit = f"numbers {row.limits} (`qcore.affine.arithmetic.unit_qparams`)"
            returns = f"A QTensor of input's shape and integers, with the parameters of {unit}."
        known = {**_ARGUMENTS, **row.in_torch(row.settings), **arguments}
        words = Words(known, returns, "TypeError, ValueError: if an argument is not as above.")
        output = f", {SCALE}, {ZERO_POINT}" if _needs_scale(function) else ""
        settings = _settings(row)
        call = f"{function.__name__}(x{output}{', ' if settings else ''}{settings})"
        function.__doc__ = document(function, _sentence(row), words, _example(row, call))
        return function

    return describe


def of_layer(layer: type, row: Operation) -> str:
    """The document of the layer of a row."""
    arguments = {"scale, zero_point": "of the result; unlike torch's, they are in the state_dict."}
    arguments |= row.in_torch(row.settings) | {"form": "the result's integers."}
    call = f"{layer.__name__}({', '.join(filter(None, [str(SCALE), str(ZERO_POINT), _settings(row)]))})(x)"
    return document(layer, _sentence(row), Words(arguments), _example(row, call))


def _needs_scale(function: Any) -> bool:
    scale = signature(function).parameters.get("scale")
    return scale is not None and scale.default is scale.empty


def _settings(row: Operation) -> str:
    return settings_of(row.example, row.names) if row.example else ""


def _sentence(row: Operation) -> str:
    """What an operation computes, in torch's names, and where its law is."""
    text = f"{row.sentence.removesuffix('.')}; see `qcore.affine.arithmetic.{row.law.__name__}`."
    for name, other in row.names.items():
        text = text.replace(name, other)
    return text


def _example(row: Operation, call: str) -> list[str]:
    example: Any = row.example
    numbers = f"torch.tensor({[float(number) for number in example.numbers]})"
    return [
        ">>> from qtorch.quantization import quantize_per_tensor",
        f">>> x = quantize_per_tensor({numbers}, {SCALE}, {ZERO_POINT}, torch.quint8)",
        f">>> {call}.dequantize().tolist()",
        str(example.shows),
    ]
