"""Operators of ONNX, QONNX and onnxruntime with laws of ours, by domain and name; onnx.reference has the others.

An operator is a function of arrays of NumPy and ml_dtypes, None for an input that is left out, whose keywords are the
node's attributes, the `version` of its domain, and the number of its `outputs`. It returns an array, or one for each
output.
"""

from collections.abc import Callable, Mapping
from typing import Any

from qcore.exchange.operators import microsoft, others, qonnx, quantization, windows

OPERATORS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "": {**others.OPERATORS, **quantization.OPERATORS, **windows.OPERATORS},
    "com.microsoft": microsoft.OPERATORS,
    # Brevitas and FINN wrote the same operators in domains of their own.
    "qonnx.custom_op.general": qonnx.OPERATORS,
    "finn.custom_op.general": qonnx.OPERATORS,
    "onnx.brevitas": qonnx.OPERATORS,
}
