"""Models as files for other programs, bit for bit.

`to_onnx` writes a model in ONNX, `to_qonnx` in QONNX for tools that build hardware, and `run_onnx` executes one.
"""

from qcore.lazy import public_names
from qtorch.export.hardware import to_qonnx
from qtorch.export.models import to_onnx
from qtorch.export.run import run_onnx

__all__ = ["run_onnx", "to_onnx", "to_qonnx"]
__dir__ = public_names(__name__)
