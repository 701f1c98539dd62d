"""Models as files for other programs, bit for bit.

`to_onnx` writes a model in ONNX, and `to_qonnx` in QONNX for tools that build hardware.
"""

from qcore.lazy import public_names
from qtorch.export.hardware import to_qonnx
from qtorch.export.models import to_onnx

__all__ = ["to_onnx", "to_qonnx"]
__dir__ = public_names(__name__)
