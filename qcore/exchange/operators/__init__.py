"""The operators of ONNX and QONNX, by domain and name.

An operator is a function of the array namespace, the node and the values of its inputs, None for one that is left out.
It returns a value, or one for each output.
"""

from collections.abc import Callable
from typing import Any

from qcore.exchange.operators import arithmetic, products, qonnx, quantization, shapes

_STANDARD = {
    **arithmetic.OPERATORS,
    **products.OPERATORS,
    **quantization.OPERATORS,
    **shapes.OPERATORS,
}
# Brevitas and FINN wrote the same operators in domains of their own.
OPERATORS: dict[str, dict[str, Callable[..., Any]]] = {
    "": _STANDARD,
    "ai.onnx": _STANDARD,
    "qonnx.custom_op.general": qonnx.OPERATORS,
    "finn.custom_op.general": qonnx.OPERATORS,
    "onnx.brevitas": qonnx.OPERATORS,
}
