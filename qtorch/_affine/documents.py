"""Documents of functions and layers of quantized tensors, made of the rows of `qcore.affine.rows`."""

from __future__ import annotations

from qcore.affine.rows import OPERATIONS, F, Operation

_FUNCTION = """{sentence}; see `qcore.affine.functional.{law}`.

Args:
    input: QTensor.
    scale, zero_point: of the result; None means input's.
{settings}
Returns:
    A QTensor of input's shape and integers, with the parameters given.

Example:
    >>> from qtorch.quantization import quantize_per_tensor
    >>> x = quantize_per_tensor(torch.tensor({numbers}), 0.125, 120, torch.quint8)
    >>> {name}(x, 0.125, 120{more}).dequantize().tolist()
    {shows}
"""
_LAYER = """{sentence}; see `qcore.affine.functional.{law}`.

Args:
    scale, zero_point: of the result; unlike torch's, they are in the state_dict.
{settings}    form: the result's integers.

Example:
    >>> from qtorch.quantization import quantize_per_tensor
    >>> x = quantize_per_tensor(torch.tensor({numbers}), 0.125, 120, torch.quint8)
    >>> {name}(0.125, 120{more})(x).dequantize().tolist()
    {shows}
"""


def of_row(function: F) -> F:
    """Gives a function with a scale and a zero point the document of the row with its name."""
    row = OPERATIONS[function.__name__]
    function.__doc__ = row.document(_FUNCTION, function.__name__, row.names)
    return function


def of_layer(layer: type, row: Operation) -> str:
    """The document of the layer of a row."""
    return row.document(_LAYER, layer.__name__, row.names)
