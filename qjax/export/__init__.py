"""Functions and models as files for other programs, bit for bit.

`to_onnx` writes them in ONNX, and `to_qonnx` in QONNX for tools that build hardware.
"""

from qcore.lazy import public_names
from qjax.export.hardware import to_qonnx
from qjax.export.models import to_onnx

__all__ = ["to_onnx", "to_qonnx"]
__dir__ = public_names(__name__)
